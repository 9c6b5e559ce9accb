"""The verbs for clusters that run: list, status, scale, connect, down, prune, manager."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from fabricated import ADDRESS, ID, STATUS, pool
from scalable.cli.clusters import render_status
from scalable.clusters import control, discovery, resuming
from scalable.clusters.ending import Remains
from scalable.errors import ClusterError, UnknownClusterError
from scalable.liveness import identify_process
from scalable.model import ClusterStatus
from scalable.providers.local import LocalProvider
from scalable.records import ClusterDirectory, find, read_access_file

OTHER = "ffffffff-1111-4222-8333-444455556666"
ROW = {
    "name": "one",
    "id": ID,
    "provider": "local",
    "target": "local",
    "state": "running",
    "address": ADDRESS,
    "dashboard": None,
    "owner": "me",
    "created_at": "2026-01-01T00:00:00+00:00",
    "pools": STATUS["pools"],
    "managers": STATUS["managers"],
    "embedded": False,
    "orphan": False,
    "reason": None,
    "ends_at": None,
    "idle_ends_at": None,
    "cost": None,
    "adaptive": {},
    "tasks": None,
}


@pytest.fixture
def plugins(monkeypatch):
    """Plug-ins for Dask's tools that are installed."""
    points = []
    monkeypatch.setattr(discovery, "entry_points", lambda group: points)
    monkeypatch.setattr(discovery, "PLUGIN_TIMEOUT_S", 1.5)

    def add(name, load):
        points.append(SimpleNamespace(name=name, value=f"{name}:discover", load=load))

    return add


@pytest.fixture
def terminal(monkeypatch):
    """Somebody who answers."""

    def answer(word):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
        monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: word)

    return answer


# list and status -----------------------------------------------------------------------------------


def test_the_list_for_programs(invoke, recorded):
    recorded()
    result = invoke("list", "--format", "json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == {"version": 1, "clusters": [ROW], "errors": []}


def test_the_list_for_people(invoke, recorded, monkeypatch):
    assert invoke("list").out == "no clusters\n"
    now = datetime(2026, 1, 1, 2, 7, tzinfo=UTC).timestamp()
    monkeypatch.setattr("scalable.cli.clusters.time", SimpleNamespace(time=lambda: now))
    recorded()
    recorded("a cluster of another", uuid=OTHER, running=False, embedded=True, stage="creating")
    result = invoke("list")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "  name                  kind      provider  state     workers  id             age\n"
        "  one                   detached  local     running       2/3  0f0e0d0c  2 h 07 m\n"
        "  a cluster of another  embedded  local     creating      0/3  ffffffff  2 h 07 m\n"
    )
    assert invoke("list", "--format", "quiet").out == ""


def test_plug_ins_that_fail_are_named_and_the_rows_are_there(invoke, recorded, plugins):
    async def works():
        yield "theirs", object

    recorded()
    over = threading.Event()
    plugins("bad", lambda: 1 / 0)
    plugins("tar", over.wait)
    plugins("good", lambda: works)
    failures = [
        "dask_cluster_discovery plug-in 'bad': ZeroDivisionError: division by zero",
        "dask_cluster_discovery plug-in 'tar': no answer within 1.5 s",
    ]
    result = invoke("list")
    assert (result.code, result.err.splitlines()) == (3, failures)
    assert [line.split()[0] for line in result.out.splitlines()] == ["name", "one", "theirs"]
    result = invoke("list", "--format", "json")
    value = json.loads(result.out)
    assert (result.code, result.err, value["errors"]) == (3, "", failures)
    assert [row["name"] for row in value["clusters"]] == ["one", "theirs"]
    result = invoke("list", "--format", "quiet")
    assert (result.code, result.out, result.err.splitlines()) == (3, "", failures)
    over.set()


def test_a_file_that_others_can_read_costs_one_row(invoke, recorded):
    recorded()
    (recorded("two", uuid=OTHER).path / "status.json").chmod(0o644)
    result = invoke("list", "--format", "json")
    value = json.loads(result.out)
    assert (result.code, [row["name"] for row in value["clusters"]]) == (3, ["one"])
    assert f"{OTHER}/status.json is accessible to other users" in value["errors"][0]


