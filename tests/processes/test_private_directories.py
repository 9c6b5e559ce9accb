"""Another user of the machine cannot have his modules imported by our processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from python_runs import run_python

NOBODY = 65534

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)

#: Takes the names that Dask uses, before the victim does.
PREPARE = """
umask 0
for name in dask-scratch-space dask-scratch-space-0; do mkdir -m 777 "$1/$name"; done
for name in json colorsys; do echo "raise SystemExit('intruder')" > "$1/$name.py"; done
"""
#: Replaces each directory of others that it may rename, at any depth, by one with a module of its own.
SWAP = """
umask 0
find "$1" -mindepth 1 -depth -type d ! -user nobody 2>/dev/null | while read -r old; do
  mv "$old" "$old.away" 2>/dev/null || continue
  mkdir "$old" && echo "OWNER = 'intruder'" > "$old/colorsys.py"
done
exit 0
"""
#: Where a process gets a module of the standard library from.
LOOK = """
def look(dask_worker=None, dask_scheduler=None):
    import importlib, sys
    sys.modules.pop("colorsys", None)
    importlib.invalidate_caches()
    return importlib.import_module("colorsys").__file__
"""


@pytest.fixture
def shared_tmp() -> Iterator[Path]:
    """Directory like /tmp, for the victim and for another user."""
    path = Path(tempfile.mkdtemp(prefix="shared-", dir="/tmp"))
    path.chmod(0o1777)
    as_other(path, PREPARE)
    yield path
    shutil.rmtree(path)


def as_other(path: Path, script: str) -> None:
    identity = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    subprocess.run(["setpriv", *identity, "sh", "-c", script, "sh", str(path)], check=True)


def run_victim(tmp: Path, home: Path, body: str) -> list[str]:
    """Run a script that calls attack() when its nodes run; return what it prints."""
    attack = textwrap.dedent(
        f"""
        import os, subprocess, sys
        def attack():
            subprocess.run(["setpriv", "--reuid", "{NOBODY}", "--regid", "{NOBODY}",
                "--clear-groups", "sh", "-c", {SWAP!r}, "sh", {str(tmp)!r}], check=True)
        """
    )
    script = home / "victim.py"
    main = 'if __name__ == "__main__":\n' + textwrap.indent(textwrap.dedent(body), "    ")
    script.write_text(LOOK + attack + main)
    env = os.environ | {"TMPDIR": str(tmp), "HOME": str(home), "XDG_STATE_HOME": str(home)}
    done = run_python(str(script), env=env, cwd=home)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def assert_all_from_standard_library(files: list[str], count: int) -> None:
    assert len(files) == count
    for file in files:
        assert Path(file).parent == Path(os.__file__).parent


MANIFEST = """
version: 1
project: {name: private}
targets:
  here: {provider: local, processes: true}
components:
  load: {cpus: 1, workers: 1}
tasks:
  load: {component: load}
"""


def test_a_session_imports_nothing_that_another_user_puts_into_the_shared_directory(
    shared_tmp: Path, tmp_path: Path
) -> None:
    files = run_victim(
        shared_tmp,
        tmp_path,
        """
        from scalable import ScalableSession
        with ScalableSession.local({"load": 1}, processes=True) as client:
            client.submit(int, tag="load").result()
            attack()
            print(look())
            print(client.run_on_scheduler(look))
            print(client.submit(look, tag="load").result())
        print(look())
        """,
    )
    assert_all_from_standard_library(files, 4)


def test_entries_of_dask_classes_import_nothing_of_another_user(
    shared_tmp: Path, tmp_path: Path
) -> None:
    files = run_victim(
        shared_tmp,
        tmp_path,
        """
        from distributed import Client, Nanny, Scheduler, Worker
        from scalable import PoolCluster
        entries = {"w": {"cls": Worker, "options": {}}, "n": {"cls": Nanny, "options": {}}}
        scheduler = {"cls": Scheduler, "options": {"dashboard": False, "port": 0}}
        with PoolCluster(entries, scheduler=scheduler) as cluster, Client(cluster) as client:
            client.wait_for_workers(2)
            attack()
            print(look())
            print(*client.run(look).values())
            workers = client.scheduler_info(-1)["workers"]
            nannies = [address for address, its in workers.items() if its["nanny"]]
            print(*client.run(look, nanny=True, workers=nannies).values())
        print(look())
        left = [p for p in sys.path if "scalable-node" in p]
        assert not left, left
        """,
    )
    assert_all_from_standard_library(files, 5)


def test_programs_that_start_in_a_shared_directory_import_nothing_from_it_and_leave_nothing(
    shared_tmp: Path, tmp_path: Path
) -> None:
    before = set(shared_tmp.iterdir())
    files = run_victim(
        shared_tmp,
        tmp_path,
        """
        os.chdir(os.environ["TMPDIR"])
        from scalable import ScalableSession
        from scalable.providers.local import fork_server, launcher
        with ScalableSession.local({"load": 1}, processes=True) as client:
            print(client.submit(look, tag="load").result())
        launcher.supported = fork_server.supported = lambda: False
        with ScalableSession.local({"load": 1}, processes=True) as client:
            print(client.submit(look, tag="load").result())
        """,
    )
    assert_all_from_standard_library(files, 2)
    assert set(shared_tmp.iterdir()) - before == {shared_tmp / ".scalable"}  # the record


def test_a_detached_cluster_imports_nothing_of_another_user(
    shared_tmp: Path, tmp_path: Path
) -> None:
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    files = run_victim(
        shared_tmp,
        tmp_path,
        """
        import scalable
        os.chdir(os.environ["TMPDIR"])
        manifest = os.path.join(os.environ["HOME"], "scalable.yaml")
        verb = [sys.executable, "-P", "-m", "scalable"]
        quiet = {"check": True, "stdout": subprocess.DEVNULL}
        subprocess.run([*verb, "up", manifest, "--name", "victim", "--target", "here"], **quiet)
        try:
            with scalable.connect("victim") as client:
                client.submit(int, tag="load").result()
                attack()
                print(client.run_on_scheduler(look))
                print(client.submit(look, tag="load").result())
        finally:
            subprocess.run([*verb, "down", "victim", "--yes"], **quiet)
        """,
    )
    assert_all_from_standard_library(files, 2)
