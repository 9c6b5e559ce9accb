"""``scalable schema``."""

from __future__ import annotations

import click

from scalable.cli.options import output_options
from scalable.cli.output import Output, Result, to_json
from scalable.providers.registry import option_models


@click.command()
@output_options
def command(output: Output) -> int:
    """Print the JSON Schema of manifests.
    It covers the options of all installed providers.
    """
    from scalable.manifest import json_schema

    schema = json_schema(option_models())
    output.show(Result(to_json(schema), schema))
    return 0