PLUGIN = """\
import asyncio, threading

async def discover():
    await asyncio.to_thread(threading.Event().wait)
    yield "never", object
"""


LISTING = """\
import sys
from scalable.cli.main import main
from scalable.clusters import discovery
discovery.PLUGIN_TIMEOUT_S = 1.0
sys.exit(main())
"""


def test_a_plug_in_that_hangs_in_a_thread_of_its_own_does_not_hold_the_program(tmp_path, recorded):
    recorded()
    (tmp_path / "tarpit.py").write_text(PLUGIN)
    installed = tmp_path / "tarpit-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: tarpit\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(
        "[dask_cluster_discovery]\ntarpit = tarpit:discover\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", LISTING, "list", "--format", "json"],
        capture_output=True, env=environment, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 3
    told = json.loads(result.stdout)
    assert [row["name"] for row in told["clusters"]] == ["one"]
    assert told["errors"] == ["dask_cluster_discovery plug-in 'tarpit': no answer within 1 s"]


def test_a_status_for_programs(invoke, recorded):
    recorded()
    for name in ("one", "local/one", ID, ID[:4]):
        result = invoke("status", name, "--format", "json")
        assert (result.code, json.loads(result.out)) == (0, {"version": 1, **ROW})


@pytest.mark.parametrize(
    ("idle", "live", "shown"),
    [
        (60, None, "in 1 m 00 s unless it gets work"),
        (60, 3000, "in 1 m 00 s unless it gets work, in 50 m 00 s at the latest"),
        (3000, 60, "in 1 m 00 s at the latest"),
        (None, 60, "in 1 m 00 s at the latest"),
    ],
)
def test_a_status_has_the_times_when_a_cluster_ends(
    invoke, recorded, monkeypatch, idle, live, shown
):
    now = time.time()
    ends = {"idle_ends_at": idle and now + idle, "ends_at": live and now + live}
    recorded(status=ends)
    monkeypatch.setattr("scalable.cli.clusters.time", SimpleNamespace(time=lambda: now))
    assert f"Stops:     {shown}\n" in invoke("status", "one").out


def test_a_busy_cluster_does_not_stop_soon_and_has_the_link_of_its_dashboard():
    tasks = {"running": 1, "queued": 0, "blocked": 2, "done": 7}
    link, ends = "http://127.0.0.1:8787/status?token=t", time.time() + 60
    told = {"name": "one", "state": "running", "dashboard": link, "idle_ends_at": ends}
    idle = ClusterStatus(id=ID, provider="local", target="local", **told)
    shown = render_status(replace(idle, tasks=tasks))
    assert "Stops:" not in shown
    assert "Stops:" in render_status(idle)
    assert "Tasks:     1 running, 2 blocked, 7 done; see `scalable top one`\n" in shown
    assert "Dashboard: http://127.0.0.1:8787/scalable/?token=t\n" in shown


def test_a_status_for_people(invoke, recorded):
    ends = time.time() + 599.5
    recorded(status={"idle_ends_at": ends, "state": "degraded", "reason": "model lacks 1 worker"})
    assert invoke("status", "one").out == (
        f"Cluster:   one ({ID})\n"
        "State:     degraded: model lacks 1 worker\n"
        "Target:    local (provider local)\n"
        f"Address:   {ADDRESS}\n"
        "Stops:     in 9 m 59 s unless it gets work\n"
        "\n"
        "  pool      desired  running  starting\n"
        "  model           2        1         1\n"
        "  analysis        1        1         0\n"
        "  model: Priority\n"
        "\n"
        "  manager  target  state     priority\n"
        "  local    local   attached         0\n"
    )


def test_what_the_last_workers_waited_for_is_not_shown_once_all_run(invoke, recorded):
    counts = {"model": pool(2, 2, waiting="its process starts")}
    recorded(status={"pools": counts})
    assert "its process starts" not in invoke("status", "one").out


def test_a_status_shows_workers_that_were_lost(invoke, recorded):
    counts = {"model": pool(2, 2, lost=3, last_loss="model-1: it was killed by SIGKILL")}
    recorded(status={"pools": counts})
    shown = "  model: 3 workers lost; the last, model-1: it was killed by SIGKILL\n"
    assert shown in invoke("status", "one").out


