"""Run the tests on every Python that is found, with the oldest and the newest distributed.

Each combination gets a virtual environment and a log in ``.cache/matrix``, and one line of output.
Arguments go to pytest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".cache" / "matrix"
TELL = "import sys; print(*sys.version_info[:3])"


def interpreters() -> dict[tuple[int, ...], str]:
    """Return the path of an interpreter for each minor version that the package supports.

    Looked for on the PATH and below pyenv's directory; of one minor version the newest counts.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    found = list(map(str, pyenv.glob("versions/3.*/bin/python3")))
    found += filter(None, (shutil.which(f"python3.{minor}") for minor in range(11, 20)))
    newest: dict[tuple[int, ...], tuple[tuple[int, ...], str]] = {}
    for path in found:
        told = subprocess.run([path, "-c", TELL], capture_output=True, text=True, check=False)
        if told.returncode == 0:  # a shim of pyenv fails where its version is not switched on
            version = tuple(map(int, told.stdout.split()))
            newest[version[:2]] = max(newest.get(version[:2], ((), "")), (version, path))
    return {version: path for version, path in sorted(newest.values()) if version >= (3, 11)}


def oldest_requirements() -> list[str]:
    """Return dask and distributed in the oldest versions that ``pyproject.toml`` allows.

    Their dashboards cannot be closed with bokeh 3.10 or newer before distributed 2026.8.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = [re.fullmatch(r"(dask|distributed)>=([\d.]+).*", d) for d in project["dependencies"]]
    return [*(f"{bound[1]}=={bound[2]}" for bound in bounds if bound), "bokeh<3.10"]


def prepare(python: str, directory: Path, requirements: list[str]) -> Path:
    """Make or bring up to date a virtual environment; return its interpreter."""
    ours = directory / "bin" / "python"
    if not ours.exists():
        subprocess.run([python, "-m", "venv", "--clear", directory], check=True)
    pip = [ours, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    subprocess.run([*pip, "pip>=25.1"], check=True)
    install = ["--editable", f"{ROOT}[examples]", "--group", f"{ROOT}/pyproject.toml:test"]
    subprocess.run([*pip, *install, *(requirements or ["dask", "distributed"])], check=True)
    return ours


def run(name: str, python: str, requirements: list[str], arguments: list[str]) -> bool:
    """Run the tests in one combination and print its line."""
    log = PLACE / f"{name}.log"
    began = time.monotonic()
    try:
        ours = prepare(python, PLACE / name, requirements)
    except subprocess.CalledProcessError as error:
        print(f"{name:16} not installed: {error}", flush=True)
        return False
    show = "from importlib.metadata import version; print(version('distributed'))"
    distributed = subprocess.run([ours, "-c", show], capture_output=True, text=True, check=True)
    with log.open("w") as output:
        done = subprocess.run(
            [ours, "-m", "pytest", "-q", *arguments], cwd=ROOT, stdout=output,
            stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    *_, last = log.read_text().splitlines() or ["no output"]
    verdict = "passed" if done.returncode == 0 else f"FAILED, see {log.relative_to(ROOT)}"
    print(
        f"{name:16} distributed {distributed.stdout.strip():10} {verdict}: {last.strip('= ')}"
        f" ({time.monotonic() - began:.0f} s in all)",
        flush=True,
    )
    return done.returncode == 0


def main() -> int:
    """Run every combination; return 1 if one failed."""
    PLACE.mkdir(parents=True, exist_ok=True)
    passed = [
        run(f"{'.'.join(map(str, version))}-{age}", python, requirements, sys.argv[1:])
        for version, python in interpreters().items()
        for age, requirements in (("oldest", oldest_requirements()), ("newest", []))
    ]
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
