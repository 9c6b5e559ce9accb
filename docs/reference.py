"""Generator of the tables in docs/manifest.md, reference.md and kubernetes.md, from the code.

python docs/reference.py          # rewrite the tables
python docs/reference.py --check  # exit 1 when they are out of date
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import scalable
from scalable import errors
from scalable.cli.main import cli, failure_of
from scalable.manifest.schema import Component, Manager, Managers, Project, Target, Task
from scalable.model.clusters import PoolStatus
from scalable.model.overview import Overview, PoolOverview, PredictedEnd, TaskCounts, TaskOverview
from scalable.providers.kubernetes.permissions import DETACHED_RULES, role
from scalable.providers.registry import option_models
from scalable.runs.streams import STREAMS
from scalable.views.cluster_text import CLUSTER
from scalable.views.columns import POOLS, TASKS
from scalable.watch.metrics import exported, series

PAGES = [Path(__file__).with_name(f"{name}.md") for name in ("manifest", "reference", "kubernetes")]
SOURCE = Path(scalable.__file__).parent
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
#: A string on a line of its own, with a comment ``#:`` above it or after it.
COMMENTED = re.compile(
    r'^((?: *#: .*\n)*) *(?:\w+(?:: \w+)? = )?"([\w.]+)",?(?:  #: (.*))?$', re.MULTILINE
)
RECORDS: dict[str, type[BaseModel]] = {
    "project": Project,
    "component": Component,
    "task": Task,
    "target": Target,
    "manager": Manager,
    "managers": Managers,
}


def table(header: str, rows: Iterable[Iterable[object]]) -> str:
    """Return a table with the names of its columns."""
    columns = header.split(", ")
    lines = [f"| {' | '.join(map(str, line))} |\n".replace("``", "`") for line in (columns, *rows)]
    lines.insert(1, "|---" * len(columns) + "|\n")
    return "".join(lines)


def code(*names: object) -> str:
    """Return names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def comments(module: str) -> dict[str, str]:
    """Map strings of a module to the comments at them."""
    found = COMMENTED.findall((SOURCE / module).read_text())
    return {
        value: after or " ".join(above.replace("#:", "").split())
        for above, value, after in found
        if above or after
    }


# The tables ---------------------------------------------------------------------------------------


def default_of(info: FieldInfo) -> str:
    """Return the default as it would be written."""
    if info.is_required():
        return "required"
    if info.default in (None, (), {}):
        return ""
    return code(str(info.default).lower() if isinstance(info.default, bool) else info.default)


def keys_of(model: type[BaseModel]) -> str:
    """Return a table of the keys of a model."""
    fields = model.model_fields.items()
    rows = [(code(f.alias or name), default_of(f), f.description) for name, f in fields]
    return table("key, default, meaning", rows)


def variables(*, own: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the variables that users set, or scalable's own: name, default and meaning."""
    modules = (str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))
    found = {name: text for module in modules for name, text in comments(module).items()}
    for name, text in sorted(found.items()):
        if name.startswith("SCALABLE_") and text.startswith("Set ") is own:
            meaning, _, default = text.partition(" Default: ")
            yield code(name), default.removesuffix("."), meaning


def error_codes() -> Iterator[tuple[str, str, int, str]]:
    """Yield the code, class, exit code and meaning of each error."""
    for name, each in vars(errors).items():
        if isinstance(each, type) and "code" in vars(each):
            yield each.code, code(name), each.exit_code, (each.__doc__ or "").split("\n")[0]
    others = click.UsageError(""), click.FileError(""), click.Abort(), NotImplementedError()
    meanings = comments("cli/main.py")
    for error in (*others, Exception()):
        failure = failure_of(error)
        yield failure.code, "", failure.exit_code, meanings[failure.code]


def exit_codes() -> list[tuple[int, str]]:
    """Return the exit codes with the codes of their errors."""
    found: dict[int, list[str]] = defaultdict(list)
    for name, _, number, _ in error_codes():
        found[number].append(name)
    return [(number, code(*names)) for number, names in sorted(found.items())]


def own_exit_codes(command: click.Command, path: str = "scalable") -> Iterator[tuple[str, str]]:
    """Yield the commands with exit codes of their own, and the sentence of their help."""
    for sentence in re.split(r"(?<=\.)\s+", " ".join((command.help or "").split())):
        if "exit code" in sentence:
            yield code(path), sentence
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from own_exit_codes(found, f"{path} {name}")


def metrics() -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, type, labels and help of each metric of an overview that has all of them."""
    amounts = {"cost": 0, "idle": 0, "per_hour": 0}
    overview = Overview(
        at=0,
        cluster={"started_at": 0},
        pools={"": PoolOverview(PoolStatus(), cost=amounts)},
        tasks=(TaskOverview("", "", TaskCounts()),),
        end=PredictedEnd(0, 0, 0),
        cost={**amounts, "budget": 0},
        scaled={"": {"": 0}},
        failures={"": 0},
    )
    endings = {"counter": "_total", "info": "_info"}
    found = {}
    for metric in exported(overview):
        labels = dict.fromkeys(name for sample in metric.samples for name in sample.labels)
        found[metric.name + endings.get(metric.type, "")] = (
            metric.type,
            labels,
            metric.documentation,
        )
    for listing, keys in ((CLUSTER, ()), (POOLS, ("pool",)), (TASKS, ("task", "pool"))):
        for column in listing.columns:
            if column.metric is not None:  # its value may be None in this overview
                name, own = series(column.metric)
                kind = "counter" if name.endswith("_total") else "gauge"
                found.setdefault(name, (kind, dict.fromkeys([*keys, *own]), column.help))
    for name, (kind, labels, words) in found.items():
        yield code(name), kind, code(*labels), words


def run_files() -> Iterator[tuple[str, str]]:
    """Yield the files and directories of a run, and their contents."""
    found = comments("runs/streams.py") | comments("cache/resume.py")
    for name, text in found.items():
        file = f"{name}.jsonl" if name in STREAMS else name if "." in name else f"{name}/"
        yield code(file), text


TABLES: dict[str, Callable[[], str]] = {
    "variables": lambda: table("variable, default, meaning", variables(own=False)),
    "own-variables": lambda: table(
        "variable, meaning", ((name, text) for name, _, text in variables(own=True))
    ),
    "errors": lambda: table(
        "code, class, exit code, meaning", ((code(name), *rest) for name, *rest in error_codes())
    ),
    "findings": lambda: table(
        "code, meaning",
        ((code(name), text) for name, text in comments("manifest/faults.py").items()),
    ),
    "exit-codes": lambda: table("exit code, errors", exit_codes()),
    "own-exit-codes": lambda: table("command, exit code", own_exit_codes(cli)),
    "metrics": lambda: table("metric, type, labels, meaning", metrics()),
    "run-files": lambda: table("file, content", run_files()),
    "kubernetes-role": lambda: f"```yaml\n{role('research', DETACHED_RULES)}```\n",
}


def rendered(text: str) -> str:
    """Return a page with its tables generated again."""
    models = RECORDS | {f"provider-{n}": m for n, m in option_models().items() if m is not None}

    def made(name: str) -> str:
        return keys_of(models[name]) if name in models else TABLES[name]()

    return MARKED.sub(lambda m: f"{m[1]}{made(m[2])}{m[3]}", text)


def main() -> int:
    """Rewrite the pages, or check whether they are up to date."""
    texts = {page: rendered(page.read_text()) for page in PAGES}
    if "--check" in sys.argv[1:]:
        return int(any(page.read_text() != text for page, text in texts.items()))
    for page, text in texts.items():
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