def test_a_session_that_was_killed_is_listed_no_more_when_nothing_is_left_of_it(
    invoke, recorded, monkeypatch
):
    gone = {**identify_process(), "pid": 2**22 + 5}
    kept = recorded()
    killed = recorded("killed", uuid=OTHER, embedded=True, creator=gone)
    listed = json.loads(invoke("list", "--format", "json").out)["clusters"]
    assert [row["name"] for row in listed] == ["one"]
    assert (kept.path.exists(), killed.path.exists()) == (True, False)


def test_a_session_that_was_killed_is_listed_while_its_workers_run(invoke, recorded, monkeypatch):
    gone = {**identify_process(), "pid": 2**22 + 5}
    recorded("killed", uuid=OTHER, embedded=True, creator=gone)
    monkeypatch.setattr(LocalProvider, "discover", lambda self: [{"id": OTHER}])
    listed = json.loads(invoke("list", "--format", "json").out)["clusters"]
    assert [(row["name"], row["state"]) for row in listed] == [("killed", "failed")]


def test_a_scheduler_that_is_gone_is_failed(invoke, recorded):
    directory = recorded()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    directory.write_scheduler({**directory.scheduler(), "pid": child.pid})
    value = json.loads(invoke("status", "one", "--format", "json").out)
    assert (value["state"], value["reason"]) == ("failed", "its scheduler no longer runs")
    assert value["pools"]["model"]["running"] == 0


@pytest.mark.parametrize(
    "verb", ["status", "scale", "logs", "connect", "dashboard", "manager restart"]
)
def test_names_that_mean_none_or_several(verb, invoke, recorded):
    more = ("model=1",) if verb == "scale" else ()
    words = verb.split()
    recorded()
    recorded(uuid=OTHER, provider="slurm", embedded=True)
    result = invoke(*words, "two", *more)
    assert (result.code, result.out) == (5, "")
    more_of_logs = "; the logs of a stopped cluster are in logs/ of its run's record"
    there_are = "known clusters: one" + (more_of_logs if verb == "logs" else "")
    assert result.err == f"error: there is no cluster 'two'\n  hint: {there_are}\n"
    result = invoke(*words, "one", *more)
    assert result.code == 5
    assert "'one' may be any of local/one (0f0e0d0c), slurm/one (ffffffff)" in result.err
    assert "give provider/name or the id" in result.err


@pytest.mark.parametrize("verb", ["status", "explain"])
@pytest.mark.parametrize("moment", ["once found", "while asked"])
def test_a_cluster_that_ends_while_it_is_read(verb, moment, invoke, recorded, monkeypatch):
    directory = recorded()

    def found(name):
        one = find(name)
        directory.remove()
        return one

    def asked(*_):
        directory.remove()
        raise ConnectionRefusedError

    if moment == "once found":
        monkeypatch.setattr({"status": discovery, "explain": control}[verb], "find", found)
    else:
        monkeypatch.setattr(control, "ask_at", asked)
    result = invoke(verb, "one")
    assert (result.code, result.out) == (UnknownClusterError.exit_code, "")
    assert result.err == "error: cluster 'one' has just ended\n"


def test_shells_complete_the_names_of_clusters(recorded, complete):
    recorded("climate")
    recorded("clouds", uuid=OTHER)
    names = ["plain,climate", "plain,clouds"]
    for verb in ("status", "down", "logs", "connect", "manager restart", "scale", "manager attach"):
        assert complete(f"scalable {verb} cl") == names, verb
    assert complete("scalable run --cluster cli") == names[:1]
    assert complete("scalable manager attach bun") == ["file,bun"]


# Without a name ------------------------------------------------------------------------------------

WITHOUT_NAME = (["status"], ["explain"], ["dashboard"], ["logs"], ["scale", "model=1"])


@pytest.fixture
def scaled(monkeypatch):
    """Names and counts that were requested."""
    asked = []
    monkeypatch.setattr(
        "scalable.cli.commands.clusters.scale",
        lambda name, counts: asked.append((name, counts)) or ({}, counts),
    )
    return asked


