"""``scalable schema``."""

from __future__ import annotations

import click

from scalable.cli.options import Command
from scalable.cli.output import Result, to_json
from scalable.providers.registry import option_models


@click.command(cls=Command)
def command() -> Result:
    """Print the JSON Schema of manifests.
    It covers the options of all installed providers.
    """
    from scalable.manifest import json_schema

    schema = json_schema(option_models())
    return Result(to_json(schema), schema, versioned=False)
