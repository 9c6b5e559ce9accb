"""``scalable up``: what is shown, what is asked, what is started."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fabricated import ADDRESS, ID, STATUS, pool, put_on_record
from scalable.clusters import services
from scalable.clusters.services import wait_until_ready
from scalable.errors import ClusterError
from scalable.manifest import Manifest
from scalable.providers.registry import option_models
from scalable.records import find
from scalable.session import ScalableSession

MANIFEST = """\
version: 1
project: {name: climate}
targets:
  local: {provider: local, processes: true, %s}
  second: {provider: local, processes: true}
  threads: {provider: local}
  cluster: {provider: slurm}
  paid: {provider: local, processes: true, price_per_core_hour: 0.5}
components:
  model: {cpus: 1, workers: 2}
  analysis: {cpus: 1, workers: 1}
tasks:
  simulate: {component: model, count: 10, duration: 1m}
  reduce: {component: analysis, count: 1, duration: 30s, after: [simulate]}
"""
SHOWN = """\
Target:    local (provider local)
Time:      about 5 m 30 s, 3 m 06 s to 10 m 39 s (confidence low)
Cost:      about 990 worker-seconds, 559 to 1916; no price is given
Digest:    {lock}

Workers:
  tag       workers  cpus  memory  gpus
  model           2     1       -     0
  analysis        1     1       -     0

Tasks:
  simulate -> model
  reduce -> analysis

Why:
  - simulate: 10 tasks of 1 m 00 s in pool model, according to the manifest.
  - reduce: 1 task of 30.0 s in pool analysis, according to the manifest.
  - Confidence that the run takes 0.8 to 1.25 times the predicted time is low: no task of simulate
    was measured.
  - The cost of 990 worker-seconds counts all workers until the end of the run; it is 660
    worker-seconds if idle workers are released: set `adaptive` on the target.