def test_the_only_cluster_needs_no_name(invoke, recorded, scaled):
    recorded()
    assert invoke("status") == invoke("status", "one")
    assert invoke("logs") == invoke("logs", "one")
    assert invoke("scale", "model=0", "analysis=4").code == 0
    assert invoke("scale", "--", "one", "model=0").code == 0
    assert scaled == [("one", {"model": 0, "analysis": 4}), ("one", {"model": 0})]
    assert "'one'" in invoke("dashboard").err
    assert "name the cluster to delete" in invoke("down").err


@pytest.mark.parametrize("words", WITHOUT_NAME, ids=" ".join)
def test_several_clusters_need_a_name(words, invoke, recorded, scaled):
    recorded("two")
    recorded(uuid=OTHER)
    result = invoke(*words)
    assert (result.code, result.out, scaled) == (5, "", [])
    assert result.err == "error: there are 2 clusters: one, two\n  hint: name one of them\n"


@pytest.mark.parametrize("words", [w for w in WITHOUT_NAME if w != ["logs"]], ids=" ".join)
def test_no_cluster_is_an_error(words, invoke):
    result = invoke(*words)
    assert (result.code, result.out) == (5, "")
    assert "no cluster is running\n  hint: start one with `scalable up`\n" in result.err


def test_the_running_cluster_is_meant_before_one_that_failed(invoke, recorded):
    failed = recorded("failed")
    failed.write_scheduler({**failed.scheduler(), "pid": 2**22 + 5})
    assert "State:     failed" in invoke("status").out
    recorded(uuid=OTHER)
    assert invoke("status").out.startswith("Cluster:   one ")


def test_a_pool_that_does_not_exist_is_refused_before_anything_else(invoke, recorded):
    recorded(max_workers=2)
    refused = invoke("scale", "one", "nope=3")
    assert (refused.code, refused.out) == (5, "")
    assert "cluster 'one' has no pool 'nope'" in refused.err
    assert "known pools: 'analysis', 'model'" in refused.err


# scale, connect -----------------------------------------------------------------------------------


def test_counts_are_sent_and_shown(invoke, monkeypatch, recorded):
    recorded()
    asked = []

    def scale(name, counts):
        asked.append((name, counts))
        return {"model": 2, "analysis": 1}, {"model": 0, "analysis": 4}

    monkeypatch.setattr("scalable.cli.commands.clusters.scale", scale)
    result = invoke("scale", "one", "model=0", "analysis=4")
    assert (result.code, result.out) == (0, "model: 2 -> 0\nanalysis: 1 -> 4\n")
    assert asked == [("one", {"model": 0, "analysis": 4})]
    assert json.loads(invoke("scale", "one", "model=0", "--format", "json").out) == {
        "version": 1,
        "before": {"model": 2, "analysis": 1},
        "after": {"model": 0, "analysis": 4},
    }


@pytest.mark.parametrize(
    "count", ["model", "model=", "model=-1", "=3", "model=2.5", "model=\u0661"]
)
def test_invalid_counts_are_refused(count, invoke, recorded):
    recorded()
    result = invoke("scale", "one", "--", count)
    assert result.code == 2
    assert f"{count!r} is not a count: write tag=n, for example climate=3" in result.err


@pytest.mark.parametrize("number", ["100001", "1" + 20 * "0", 5000 * "9"])
def test_counts_beyond_the_largest_are_refused(number, invoke, recorded):
    recorded()
    result = invoke("scale", "one", f"model={number}")
    assert result.code == 2
    assert "is too large: the largest is 100,000" in result.err


def test_two_counts_for_one_tag(invoke):
    assert "'model=2': 'model' is given twice" in invoke("scale", "x", "model=1", "model=2").err
    assert "'model=2': 'model' is given twice" in invoke("scale", "model=1", "model=2").err


def test_a_scheduler_that_does_not_answer(invoke, recorded):
    recorded(running=False)
    result = invoke("scale", "one", "model=1")
    assert (result.code, result.out) == (5, "")
    assert "the scheduler of cluster 'one' does not listen yet" in result.err
    assert "`scalable status one` shows its state" in result.err


