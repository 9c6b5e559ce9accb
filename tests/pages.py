"""The pages of the documentation: their blocks, and a shell in which they are run."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
#: What differs from run to run: numbers with a unit, identifiers, instants, digests, paths.
VARYING = (
    (re.compile(r"run-\d+T\d+Z-([\w-]+)-[0-9a-f]{8}"), r"run-<id>-\1"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<digest>"),
    (re.compile(r"\(nearest: [0-9a-f]{12}\)"), "(nearest: <digest>)"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"), "<instant>"),
    (re.compile(r"\b\d+(\.\d+)?\s+(ms|s|MiB|GiB|kiB)(?!\w)"), "<n>"),
    (re.compile(r"\b\d+Mi\b"), "<n>Mi"),
    (re.compile(r"(?<=scalable-)[0-9a-f]{6,8}\b(-[0-9a-f-]+)?"), "<id>"),
    (re.compile(r"(?<=-)[0-9a-f]{6}(?=-\d+:)"), "<id>"),
    (re.compile(r"^\d+_\d+ (?=RUNNING)", re.MULTILINE), "<job> "),
    (re.compile(r"(?<=[ :])/\S*/(?=\.scalable|total\.txt)"), ""),
    (re.compile(r"^(  )?task\s+.*$", re.MULTILINE), "<head>"),
    (re.compile(r"\b0 s\b"), "<n>"),
    (re.compile(r"[ \t]+"), " "),
)
#: Commands that only show a state, which others change.
WATCHING = re.compile(r"squeue|grep|scalable (explain|report|status)\b")


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


@contextlib.contextmanager
def shell(directory, more=()):
    """Yield a function that runs a command in a directory, with nothing of ours in the environment.

    What still runs in the background at the end is ended.
    """
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SCALABLE_", "SLURM_"))}
    clean |= {f"XDG_{kind}_HOME": str(directory / kind.lower()) for kind in ("STATE", "CACHE")}
    clean |= dict(more)
    clean["PATH"] = f"{Path(sys.executable).parent}:{clean['PATH']}"
    groups = []

    def run(command):
        with subprocess.Popen(
            command, shell=isinstance(command, str), cwd=directory, env=clean, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
        ) as process:  # fmt: skip
            groups.append(process.pid)
            try:
                printed, errors = process.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if not str(command).endswith("&"):
            groups.remove(process.pid)
        return subprocess.CompletedProcess(command, process.returncode, printed, errors)

    try:
        yield run
    finally:
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)


def runs_as_it_stands(page, directory, more=(), patience=0.0, instead=("", "")):
    """Run the blocks of a page, and compare what is printed with what it shows.

    A command that only watches is repeated for that many seconds, until it shows the same. A text in
    the files is replaced by another, if the page must not take a fixed port of this machine.
    """
    found = blocks(page)
    if "examples/" in (ROOT / page).read_text():
        shutil.copytree(ROOT / "examples", directory / "examples")
    assert found, page
    with shell(directory, more) as run:
        for language, title, block in found:
            if title:
                (directory / title).write_text(block.replace(*instead))
            elif language == "python":
                (directory / "block.py").write_text(block)
                done = run([sys.executable, "block.py"])
                assert done.returncode == 0, f"{block}\n{done.stderr}"
            elif language == "console":
                for command, shown in commands(block):
                    deadline = time.monotonic() + (patience if WATCHING.match(command) else 0.0)
                    while True:
                        done = run(command)
                        printed = normal(done.stdout)
                        if page == "README.md" and command == "scalable run":
                            printed = printed.splitlines()[0]  # the report is described, not shown
                        if printed == normal(shown) or time.monotonic() > deadline:
                            break
                        time.sleep(0.5)
                    assert printed == normal(shown), f"$ {command}\n{done.stdout}\n{done.stderr}"
