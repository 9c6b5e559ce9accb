"""``scalable doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from scalable.cli.options import output_options, target_option
from scalable.cli.output import VERSION, Output, Result

if TYPE_CHECKING:
    from scalable.lifecycle.health.rows import Row, Verdict


@click.command()
@target_option("Check this target of the manifest too; its place is asked, and nothing is started.")
@output_options
def command(target: str | None, *, output: Output) -> int:
    """Check this machine: each row is ok, or tells how to mend it.

    The exit code is 1 if a row fails.
    """
    from scalable.lifecycle.health.examination import examine

    rows = list(examine() if target is None else _with_target(target))
    failed = any(row.verdict == "fail" for row in rows)
    data = {"version": VERSION, "ok": not failed, "rows": [row.to_dict() for row in rows]}
    output.show(Result(_render(rows), data, faulty=failed))
    return int(failed)


def _with_target(target: str) -> Iterator[Row]:
    from scalable import settings
    from scalable.errors import ProviderError
    from scalable.lifecycle.health.examination import examine
    from scalable.lifecycle.health.rows import Row
    from scalable.session.request import Request

    request = Request.read(settings.manifest_path(), target)
    yield from examine(request.spec)
    report = request.validate()
    try:
        live = request.check()
    except NotImplementedError:
        live = None  # the provider's place cannot be asked
    except ProviderError as error:
        yield Row(f"target {target}", "fail", error.message, error.hint or "")
        live = None
    found = [*report.errors, *report.warnings]
    found += [] if live is None else [*live.errors, *live.warnings]
    for finding in dict.fromkeys(found):
        verdict: Verdict = "warn" if finding.severity == "warning" else "fail"
        yield Row(f"target {target}", verdict, finding.message, finding.hint or "")
    if not found:
        yield Row(f"target {target}", "ok", "the manifest is valid for it")


def _render(rows: Sequence[Row]) -> str:
    from scalable.report.table import on_one_line

    width = max(len(row.what) for row in rows)
    lines = []
    for row in rows:
        lines.append(on_one_line(f"{row.verdict:<4}  {row.what:<{width}}  {row.fact}"))
        if row.mend and row.verdict != "ok":
            lines.append(on_one_line(f"      {'':<{width}}  -> {row.mend}"))
    return "\n".join(lines) + "\n"
