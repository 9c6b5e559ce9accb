"""What the documents show is run, and what they say is printed is what is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/getting-started.md",
    "docs/providers.md",
    "docs/clusters.md",
    "docs/scaling.md",
    "docs/planning.md",
    "docs/prices.md",
    "docs/calls.md",
    "docs/code.md",
    "docs/records.md",
)
#: Pages whose commands need a Kubernetes cluster; they run on the test bed.
KUBERNETES_PAGES = ("docs/tutorial-kubernetes.md", "docs/tutorial-kubernetes-detached.md")
#: Pages whose commands need AWS and Google Cloud; they run on the test beds.
CLOUD_PAGES = ("docs/cloud.md", "docs/tutorial-cloud.md")
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
#: What differs from run to run: numbers with a unit, identifiers, instants, digests, paths.
VARYING = (
    (re.compile(r"run-\d+T\d+Z-([\w-]+)-[0-9a-f]{8}"), r"run-<id>-\1"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<digest>"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"), "<instant>"),
    (re.compile(r"\b\d+(\.\d+)?\s+(ms|s|MiB|GiB|kiB)(?!\w)"), "<n>"),
    (re.compile(r"(?<=[ :])/\S*/(?=\.scalable|total\.txt)"), ""),
    (re.compile(r"^(  )?task\s+.*$", re.MULTILINE), "<head>"),
    (re.compile(r"\b0 s\b"), "<n>"),
    (re.compile(r"[ \t]+"), " "),
)


def blocks(page):
    return [match.groups() for match in FENCE.finditer((ROOT / page).read_text())]


def normal(text):
    for pattern, replacement in VARYING:
        text = pattern.sub(replacement, text)
    return text.strip()


def commands(block):
    """Pairs of a command and what it is said to print."""
    pairs = []
    for line in block.splitlines():
        if line.startswith("$ "):
            pairs.append((line[2:], []))
        else:
            pairs[-1][1].append(line)
    return [(command, "\n".join(shown)) for command, shown in pairs]


@pytest.fixture
def run(tmp_path, request):
    """Run a command in an empty directory, with nothing of ours in the environment."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SCALABLE_", "SLURM_"))}
    clean["XDG_STATE_HOME"] = str(tmp_path / "state")
    if request.node.callspec.params["page"] in KUBERNETES_PAGES:
        clean["KUBECONFIG"] = str(request.getfixturevalue("kubernetes_bed").kubeconfig("admin"))
    if request.node.callspec.params["page"] in CLOUD_PAGES:
        request.getfixturevalue("aws_bed").settings(delay=0.05)
        for bed in ("aws_bed", "gcp_bed"):
            clean |= request.getfixturevalue(bed).environment()
    clean["PATH"] = f"{Path(sys.executable).parent}:{clean['PATH']}"

    def do(command):
        return subprocess.run(
            command, shell=isinstance(command, str), cwd=tmp_path, env=clean, text=True,
            capture_output=True, timeout=150, check=False,
        )  # fmt: skip

    return do


@pytest.mark.parametrize("page", [*PAGES, *KUBERNETES_PAGES, *CLOUD_PAGES])
def test_the_page_runs_as_it_stands(page, run, tmp_path):
    found = blocks(page)
    assert found, page
    for language, title, block in found:
        if title:
            (tmp_path / title).write_text(block)
        elif language == "python":
            (tmp_path / "block.py").write_text(block)
            done = run([sys.executable, "block.py"])
            assert done.returncode == 0, f"{block}\n{done.stderr}"
        elif language == "console":
            for command, shown in commands(block):
                done = run(command)
                printed = normal(done.stdout)
                if page == "README.md" and command == "scalable run":
                    printed = printed.splitlines()[0]  # the report is described, not shown
                assert printed == normal(shown), f"$ {command}\n{done.stdout}\n{done.stderr}"


def test_no_page_names_a_file_that_is_not_there():
    for page in (
        "README.md",
        "CONTRIBUTING.md",
        *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md")),
    ):
        text = (ROOT / page).read_text()
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert ((ROOT / page).parent / link).exists(), f"{page}: {link}"


def test_the_reference_is_what_the_models_say():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "reference.py"), "--check"], check=False, timeout=60
    )
    assert done.returncode == 0, "run make docs-options"