def test_connect_prints_code_to_paste(invoke, recorded):
    recorded()
    result = invoke("connect", "one")
    assert (result.code, result.err) == (0, "")
    assert "client = scalable.connect('one')" in result.out
    assert f"client = Client({ADDRESS!r})" in result.out
    assert "key" not in result.out
    value = json.loads(invoke("connect", "one", "--format", "json").out)
    assert value == {"version": 1, "address": ADDRESS, "dashboard": None, "snippet": result.out}


def test_an_access_file_is_for_its_owner_alone(invoke, recorded, tmp_path):
    recorded()
    file = tmp_path / "one.access"
    result = invoke("connect", "one", "--export", file)
    assert (result.code, result.out) == (0, f"wrote {file}: keep it secret\n")
    assert file.stat().st_mode & 0o777 == 0o600
    access = read_access_file(file)
    assert (access.name, access.address, access.pem["tls_client_key"]) == (
        "one",
        ADDRESS,
        "-----BEGIN key",
    )
    result = invoke("connect", "one", "--export", tmp_path / "missing" / "file")
    assert result.code == 1
    assert "missing/file" in result.err
    assert "No such file or directory" in result.err


@pytest.mark.parametrize(
    ("more", "message"),
    [({"running": False}, "does not listen yet"), ({"embedded": True}, "runs in process")],
)
def test_connecting_to_an_unreachable_cluster_says_why(more, message, invoke, recorded):
    recorded(**more)
    result = invoke("connect", "one")
    assert (result.code, result.out) == (5, "")
    assert message in result.err


def test_credentials_that_others_can_read_are_refused_by_name(invoke, recorded):
    (recorded().path / "tls" / "key.pem").chmod(0o640)
    result = invoke("connect", "one")
    assert (result.code, result.out) == (5, "")
    assert f"{ID}/tls/key.pem is accessible to other users (mode 640)" in result.err


# down, manager restart, prune ----------------------------------------------------------------------


@pytest.fixture
def ended(monkeypatch):
    """Ids of the clusters that were ended."""
    ids = []
    monkeypatch.setattr("scalable.cli.commands.clusters.end", lambda name: ids.append(name) or True)
    return ids


def test_down_of_what_is_gone_is_fine(invoke, recorded):
    recorded("two")
    result = invoke("down", "one")
    assert (result.code, result.err) == (0, "")
    assert result.out == "there is no cluster 'one' (known clusters: two): nothing to do\n"
    value = json.loads(invoke("down", "one", "--yes", "--format", "json").out)
    assert value == {"version": 1, "name": "one", "id": None, "ended": False}


def test_down_asks(invoke, recorded, ended, terminal):
    recorded()
    nobody = invoke("down", "one")
    assert nobody.code == 2
    assert (
        "Delete cluster 'one' (running, 2 workers)? Standard input is not a terminal: confirm with "
        "--yes" in (nobody.err)
    )
    terminal("n")
    assert invoke("down", "one").code == 130
    assert ended == []
    terminal("y")
    result = invoke("down", "one")
    assert (result.code, result.out, ended) == (0, "cluster 'one' was deleted\n", [ID])
    result = invoke("down", "one", "--yes", "--format", "json")
    assert json.loads(result.out) == {"version": 1, "name": "one", "id": ID, "ended": True}


def test_down_of_one_that_failed_clears_it_away(invoke, recorded):
    child = subprocess.Popen([sys.executable, "-c", ""])
    directory = recorded()
    directory.write_scheduler({**directory.scheduler(), "pid": child.pid})
    child.wait()
    assert invoke("down", "one", "--yes").code == 0
    assert not directory.path.exists()
    assert invoke("down", "one", "--yes").code == 0


def test_scale_says_that_a_pool_no_longer_follows_its_load(invoke, monkeypatch, recorded):
    recorded(status={"adaptive": {"model": [0, 5]}})
    monkeypatch.setattr(
        "scalable.cli.commands.clusters.scale",
        lambda name, counts: ({"model": 2, "analysis": 1}, counts),
    )
    assert invoke("scale", "one", "model=3", "analysis=2").out == (
        "model: 2 -> 3; it no longer follows its load\nanalysis: 1 -> 2\n"
    )


