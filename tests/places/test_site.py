"""The documentation as a site: it builds without a warning, and its reference is complete."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

import scalable
from pages import ROOT
from scalable import providers
from scalable.cli.main import VERBS

pytest.importorskip("mkdocs")


class Ids(HTMLParser):
    """Collects the ids of a page's elements."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def handle_starttag(self, tag, attrs):
        self.found.update(value for name, value in attrs if name == "id" and value)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", directory],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
        check=False, timeout=170,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return directory


def ids_of(page):
    parser = Ids()
    parser.feed(page.read_text())
    return parser.found


def test_the_reference_has_every_public_name_and_every_command(site):
    python = ids_of(site / "python.html")
    public = [*scalable.__all__, *providers.__all__]
    missing = [n for n in public if not any(i.endswith(f".{n}") for i in python)]
    assert missing == []
    commands = ids_of(site / "cli.html")
    assert [verb for verb in VERBS if not any(i.endswith(verb) for i in commands)] == []


def test_no_page_loads_from_another_host(site):
    for page in site.rglob("*.html"):
        loaded = r'<(?:script|link|img)\b[^>]*?(?:src|href)="https?:[^"]*'
        assert re.findall(loaded, page.read_text()) == [], page.name


def test_no_page_of_the_documentation_is_outside_the_navigation(site):
    listed = (ROOT / "mkdocs.yml").read_text()
    pages = [str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in listed] == []