Stops:  after 30 m 00 s without work
"""


@pytest.fixture
def manifest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(options="", more=""):
        (tmp_path / "scalable.yaml").write_text(MANIFEST % options + more)

    write()
    return write


@pytest.fixture
def started(monkeypatch):
    """Programs that were started; they do what a scheduler does, at once."""
    programs = []

    def scheduler(directory, spec):
        programs.append(("scheduler", spec.target_name))
        directory.write_scheduler({**directory.record().creator, "address": ADDRESS})
        wanted = directory.record().wanted
        status = {"written_at": time.time(), "pools": {t: pool(n, n) for t, n in wanted.items()}}
        directory.write_status(STATUS | status)

    def manager(directory, identifier, spec):
        programs.append((identifier, spec.target_name))

    monkeypatch.setattr(services, "start_scheduler", scheduler)
    monkeypatch.setattr(services, "start_manager", manager)
    return programs


def lock():
    return ScalableSession.from_yaml("scalable.yaml", "local").plan().manifest_lock


# A new one ----------------------------------------------------------------------------------------


def test_the_plan_is_shown_and_then_the_cluster(invoke, manifest, started):
    result = invoke("up", "--name", "one")
    assert result.code == 0
    assert result.err == SHOWN.format(lock=lock()) + (
        "[   0 s] running | model: 2/2 workers | analysis: 1/1 workers\n"
    )
    assert started == [("scheduler", "local"), ("local", "local")]
    identifier = find("one").id
    assert result.out == (
        f"Cluster:   one ({identifier})\n"
        "State:     running\n"
        "Target:    local (provider local)\n"
        f"Address:   {ADDRESS}\n"
        "\n"
        "  pool      desired  running\n"
        "  model           2        2\n"
        "  analysis        1        1\n"
        "\n"
        "  manager  target  state     priority\n"
        "  local    local   attached         0\n"
        "\n"
        "Connect with: scalable connect one\n"
    )


def test_for_programs_there_is_one_value(invoke, manifest, started):
    result = invoke("up", "--format", "json")
    assert (result.code, result.err) == (0, "")
    value = json.loads(result.out)
    assert list(value) == ["version", "changed", "cluster"]
    assert (value["changed"], value["cluster"]["name"]) == (True, "climate-local")
    assert invoke("up", "--name", "two", "--format", "quiet") == SimpleNamespace(
        code=0, out="", err=""
    )


def test_the_options_are_recorded(invoke, manifest, started):
    manifest("idle_timeout: 5m, time_to_live: 2h")
    assert "Stops:  after 5 m 00 s without work, after 2 h 00 m at the latest\n" in (
        invoke("up", "--name", "one").err
    )
    record = find("one").record()
    assert (record.idle_timeout_s, record.time_to_live_s) == (300, 7200)
    result = invoke(
        "up", "--name", "two", "--idle-timeout", "10m", "--ttl", "8h", "--dashboard", ":8787"
    )
    record = find("two").record()
    assert (record.idle_timeout_s, record.time_to_live_s) == (600, 28800)
    assert record.dashboard_address == ":8787"
    assert "Stops:  after 10 m 00 s without work, after 8 h 00 m at the latest" in (result.err)
    for wrong in ("0", "-1m", "soon"):
        assert invoke("up", "--name", "three", "--ttl", wrong).code == 2


@pytest.mark.parametrize(("asked", "warned"), [(":4710", True), (":4711", False), (":0", False)])
def test_another_port_of_the_dashboard_is_a_warning(
    invoke, manifest, started, monkeypatch, asked, warned
):
    def ready(*args, **options):
        return replace(wait_until_ready(*args, **options), dashboard="http://127.0.0.1:4711/?t=x")

    monkeypatch.setattr("scalable.cli.commands.up.wait_until_ready", ready)
    err = invoke("up", "--name", "one", "--dashboard", asked).err
    assert ("port 4710 is in use: the dashboard listens on port 4711" in err) is warned


def test_managers_are_shown_and_started(invoke, manifest, started):
    manifest(
        more="managers:\n"
        "  - {target: local, limits: {model: 1}}\n"
        "  - {target: second, priority: 1}\n"
    )
    result = invoke("up", "--name", "one")
    assert "Manager on local: priority 0, model at most 1\nManager on second: priority 1\n" in (
        result.err
    )
    assert started == [("scheduler", "local"), ("local", "local"), ("second", "second")]


def test_a_scheduler_alone(invoke, manifest, started):
    assert invoke("up", "--name", "one", "--no-workers").code == 0
    assert started == [("scheduler", "local")]
    assert find("one").record().wanted == {}


def test_threads_cannot_be_detached_unless_they_become_processes(invoke, manifest, started):
    result = invoke("up", "--target", "threads", "--name", "one")
    assert (result.code, result.out, started) == (2, "", [])
    assert "set processes: true on target 'threads', or give --processes" in result.err
    assert invoke("up", "--target", "threads", "--name", "one", "--processes").code == 0
    assert "processes: true" in (find("one").path / "manifest.yaml").read_text()
    result = invoke("up", "--target", "cluster", "--name", "two", "--processes", "--yes")
    assert (result.code, len(started)) == (3, 2)
    assert "--processes does not apply to target" in result.err


def test_expectations_that_are_missing_give_no_time(invoke, manifest, started, tmp_path):
    text = (tmp_path / "scalable.yaml").read_text().replace(", duration: 30s", "")
    (tmp_path / "scalable.yaml").write_text(text)
    assert "\nTime:      not known\n" in invoke("up", "--name", "one").err


@pytest.mark.parametrize(
    ("target", "more"),
    [("cluster", ""), ("paid", ""), ("local", "managers: [{target: local}, {target: cluster}]\n")],
)
def test_it_asks_where_money_or_a_queue_is_involved(target, more, invoke, manifest, started):
    manifest(more=more)
    arguments = ("up", "--target", target, "--name", "one")
    result = invoke(*arguments)
    assert (result.code, result.out, started) == (2, "", [])
    assert (
        f"Start cluster 'one' on {target!r}? Standard input is not a terminal: confirm with --yes"
        in (result.err)
    )
    assert invoke(*arguments, "--yes").code == 0


def test_no_is_an_answer(invoke, manifest, started, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "n")
    result = invoke("up", "--target", "paid")
    assert (result.code, result.out, started) == (130, "", [])


# Waiting ------------------------------------------------------------------------------------------


def test_it_does_not_wait_when_told(invoke, manifest, started, monkeypatch):
    monkeypatch.setattr(services, "start_scheduler", lambda *_: started.append("scheduler"))
    result = invoke("up", "--name", "one", "--no-wait", "--format", "json")
    assert (result.code, len(started)) == (0, 2)
    value = json.loads(result.out)["cluster"]
    assert (value["state"], value["address"]) == ("starting", None)
    assert value["pools"]["model"] == pool(2, 0)


LOCAL = {
    "local": {
        "target": "local",
        "provider": "local",
        "priority": 0,
        "limits": {},
        "scheduler_address": None,
    }
}


def waiting(monkeypatch, answer):
    def wait(directory, on_status, timeout_s, *, workers):
        from scalable.records import status_of

        on_status(status_of(directory, time.time()))
        return answer()

    monkeypatch.setattr("scalable.cli.commands.up.wait_until_ready", wait)


def test_a_cluster_that_cannot_start_says_why(invoke, manifest, started, monkeypatch):
    def fail():
        raise ClusterError("pool 'model' of cluster 'one' has no worker: no such image", hint="it")

    waiting(monkeypatch, fail)
    result = invoke("up", "--name", "one")
    assert (result.code, result.out) == (5, "")
    assert "cluster 'one' is still starting" in result.err
    assert result.err.endswith("has no worker: no such image\n  hint: it\n")


def test_no_wait_says_that_the_start_continues(invoke, manifest, started, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    waiting(monkeypatch, interrupt)
    result = invoke("up", "--name", "one")
    assert (result.code, result.out) == (130, "")
    assert "cluster 'one' is still starting: see `scalable status one`" in result.err
    assert "delete it with `scalable down one`" in result.err
    assert find("one").record().stage == "made"


# One that runs ------------------------------------------------------------------------------------


@pytest.fixture
def orders(monkeypatch):
    """What the scheduler is asked for; its managers are there, and so are workers at once."""
    given = []
    monkeypatch.setattr("scalable.cli.commands.up.restart_managers", lambda name: [])
    waiting(monkeypatch, lambda: None)
    monkeypatch.setattr(
        "scalable.cli.commands.up.scale", lambda name, counts: given.append((name, counts))
    )
    return given


def test_nothing_changes(invoke, manifest, started, orders):
    put_on_record(managers=LOCAL, lock=lock())
    result = invoke("up", "--name", "one")
    assert (result.code, started, orders) == (0, [], [])
    assert result.err == "cluster 'one' is already running (running)\nnothing to change\n"
    assert result.out.startswith(f"Cluster:   one ({ID})\n")
    value = json.loads(invoke("up", "--name", "one", "--format", "json").out)
    assert (value["changed"], value["cluster"]["id"]) == (False, ID)


def test_a_changed_manifest_is_shown_and_applied(invoke, manifest, started, orders):
    put_on_record(managers=LOCAL, status={"pools": {"model": pool(1, 1), "analysis": pool(3, 3)}})
    result = invoke("up", "--name", "one")
    assert (result.code, started) == (0, [])
    assert result.err == (
        "cluster 'one' is already running (running)\n"
        "the manifest has changed since the cluster started; the running cluster keeps its "
        "settings\n"
        "  + model: 1 -> 2 workers\n"
        "  - analysis: 3 -> 1 workers\n"
        "[   0 s] running | model: 1/1 workers | analysis: 3/3 workers\n"
    )
    assert orders == [(ID, {"model": 2, "analysis": 1})]


def test_limits_that_a_running_cluster_keeps_are_named(invoke, manifest, started, orders):
    put_on_record(managers=LOCAL, lock=lock(), idle_timeout_s=1800.0, time_to_live_s=None)
    said = "a running cluster keeps its"
    result = invoke("up", "--name", "one", "--idle-timeout", "2h", "--ttl", "3h")
    assert (result.code, f"{said} idle timeout and time to live" in result.err) == (0, True)
    assert said not in invoke("up", "--name", "one", "--idle-timeout", "30m").err


def test_pools_that_follow_their_load_are_not_set(invoke, manifest, started, orders):
    pools = {"model": pool(1, 1), "analysis": pool(3, 3)}
    status = {"pools": pools, "adaptive": {"model": [0, 5]}}
    put_on_record(managers=LOCAL, lock=lock(), status=status)
    assert "analysis: 3 -> 1" in invoke("up", "--name", "one").err
    assert orders == [(ID, {"analysis": 1})]


def test_a_missing_secret_is_an_error_before_the_question(invoke, manifest, started, monkeypatch):
    text = Path("scalable.yaml").read_text()
    assert "model: {cpus: 1," in text
    secret = "model: {cpus: 1, secrets: {KEY: {env: NOT_SET}},"
    Path("scalable.yaml").write_text(text.replace("model: {cpus: 1,", secret))
    result = invoke("up", "--name", "one")
    assert (result.code, started) == (5, [])
    assert "secret KEY: the variable NOT_SET is not set" in result.err
    checked = invoke("validate", "--check", "--target", "local")
    assert (checked.code, "NOT_SET is not set [components.model.secrets]" in checked.out) == (
        2,
        True,
    )
    monkeypatch.setenv("NOT_SET", "now")
    assert invoke("validate", "--check", "--target", "local").code == 0


def test_what_has_changed_in_the_manifest_is_named(invoke, manifest, started, orders):
    before = Manifest.load("scalable.yaml", option_models(), target="local").resolve("local")
    directory = put_on_record(managers=LOCAL, lock=before.lock)
    directory.manifest_path().write_text(before.to_yaml())
    text = Path("scalable.yaml").read_text()
    changed = text.replace("model: {cpus: 1,", "model: {cpus: 2, env: {TOKEN: secret},")
    Path("scalable.yaml").write_text(changed)
    err = invoke("up", "--name", "one").err
    assert (
        "the running cluster keeps its settings\n"
        "  components.model.cpus: 1 -> 2\n"
        "  components.model.env.TOKEN: changed\n"
    ) in err


def test_pools_cannot_be_added_or_taken_away(invoke, manifest, started, orders):
    put_on_record(
        managers=LOCAL, lock=lock(), status={"pools": {"model": pool(2, 2), "old": pool(1, 1)}}
    )
    result = invoke("up", "--name", "one")
    assert (result.code, orders) == (0, [])
    assert result.err == (
        "cluster 'one' is already running (running)\n"
        "  ~ old: no longer in the manifest; its workers stay (1)\n"
        "  ~ analysis: the running cluster has no such pool; delete the cluster to add it\n"
    )


def test_more_workers_of_a_queue_are_asked_for(invoke, manifest, started, orders):
    managers = {"hpc": {"target": "cluster", "provider": "slurm", "priority": 1, "limits": {}}}
    few = {"pools": {"model": pool(1, 1), "analysis": pool(1, 1)}}
    directory = put_on_record(managers=managers, status=few)
    result = invoke("up", "--name", "one")
    assert (result.code, orders) == (2, [])
    assert (
        "Change cluster 'one'? Standard input is not a terminal: confirm with --yes" in result.err
    )
    assert invoke("up", "--name", "one", "--yes").code == 0
    assert orders == [(ID, {"model": 2})]
    many = {"pools": {"model": pool(3, 3), "analysis": pool(1, 1)}}
    directory.write_status(STATUS | many | {"written_at": time.time()})
    assert invoke("up", "--name", "one").code == 0


def test_one_that_has_just_begun_is_waited_for(invoke, manifest, started, orders, monkeypatch):
    directory = put_on_record(managers=LOCAL, running=False, lock=lock())

    def wait(it, on_status, timeout_s, *, workers):
        from scalable.records import status_of

        assert (it.id, workers) == (directory.id, False)
        put = {**directory.record().creator, "address": ADDRESS}
        directory.write_scheduler(put)
        directory.write_status(STATUS | {"written_at": time.time()})
        return status_of(directory, time.time())

    monkeypatch.setattr("scalable.cli.commands.up.wait_until_ready", wait)
    result = invoke("up", "--name", "one")
    assert (result.code, orders) == (0, [])
    assert result.err == (
        "cluster 'one' is starting\ncluster 'one' is already running (running)\nnothing to change\n"
    )


def test_another_target_is_no_matter_of_counts(invoke, manifest, started, orders):
    put_on_record(managers=LOCAL, target="night")
    result = invoke("up", "--name", "one")
    assert (result.code, orders, started) == (5, [], [])
    assert "cluster 'one' runs on target 'night', not on 'local'" in result.err


def test_managers_that_are_gone_are_brought_back(invoke, manifest, started, orders, monkeypatch):
    put_on_record(managers=LOCAL, lock=lock())
    monkeypatch.setattr("scalable.cli.commands.up.restart_managers", lambda name: ["local"])
    result = invoke("up", "--name", "one")
    assert result.code == 0
    assert "started manager local" in result.err


def test_a_cluster_without_managers_gets_them(invoke, manifest, started, orders):
    directory = put_on_record(lock=lock())
    result = invoke("up", "--name", "one")
    assert (result.code, started) == (0, [("local", "local")])
    assert "started manager local" in result.err
    assert directory.record().managers == LOCAL


def test_one_that_failed_is_made_anew(invoke, manifest, started):
    failed = put_on_record(managers=LOCAL)
    failed.write_scheduler({**failed.scheduler(), "pid": 2**22 - 3})
    assert json.loads(invoke("status", "one", "--format", "json").out)["state"] == "failed"
    assert invoke("up", "--name", "one").code == 0
    assert find("one").id != ID


@pytest.mark.parametrize("more", [{"stage": "deleting"}, {"embedded": True}])
def test_a_name_that_is_taken(more, invoke, manifest, started):
    put_on_record(managers=LOCAL, **more)
    result = invoke("up", "--name", "one")
    assert (result.code, started) == (5, [])
    assert "a cluster 'one' exists" in result.err
    assert "choose another name" in result.err
