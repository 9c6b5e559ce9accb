"""A detached cluster at the end of a night is as after ten minutes, and no task is lost or doubled.

``SCALABLE_NIGHT_MINUTES`` sets the length (default 60), ``SCALABLE_NIGHT_SEED`` what happens. One
cluster with adaptive pools lives all the time. Client processes come and go, some by kill -9; calls
fail, are cancelled, and kill their workers; counts are set by hand; workers are killed; other
clusters are put up and down. What the processes of the cluster keep is counted once after a share of
the time and once at the end, both times at rest.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import process_census
import pytest
from kept_at_rest import Kept, ours_in_temporary
from night_calls import KILLED, MARKS, PARENTS, note

from detached import nothing_is_left, processes_of
from scalable.records import find
from verbs import garbage, listed, program, status, up

MINUTES = float(os.environ.get("SCALABLE_NIGHT_MINUTES", "60"))
#: Share of the time after which the processes are counted for the first time.
WARM_UP = 1 / 6
#: Seconds after which a client that has not ended counts as stuck.
STUCK_S = 300.0
#: Seconds without clients before the processes are counted: idle connections end meanwhile.
REST_S = 10.0
MOST_CLIENTS = 2
#: Most bytes that the programs of the cluster log in a minute.
LOGGED_PER_MINUTE = 20_000

MANIFEST = """\
version: 1
project: {name: night}
targets:
  local: {provider: local, processes: true, max_workers: 6, adaptive: {minimum: 1, maximum: 5}}
components:
  a: {cpus: 1, memory: 500M, workers: {minimum: 1, maximum: 3}}
  b: {cpus: 1, memory: 500M, workers: 1}
tasks:
  leaf: {component: a, duration: 100ms}
