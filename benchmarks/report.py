"""Records of large runs: what writing and reading them takes, and the HTML report.

    python benchmarks/report.py [--calls 1000000] [--workers 200] [--runs 20]
                                [--chromium /usr/bin/chromium] [--keep DIRECTORY]

The real recorder writes the records of made-up calls (``made_records.py``): by ``submit``, by
executors, and by executors that record each call. Each reader is a process of its own, whose CPU
time and peak memory count. The next plan is made after one such run, and after several with a
tenth of the calls each. Opening the report is measured in Chromium with playwright, from the
navigation until the page is drawn; without playwright it is left out. The default takes about
five minutes on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from made_records import KINDS, TAGS, Written, write_record

#: Bars of the summary of a record: CPU seconds per million rows, and MB of peak memory.
SUMMARY_S, SUMMARY_MB = 10.0, 500.0
#: Seconds in which the measurements of earlier runs are read, and a plan knows them.
HISTORY_S = 1.0
#: Milliseconds for which a turn of the recorder may hold the scheduler's event loop.
HELD_MS = 50.0
#: Seconds and MB of the report of 100,000 calls, and seconds in which a browser opens a report.
MADE_S, SIZE_MB, OPENED_S = 10.0, 5.0, 2.0
MANIFEST = """\
version: 1
project: {{name: large}}
targets: {{here: {{provider: local}}}}
components: {{model: {{cpus: 1}}, post: {{cpus: 1}}}}
tasks: {{{tasks}}}
"""
#: Runs a command and tells its seconds, CPU seconds and kilobytes. A process begins with the peak
#: memory of the one that started it, which therefore is a small one.
USAGE = """
import resource, subprocess, sys, time
began = time.perf_counter()
subprocess.run(sys.argv[1:], check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print()
print(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
CLI = "import sys; from scalable.cli.main import main; sys.exit(main())"
#: What a reader does -> its program, whose arguments are the directories of runs and of the run.
PROGRAMS = {
    "end of the run: summary and measurements": (
        "import sys; from scalable.runs import RunDirectory; "
        "RunDirectory.open(sys.argv[2]).close('completed')"
    )
}
HISTORY = """
import sys, time
from pathlib import Path
from scalable.forecasting import gather
from scalable.session.request import Request
spec = Request.read(Path(sys.argv[1]), None).spec
began = time.perf_counter()
known = gather(spec, runs_dir=Path(sys.argv[2]))
print(time.perf_counter() - began)
print(sum(known.calls.values()))
"""


@dataclass(frozen=True)
class Took:
    """Measures of one process: seconds, CPU seconds, and peak memory in MB; and its output."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    output: str


def took(*arguments: str, **environ: str) -> Took:
    """Run Python with arguments, and return what that took."""
    shown = subprocess.run(
        [sys.executable, "-c", USAGE, sys.executable, *arguments],
        check=True, capture_output=True, text=True, env={**os.environ, **environ},
    )  # fmt: skip
    *output, used = shown.stdout.splitlines()
    wall, cpu, peak = map(float, used.split())
    return Took(wall, cpu, peak / 1e3, "\n".join(output))


def opened_s(page: Path, chromium: str) -> float | None:
    """Return the seconds in which a browser opens a page; None without playwright."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        faults: list[str] = []
        tab.on("console", lambda message: faults.append(message.text))
        tab.on("pageerror", lambda error: faults.append(str(error)))
        began = time.perf_counter()
        tab.goto(page.as_uri(), wait_until="load")
        tab.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        seconds = time.perf_counter() - began
        browser.close()
    if faults:
        print("console:", *faults, sep="\n  ")
    return seconds


class Bench:
    """Measurements as rows of Markdown tables, and bars."""

    def __init__(self, place: Path, workers: int, chromium: str) -> None:
        self.place, self.workers, self.chromium = place, workers, chromium
        self.bars: list[str] = []

    def bar(self, value: float, most: float, words: str) -> None:
        """Note whether a value is within its bar."""
        verdict = "met" if value <= most else "MISSED"
        self.bars.append(f"- {verdict}: {words} (bar {most:g})")

    def written(self, kind: str, calls: int) -> tuple[Written, str]:
        """Write a run, and return it with its row in a table."""
        run = write_record(self.place / str(KINDS.index(kind)), calls, kind, workers=self.workers)
        held = 1e3 * run.longest_turn_s
        self.bar(held, HELD_MS, f"the recorder holds the loop for {held:.0f} ms, {kind}")
        cells = (
            f"{calls:,} | {run.rows:,} | {run.nbytes / 1e6:,.0f} | {1e6 * run.cpu_s / calls:.2f}"
        )
        return run, f"| {kind} | {cells} | {held:.1f} |"

    def read(self, kind: str, run: Written, calls: int) -> Iterator[str]:
        """Yield rows about the readers of a run."""
        runs = str(run.run.parent)
        programs = {name: ["-c", program, runs, str(run.run)] for name, program in PROGRAMS.items()}
        page = self.place / "report.html"
        for options in (["report"], ["report", "--failed"], ["runs"]):
            programs[f"`scalable {' '.join(options)}`"] = ["-c", CLI, *options, "--runs-dir", runs]
        to_page = ["report", "--format", "html", "--runs-dir", runs, "--output", str(page)]
        programs["`scalable report --format html`"] = ["-c", CLI, *to_page]
        for name, arguments in programs.items():
            found = took(*arguments)
            yield _row(name, kind, found)
            if name == "`scalable report`":
                each_s = found.cpu_s * 1e6 / max(run.rows, 1e6)
                words = f"{calls:,} {kind}, {run.rows:,} rows: the summary takes"
                self.bar(each_s, SUMMARY_S, f"{words} {each_s:.1f} CPU s per million rows")
                self.bar(found.peak_mb, SUMMARY_MB, f"{words} {found.peak_mb:.0f} MB")
            elif "html" in name:
                size = page.stat().st_size / 1e6
                yield f"| its size: {size:.2f} MB | {kind} | | | |"
                self.bar(size, SIZE_MB, f"the report of {calls:,} calls has {size:.2f} MB, {kind}")
                most = MADE_S * max(1.0, calls / 1e5)
                made = f"the report of {calls:,} calls takes {found.cpu_s:.1f} CPU s, {kind}"
                self.bar(found.cpu_s, most, made)
                if (opening := opened_s(page, self.chromium)) is not None:
                    self.bar(opening, OPENED_S, f"it opens in {opening:.1f} s")

    def planned(self, kind: str, runs: Path, words: str) -> Iterator[str]:
        """Yield rows about the next plan after runs."""
        manifest = runs / "scalable.yaml"
        names = [f"{tag}-{number}" for tag in TAGS for number in range(3)]
        tasks = ", ".join(f"{name}: {{component: {name.split('-')[0]}}}" for name in names)
        manifest.write_text(MANIFEST.format(tasks=tasks))
        found = took("-c", HISTORY, str(manifest), str(runs))
        seconds, calls = found.output.split()
        told = (
            f"history {words}, {float(seconds):.2f} s without imports, {int(calls):,} calls known"
        )
        yield _row(told, kind, found)
        self.bar(float(seconds), HISTORY_S, f"history {words} in {float(seconds):.2f} s, {kind}")
        plan = ["-c", CLI, "plan", str(manifest)]
        yield _row(f"`scalable plan` {words}", kind, took(*plan, SCALABLE_RUNS_DIR=str(runs)))

    def several(self, kind: str, calls: int, count: int) -> Iterator[str]:
        """Yield rows about the next plan after several runs that have ended in order."""
        runs = self.place / f"several-{KINDS.index(kind)}"
        run = write_record(runs, calls, kind, workers=self.workers).run
        took("-c", PROGRAMS["end of the run: summary and measurements"], str(runs), str(run))
        for number in range(1, count):
            other = runs / f"{run.name[:-4]}{number:04x}"
            shutil.copytree(run, other, copy_function=os.link)
        yield from self.planned(kind, runs, f"after {count} runs of {calls:,}")


def _row(name: str, kind: str, found: Took) -> str:
    return f"| {name} | {kind} | {found.wall_s:.1f} | {found.cpu_s:.1f} | {found.peak_mb:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--runs", type=int, default=20, help="number of smaller runs, 0 for none")
    parser.add_argument("--kinds", type=int, nargs="+", default=range(len(KINDS)))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--keep", type=Path, help="directory in which the runs stay")
    asked = parser.parse_args()
    place = asked.keep or Path(tempfile.mkdtemp())
    try:
        bench = Bench(place, asked.workers, asked.chromium)
        measure(bench, [KINDS[kind] for kind in asked.kinds], asked.calls, asked.runs)
        print("", *bench.bars, sep="\n")
    finally:
        if asked.keep is None:
            shutil.rmtree(place)


def measure(bench: Bench, kinds: Sequence[str], calls: int, runs: int) -> None:
    """Print the tables."""
    print("| record | calls | rows | MB | recorder, CPU µs a call | longest turn ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    written: Mapping[str, Written] = {}
    for kind in kinds:
        run, row = bench.written(kind, calls)
        written = {**written, kind: run}
        print(row, flush=True)
    print("\n| reader | record | s | CPU s | peak MB |\n| --- | --- | --- | --- | --- |")
    for kind, run in written.items():
        planned = bench.planned(kind, run.run.parent, f"after a run of {calls:,}")
        for row in chain(bench.read(kind, run, calls), planned):
            print(row, flush=True)
    if runs:
        for row in bench.several(kinds[0], max(1, calls // 10), runs):
            print(row, flush=True)


if __name__ == "__main__":
    main()
