"""All tables about scaling and plans in one run.

    python benchmarks/decisions.py --traces DIRECTORY

DIRECTORY contains traces in WfFormat 1.5, for example from github.com/wfcommons/WfInstances. One
after the other: scores of the scaling policies (``scaling.py``); reliability of plans
(``calibration.py``).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="directory of traces")
    traces = str(parser.parse_args().traces)
    tables = {"scaling.py": ["--traces", traces, "--seeds", "1"], "calibration.py": [traces]}
    began = time.monotonic()
    for script, arguments in tables.items():
        print(f"\n=== {script} ===", flush=True)
        subprocess.run([sys.executable, str(HERE / script), *arguments], check=True)
    print(f"\nall tables in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