@pytest.mark.parametrize("option", ["max_workers", "at_most"])
def test_counts_beyond_the_targets_limit_are_asked_about(invoke, monkeypatch, recorded, option):
    recorded(max_workers=4, limited_by=option)
    asked = []
    monkeypatch.setattr(
        "scalable.cli.commands.clusters.scale",
        lambda name, counts: asked.append(counts) or ({}, counts),
    )
    refused = invoke("scale", "one", "model=4")
    assert (refused.code, asked) == (2, [])
    assert f"A total of 5 workers exceeds {option} 4. Start them?" in refused.err
    assert invoke("scale", "one", "model=3").code == 0
    assert invoke("scale", "one", "model=4", "--yes").code == 0
    assert asked == [{"model": 3}, {"model": 4}]


def test_a_lost_manager_that_was_attached_by_hand_is_named(invoke, monkeypatch, recorded):
    lost = {"id": "extra", "target": "night", "state": "lost", "priority": 0}
    recorded(status={"managers": [lost]})
    monkeypatch.setattr(resuming, "restart_managers", lambda name: [])
    result = invoke("manager", "restart", "one")
    assert result.out == "no manager could be started from here\n"
    assert "`scalable manager attach one --id extra`" in result.err


def test_manager_restart_says_what_it_started(invoke, monkeypatch, recorded):
    recorded()
    monkeypatch.setattr(resuming, "restart_managers", lambda name: ["local", "hpc"])
    monkeypatch.setattr(resuming, "reports", lambda _, manager, restarted: manager == "local")
    result = invoke("manager", "restart", "one")
    assert result.out == "started manager local, hpc\n"
    assert "manager 'hpc' has not reported yet: see `scalable logs one`" in result.err
    assert "'local'" not in result.err
    value = json.loads(invoke("manager", "restart", "one", "--format", "json").out)
    assert value == {"version": 1, "started": ["local", "hpc"]}
    monkeypatch.setattr(resuming, "restart_managers", lambda name: [])
    assert invoke("manager", "restart", "one").out == "all managers are running\n"


@pytest.fixture
def remains(monkeypatch):
    """Remains of clusters that are found, and those that were removed."""
    found, removed = [], []

    def prune(*, dry_run, warn, approve):
        if not dry_run:
            approve(found)
            removed.extend(found)
        return found

    monkeypatch.setattr("scalable.cli.commands.clusters.prune", prune)
    return found, removed


def test_prune_shows_and_asks_before_it_removes(invoke, remains, terminal):
    found, removed = remains
    found.append(Remains("stale", "one", ID, "remove the record; no process is touched"))
    line = f"  stale    one ({ID[:8]}): remove the record; no process is touched\n"
    dry = invoke("prune", "--dry-run", "--yes")
    assert (dry.code, dry.out, dry.err) == (0, f"would be removed:\n{line}", "")
    nobody = invoke("prune")
    assert (nobody.code, nobody.out) == (2, "")
    assert nobody.err.startswith(
        f"would be removed:\n{line}error: Remove the remains of 1 cluster?"
    )
    assert "not a terminal: confirm with --yes. Nothing was removed.\n" in nobody.err
    terminal("n")
    assert invoke("prune").code == 130
    assert removed == []
    terminal("y")
    asked = invoke("prune")
    assert (asked.code, asked.out, removed) == (0, f"removed:\n{line}", found)
    assert f"would be removed:\n{line}" in asked.err
    sure = invoke("prune", "--yes")
    assert (sure.out, sure.err) == (f"removed:\n{line}", "")


def test_prune_for_programs(invoke, remains):
    row = {"kind": "stale", "name": "one", "id": ID, "action": "end it", "error": None}
    remains[0].append(Remains(**row))
    for option, done in (("--dry-run", False), ("--yes", True)):
        value = json.loads(invoke("prune", option, "--format", "json").out)
        assert value == {"version": 1, "done": done, "found": [row]}
    refused = json.loads(invoke("prune", "--format", "json").out)["error"]
    assert (refused["code"], len(remains[1])) == ("E_USAGE", 1)


def test_prune_names_what_could_not_be_removed(invoke, remains):
    found, _ = remains
    found.append(Remains("stale", "one", ID, "end it"))
    found.append(Remains("failed", "two", "id", "end it", error="Slurm does not answer"))
    result = invoke("prune", "--yes")
    assert (result.code, result.out) == (4, f"removed:\n  stale    one ({ID[:8]}): end it\n")
    assert "two could not be removed: Slurm does not answer" in result.err
    found.clear()
    assert invoke("prune").out == "nothing to remove\n"


