"""Generator of the tables in docs/manifest.md, from the models that check manifests.

python docs/reference.py          # rewrite the tables
python docs/reference.py --check  # exit 1 when they are out of date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scalable.manifest.schema import Component, Manager, Managers, Project, Target, Task
from scalable.providers.registry import option_models

PAGE = Path(__file__).with_name("manifest.md")
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
RECORDS: dict[str, type[BaseModel]] = {
    "project": Project,
    "component": Component,
    "task": Task,
    "target": Target,
    "manager": Manager,
    "managers": Managers,
}


def default_of(info: FieldInfo) -> str:
    """Return the default as it would be written."""
    if info.is_required():
        return "required"
    if info.default in (None, (), {}):
        return ""
    return f"`{str(info.default).lower() if isinstance(info.default, bool) else info.default}`"


def table(model: type[BaseModel]) -> str:
    """Return a table of the keys of a model."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for name, info in model.model_fields.items():
        rows.append(f"| `{info.alias or name}` | {default_of(info)} | {info.description} |")
    return "\n".join(rows) + "\n"


def rendered(text: str) -> str:
    """Return the page with its tables generated again."""
    models = RECORDS | {f"provider-{n}": m for n, m in option_models().items() if m is not None}
    return MARKED.sub(lambda m: f"{m[1]}{table(models[m[2]])}{m[3]}", text)


def main() -> int:
    """Rewrite the page, or check whether it is up to date."""
    before = PAGE.read_text()
    after = rendered(before)
    if "--check" in sys.argv[1:]:
        return int(before != after)
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