"""
#: Dask's logs grow until they are full, and its events until they are dropped; that shall be soon.
SHORT_LOGS = {
    "DASK_DISTRIBUTED__ADMIN__LOG_LENGTH": "5",
    "DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": "5",
    "DASK_DISTRIBUTED__DIAGNOSTICS__COMPUTATIONS__MAX_HISTORY": "5",
    "DASK_DISTRIBUTED__DIAGNOSTICS__ERRED_TASKS__MAX_HISTORY": "5",
    "DASK_DISTRIBUTED__SCHEDULER__EVENTS_CLEANUP_DELAY": "5s",
}
CLIENT = Path(__file__).with_name("night_client.py")


@dataclass
class Night:
    """What happens, and what is known of it."""

    place: Path
    chance: random.Random
    clients: dict = field(default_factory=dict)
    killed_clients: set = field(default_factory=set)
    started: int = 0
    killed_at: float = 0.0
    acts: Counter = field(default_factory=Counter)

    def act(self):
        """Do one thing, chosen at random."""
        self.ended()
        ways = [self.start_client] * 6 + [self.kill_client, self.kill_worker, self.scale] * 2
        self.chance.choice([*ways, self.other_cluster])()

    def ended(self):
        """Look at the clients that have ended."""
        for identity, (process, began) in list(self.clients.items()):
            if process.poll() is not None:
                del self.clients[identity]
                log = (self.place / f"client-{identity}.log").read_text()
                if process.returncode == 0:  # perhaps in the moment in which it was killed
                    self.killed_clients.discard(identity)
                killed = identity in self.killed_clients
                assert process.returncode == (-signal.SIGKILL if killed else 0), log
            assert time.monotonic() - began < STUCK_S, f"client {identity} does not end"

    def start_client(self):
        if len(self.clients) >= MOST_CLIENTS:
            return
        self.started += 1
        command = [sys.executable, str(CLIENT), "night", str(self.place), str(self.started)]
        with (self.place / f"client-{self.started}.log").open("w") as log:
            process = subprocess.Popen(
                [*command, str(self.chance.randint(2, 20))], stdout=log, stderr=log
            )
        self.clients[self.started] = (process, time.monotonic())
        self.acts["clients"] += 1

    def kill_client(self):
        if self.clients and self.chance.random() < 0.5:
            identity = self.chance.choice(list(self.clients))
            self.clients[identity][0].kill()
            self.killed_clients.add(identity)
            self.acts["killed clients"] += 1

    def kill_worker(self):
        """Kill a worker, not so often that its pool seems to be in a crash loop."""
        workers = self.workers()
        if workers and time.monotonic() - self.killed_at > 20:
            self.killed_at = time.monotonic()
            victim = self.chance.choice(workers)
            note(self.place, KILLED, victim.pid)
            victim.kill()
            self.acts["killed workers"] += 1

    def workers(self):
        path = str(find("night").path)
        return [
            process
            for process in processes_of(self.place, "scalable.worker.program")
            if path in " ".join(process.info["cmdline"])
        ]

    def scale(self):
        done = program("scale", "night", f"b={self.chance.randint(1, 2)}")
        assert done.returncode == 0, done.stderr
        self.acts["scaled"] += 1

    def other_cluster(self):
        """Put another cluster up, use it, and put it down; sometimes after a kill."""
        self.acts["other clusters"] += 1
        name = f"other-{self.acts['other clusters']}"
        up("--name", name)
        victim = self.chance.choice(
            ["", "", "scalable.clusters.programs.manager", "scalable.worker.program"]
        )
        path = str(find(name).path)
        for process in processes_of(self.place, victim) if victim else ():
            if path in " ".join(process.info["cmdline"]):
                process.kill()
        assert program("down", name, "--yes").returncode == 0
        assert name not in listed()
        assert not [p for p in processes_of(self.place) if path in " ".join(p.info["cmdline"])]
        assert not Path(path).exists()

    # Rest -------------------------------------------------------------------------------------

    def rest(self, eventually):
        """Wait until nothing happens."""

        def over():
            self.ended()
            return not self.clients

        eventually(over, "the clients to end", timeout=STUCK_S)
        self.acts["scaled"] += 1
        assert program("scale", "night", "b=1").returncode == 0

        def at_rest():
            pools = status("night")["pools"]
            counts = {tag: (pool["wanted"], pool["running"]) for tag, pool in pools.items()}
            return counts == {"a": (1, 1), "b": (1, 1)} and len(self.workers()) == 2

        eventually(at_rest, "rest", timeout=STUCK_S)
        time.sleep(REST_S)

    def workers_started(self):
        """Return the number of workers that the manager has requested."""
        run = Path(find("night").scheduler()["run"])
        rows = map(json.loads, (run / "workers.jsonl").read_text().splitlines())
        return sum(row["event"] == "requested" for row in rows)

    def calls(self):
        """Return the number of tasks that have left a mark."""
        return len((self.place / MARKS).read_text().splitlines())


# Calls ------------------------------------------------------------------------------------------


def faults_of_calls(night):
    """Compare the marks with what clients have sent and received; return what differs, as text."""
    marks, faults = {}, []
    for line in (night.place / MARKS).read_text().splitlines():
        number, pid = line.split()
        marks.setdefault(int(number), []).append(pid)
    killed = set((night.place / KILLED).read_text().split())
    must, may = set(), set()
    for file in night.place.glob("client-*[0-9]"):
        words = {"sent": set(), "may": set(), "done": set()}
        for line in file.read_text().splitlines():
            word, *numbers = line.split()
            words[word].update(map(int, numbers))
        gone = int(file.name.partition("-")[2]) in night.killed_clients
        if not gone and words["sent"] != words["done"]:
            faults.append(f"{file.name}: without a result: {words['sent'] ^ words['done']}")
        must |= words["done"]
        may |= words["may"] | words["sent"]
    if lost := must - set(marks):
        faults.append(f"lost calls: {sorted(lost)}")
    if unknown := set(marks) - must - may:
        faults.append(f"unknown tasks: {sorted(unknown)}")
    # The calls of a call run again with it, if its worker was killed before its end was known.
    again = Counter()
    for line in (night.place / PARENTS).read_text().splitlines():
        pid, *numbers = line.split()
        again.update(map(int, numbers) if pid in killed else ())
    doubled = {
        number: pids
        for number, pids in marks.items()
        if len([p for p in pids if p not in killed]) > 1 + again[number]
    }
    if doubled:
        faults.append(f"calls that ran more than once although no worker was killed: {doubled}")
    return faults


@pytest.fixture
def night(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path / "runs"))
    for name, value in SHORT_LOGS.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "scalable.yaml").write_text(MANIFEST)
    (tmp_path / "census").mkdir()
    for name in (MARKS, KILLED, PARENTS):
        (tmp_path / name).touch()
    code = tmp_path / "code"
    code.mkdir()
    (code / "sitecustomize.py").write_text(Path(process_census.__file__).read_text())
    monkeypatch.setenv("PYTHONPATH", f"{code}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv(process_census.DIRECTORY, str(tmp_path / "census"))
    seed = os.environ.get("SCALABLE_NIGHT_SEED") or str(random.randrange(10**6))
    print(f"seed {seed}")
    found = Night(tmp_path, random.Random(seed))
    yield found
    for process, _ in found.clients.values():
        process.kill()
        process.wait()
    for process in processes_of(tmp_path):
        process.kill()


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 6 * STUCK_S)
def test_a_cluster_is_at_the_end_of_a_night_as_after_ten_minutes(night, eventually):
    up("--name", "night")
    for _ in range(3):  # the first censuses take memory that stays, 27 MB in an idle scheduler
        Kept.by("night", night.place, 1)
    began, first = time.monotonic(), None
    while time.monotonic() - began < 60 * MINUTES:
        night.act()
        time.sleep(night.chance.uniform(0.5, 3))
        if first is None and time.monotonic() - began > 60 * MINUTES * WARM_UP:
            night.rest(eventually)
            first = Kept.by("night", night.place, night.calls())
    night.rest(eventually)
    last = Kept.by("night", night.place, night.calls())
    print(f"{dict(night.acts)}, {first.calls} -> {last.calls} calls, {last.programs}")
    for name, process in last.processes.items():
        print(f"{name}: {first.processes[name]} -> {process}")
    records = {file: size for file, size in last.run.items() if not file.startswith("logs/")}
    print(f"logged in a minute: {last.logged_per_minute(first):.0f} bytes; records: {records}")
    faults = faults_of_calls(night) + last.grown(first, night.workers_started())
    if last.logged_per_minute(first) >= LOGGED_PER_MINUTE:
        faults.append("logs")
    assert not faults, "\n".join(faults)
    assert program("down", "night", "--yes").returncode == 0
    nothing_is_left(night.place)
    assert garbage() == []
    assert ours_in_temporary() == []
