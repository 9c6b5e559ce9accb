"""The HTML report of a large run: seconds to make it, its size, and seconds to open it.

    python benchmarks/report.py [--calls 100000] [--workers 200] [--chromium /usr/bin/chromium]

The record is made up: calls of five task names on two pools. Opening is measured in Chromium with
playwright, from the navigation until the page is drawn; without playwright it is left out.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BARS = {"made, s": 10.0, "size, MB": 5.0, "opened, s": 2.0}
START = 1_767_225_600.0


def write_run(directory: Path, calls: int, workers: int) -> Path:
    """Write the record of a run that has ended; return its directory."""
    chance = random.Random(1)
    run = directory / "run-20260101T000000Z-large-0a1b2c3d"
    run.mkdir(parents=True)
    free = [START + chance.random() for _ in range(workers)]
    rows, tags = [], ("model", "post")
    for number in range(calls):
        worker = number % workers
        tag = tags[worker % 2]
        name = f"{tag}-{chance.randrange(3)}"
        length = chance.lognormvariate(0.0, 1.0)
        begin = free[worker]
        free[worker] = end = begin + length + 0.01
        head = {"task_id": f"{name}-{number:x}", "task_name": name, "tag": tag}
        rows.append({**head, "worker": None, "state": "submitted", "timestamp": START})
        where = f"{tag}-{worker}"
        rows.append({**head, "worker": where, "state": "running", "timestamp": begin})
        failed = chance.random() < 0.01
        rows.append(
            {**head, "worker": where, "state": "failed" if failed else "succeeded"}
            | {"timestamp": end, "queued_s": begin - START, "duration_s": length}
            | {"transfer_s": 0.0, "cpu_s": length, "peak_memory": chance.randrange(10**8, 10**9)}
            | {"nbytes": 100, "input_bytes": 0}
        )
    present = [
        {"event": event, "worker": f"{tags[w % 2]}-{w}", "tag": tags[w % 2], "timestamp": moment}
        for w in range(workers)
        for event, moment in (("started", START), ("removed", max(free)))
    ]
    streams = {
        "tasks": rows,
        "workers": present,
        "scaling": [
            {"timestamp": START + 10 * n, "tag": "model", "action": "scale-up", "from": n}
            | {"to": n + 1, "source": "adaptive", "reason": "calls wait"}
            for n in range(500)
        ],
        "failures": [
            {"failure_class": "ValueError", "message": f"bad value {n}", "timestamp": START}
            | {"details": {"traceback": 'File "w.py", line 3, in f\nValueError'}}
            for n in range(calls // 100)
        ],
    }
    for name, content in streams.items():
        lines = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in content)
        (run / f"{name}.jsonl").write_text(lines)
    (run / "run.json").write_text(
        json.dumps(
            {"run_id": run.name, "project": "large", "target": "local", "status": "completed"}
            | {"started_at": "2026-01-01T00:00:00+00:00", "ended_at": "2026-01-01T02:00:00+00:00"}
        )
    )
    return run


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run = write_run(Path(directory) / "runs", options.calls, options.workers)
        page = Path(directory) / "report.html"
        program = "import sys; from scalable.cli.main import main; sys.exit(main())"
        command = [sys.executable, "-c", program, "report", "--format", "html"]
        command += ["--runs-dir", str(run.parent), "--output", str(page)]
        usage = "import resource, sys, subprocess; subprocess.run(sys.argv[1:], check=True); "
        usage += "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
        usage += "print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)"
        began = time.perf_counter()
        shown = subprocess.run(
            [sys.executable, "-c", usage, *command], check=True, capture_output=True, text=True
        )
        wall = time.perf_counter() - began
        cpu, memory = (float(word) for word in shown.stdout.split()[-2:])
        found = {"made, s": wall, "size, MB": page.stat().st_size / 1e6}
        if (opening := opened_s(page, options.chromium)) is not None:
            found["opened, s"] = opening
    for name, value in found.items():
        print(f"{name}: {value:.2f} (bar {BARS[name]:g})")
    print(f"made, CPU-s: {cpu:.2f}; memory, MB: {memory / 1e6:.0f}")


if __name__ == "__main__":
    main()
