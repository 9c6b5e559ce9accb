"""What the documents show is run, and what they say is printed is what is printed.

The pages that take long, or need more than this machine, are run in tests/places.
"""

import re
import runpy
import subprocess
import sys
from dataclasses import replace

import pytest

from pages import ROOT, blocks, runs_as_it_stands
from scalable.containers.component import PACKAGES
from scalable.views import columns
from scalable.views.columns import POOLS
from scalable.views.tables import Column

PAGES = (
    "README.md",
    "docs/getting-started.md",
    "docs/providers.md",
    "docs/scaling.md",
    "docs/prices.md",
    "docs/code.md",
    "docs/records.md",
    "docs/seeing.md",
    "docs/images.md",
    "docs/performance.md",
)


# A page starts a dozen processes one after the other, which takes minutes on a busy machine.
@pytest.mark.timeout(480)
@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs_as_it_stands(page, tmp_path):
    runs_as_it_stands(page, tmp_path)


def test_no_page_names_a_file_that_is_not_there():
    for page in (
        "README.md",
        "CONTRIBUTING.md",
        *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
    ):
        text = (ROOT / page).read_text()
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert ((ROOT / page).parent / link).exists(), f"{page}: {link}"


def test_the_dockerfiles_are_short_and_the_releases_complete():
    found = blocks("docs/images.md")
    files = [block for language, _, block in found if language == "dockerfile"]
    assert len(files) == 3
    assert all(len(block.splitlines()) <= 10 for block in files)
    (script,) = [block for _, title, block in found if title == "releases.py"]
    assert all(f'"{name}"' in script for name in PACKAGES)


def test_the_reference_is_what_the_models_say():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "reference.py"), "--check"], check=False, timeout=60
    )
    assert done.returncode == 0, "run make docs-options"


def test_reference_has_the_metric_of_a_column_without_a_value(monkeypatch):
    reference = runpy.run_path(str(ROOT / "docs" / "reference.py"))
    metric = Column("x", "x", lambda _: None, "count", metric="scalable_pool_x", help="X.")
    pools = replace(POOLS, columns=(*POOLS.columns, metric))
    for names in (vars(columns), reference["metrics"].__globals__):
        monkeypatch.setitem(names, "POOLS", pools)
    assert ("`scalable_pool_x`", "gauge", "`pool`", "X.") in list(reference["metrics"]())


def test_the_reference_has_every_variable_and_code():
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    names = set(re.findall(r'"((?:SCALABLE|E)_[A-Z_]+)"', source))
    page = (ROOT / "docs" / "reference.md").read_text()
    assert {name for name in names if f"`{name}`" not in page} == set()