# manager ------------------------------------------------------------------------------------------


def test_a_manager_gets_what_was_said(invoke, project, monkeypatch):
    given = []

    def attach(cluster, manager, spec, **more):
        given.append((cluster, manager, spec.target_name, more["limits"], more["priority"]))
        return 7

    monkeypatch.setattr("scalable.clusters.managing.attach_manager", attach)
    file = project / "scalable.yaml"
    file.write_text(file.read_text().replace("max_workers: 3", "processes: true"))
    attach = ("manager", "attach", "one", "--id", "more")
    result = invoke(*attach, "--target", "local", "--max", "model=1", "--priority", "2")
    assert (result.code, result.out) == (7, "")
    assert result.err == "manager 'more' starts workers on 'local'; Ctrl-C stops it\n"
    assert given == [("one", "more", "local", {"model": 1}, 2)]
    other = invoke(*attach, "--manifest", file, "--target", "local", "--max", "moon=1")
    assert other.code == 3
    assert "--max moon: no component has this name; known: 'model', 'analysis'" in other.err
    threads = invoke(*attach, "--target", "other")
    assert threads.code == 2
    assert "set processes: true on target 'other'" in threads.err
    assert invoke("manager", "attach", "one", "--target", "local").code == 2


def test_a_manager_that_is_refused(invoke, project, monkeypatch):
    def refuse(*_, **__):
        raise ClusterError("cluster 'one' does not accept manager 'more': it is there already")

    monkeypatch.setattr("scalable.clusters.managing.attach_manager", refuse)
    result = invoke("manager", "attach", "one", "--target", "cluster", "--id", "more")
    assert result.code == 5
    assert "it is there already" in result.err
    assert "Missing command" in invoke("manager").err


# run ----------------------------------------------------------------------------------------------


def test_a_workflow_is_led_to_the_cluster(project, recorded, invoke):
    directory = recorded()
    (project / "workflow.py").write_text(
        "import os, sys\n"
        "from record import record\n"
        "run = record()\n"
        "print(os.environ['SCALABLE_CLUSTER'])\n"
        "run.close('completed')\n"
        "sys.exit(4)\n"
    )
    result = invoke("run", "--cluster", "one", "--format", "json")
    assert (result.code, result.err) == (4, f"{directory.id}\n")
    # The cluster's run does not fail because one of its workflows has.
    assert json.loads(result.out)["reports"][0]["status"] == "completed"
    result = invoke("run", "--cluster", "two")
    assert (result.code, result.out) == (5, "")
    assert "there is no cluster 'two'" in result.err


def test_the_state_of_another_user_is_another(invoke, recorded, tmp_path, monkeypatch):
    recorded()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs"))
    assert json.loads(invoke("list", "--format", "json").out)["clusters"] == []
    assert invoke("status", "one").code == 5
    assert not ClusterDirectory.parent().exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_state_directory_of_another_user_is_named(tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    code = (  # what the other user may not read is imported before
        "import os, sys\n"
        "from scalable.cli.main import main\n"
        "main(['list'])\nos.setgid(65534)\nos.setuid(65534)\nsys.exit(main(['list']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd="/", env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 5
    assert "the directory of clusters cannot be read: Permission denied" in done.stderr
    assert "unset XDG_STATE_HOME or run as that user" in done.stderr


def test_run_on_a_cluster_uses_its_target(invoke, recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scalable.yaml").write_text(
        "version: 1\nproject: {name: p}\n"
        "targets: {one: {provider: local}, two: {provider: local}}\n"
        "components: {a: {cpus: 1}}\n"
    )
    (tmp_path / "workflow.py").touch()
    recorded(target="two")
    assert "Target:    two" in invoke("run", "--cluster", "one", "--dry-run").out
    assert "no target was chosen" in invoke("run", "--dry-run").err
    refused = invoke("run", "--cluster", "one", "--target", "one")
    assert (refused.code, "runs on target 'two'" in refused.err) == (2, True)
