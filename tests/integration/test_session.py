"""Sessions as users run them: manifest, client, record and report."""

import functools
import json
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor

import dask
import distributed
import pytest
from dask.utils import key_split
from distributed import LocalCluster

from scalable import (
    ClusterError,
    ManifestError,
    PlanError,
    ScalableClient,
    ScalableSession,
    ScalePlan,
    ValidationReport,
    register_provider,
)
from scalable.providers.registry import unregister_provider
from scalable.runs.reading import read_run
from scalable.runs.report.run_report import report_on
from scalable.runs.summary import summarize
from scalable.scheduler import controller, explaining

MANIFEST = """
version: 1
project:
  name: energy
targets:
  local:
    provider: local
    max_workers: 4
  processes:
    provider: local
    max_workers: 4
    processes: true
  hpc:
    provider: slurm
    queue: batch
    account: GCIMS
    walltime: "04:00:00"
    interface: ib0
components:
  demeter:
    cpus: 2
    tags: [compute-heavy]
  post:
    tags: [io-bound, compute-heavy]
tasks:
  simulate:
    component: demeter
  analyze:
    component: post
"""


@pytest.fixture
def manifest(tmp_path, monkeypatch):
    """A manifest in an empty directory, which is the current one."""
    monkeypatch.chdir(tmp_path)
    for name in ("SCALABLE_TARGET", "SCALABLE_RUN_TARGET", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "scalable.yaml"
    path.write_text(MANIFEST)
    return path


def rows(session, stream):
    text = (session.run_path / f"{stream}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def square(x):
    return x * x


def total(xs):
    return sum(xs)


def boom():
    raise ValueError("the model diverged")


def random_draw():
    return os.urandom(8)


def test_two_hundred_tasks_over_two_pools_run_on_disjoint_workers(manifest):
    session = ScalableSession.from_yaml(target="processes")
    with session as client:
        squares = [client.submit(square, i, tag="demeter") for i in range(100)]
        sums = [client.submit(total, [s], tag="post") for s in squares]
        assert client.gather(sums) == [i * i for i in range(100)]
    final = [r for r in rows(session, "tasks") if r["state"] == "succeeded"]
    assert len(final) == 200
    workers = {tag: {r["worker"] for r in final if r["tag"] == tag} for tag in ("demeter", "post")}
    assert workers["demeter"]
    assert workers["post"]
    assert not workers["demeter"] & workers["post"]
    assert all(name.startswith("demeter-") for name in workers["demeter"])
    summary = summarize(read_run(session.run_path))
    assert summary.tasks == {"succeeded": 200}
    assert summary.status == "completed"


def test_each_task_is_submitted_then_running_then_over(manifest):
    session = ScalableSession.from_yaml()
    with session as client:
        client.gather([client.submit(square, i, tag="demeter") for i in range(5)])
        assert client.submit(boom, tag="post").exception(timeout=30).args == ("the model diverged",)
    by_id = {}
    for row in rows(session, "tasks"):
        by_id.setdefault(row["task_id"], []).append(row)
    assert len(by_id) == 6
    for history in by_id.values():
        assert [r["state"] for r in history[:2]] == ["submitted", "running"]
        assert history[2]["state"] == (
            "failed" if history[0]["task_name"] == "boom" else "succeeded"
        )
        assert set(history[2]) == {
            "task_id", "task_name", "tag", "worker", "state", "timestamp", "queued_s",
            "duration_s", "transfer_s", "cpu_s", "peak_memory", "nbytes",
            "input_bytes",
        }  # fmt: skip
        submitted, began, ended = (row["timestamp"] for row in history)
        # A worker thread may begin before the scheduler has noted that the call was submitted.
        assert began <= ended
        assert submitted <= ended
        assert history[2]["peak_memory"] is None  # threads
    (failure,) = rows(session, "failures")
    assert (failure["failure_class"], failure["message"]) == ("ValueError", "the model diverged")
    assert failure["details"]["phase"] == "run"
    assert "boom" in failure["details"]["traceback"]
    run = json.loads((session.run_path / "run.json").read_text())
    assert (run["status"], run["failed_tasks"]) == ("completed", 1)


def test_only_the_call_that_failed_has_a_failure_row(manifest):
    session = ScalableSession.from_yaml()
    with session as client:
        broken = client.submit(boom, tag="post")
        child = client.submit(square, broken, tag="demeter")
        grandchild = client.submit(total, [child], tag="post")
        assert isinstance(grandchild.exception(timeout=30), ValueError)
    (failure,) = rows(session, "failures")
    assert failure["details"]["task_id"] == broken.key
    assert sum(r["state"] == "failed" for r in rows(session, "tasks")) == 3


def test_a_cancelled_task_is_recorded_as_cancelled(manifest, eventually):
    session = ScalableSession.from_yaml()
    with session as client:
        session.scale("post", 0)
        future = client.submit(square, 1, tag="post")
        eventually(lambda: client.run_on_scheduler(knows, key=future.key))
        future.cancel()
        eventually(lambda: not client.run_on_scheduler(knows, key=future.key))
    assert [r["state"] for r in rows(session, "tasks")] == ["submitted", "cancelled"]


def knows(dask_scheduler, key):
    return key in dask_scheduler.tasks


def test_a_run_has_all_its_files(manifest):
    session = ScalableSession.from_yaml()
    with session as client:
        client.submit(square, 3, tag="demeter").result()
        out = manifest.parent / "table.csv"
        out.write_text("a,b\n")
        session.record_artifact(out, kind="table", rows=0)
    assert session.run_path.parent == manifest.parent / ".scalable" / "runs"
    assert session.run_path.name.startswith("run-2")
    assert "-energy-" in session.run_path.name
    names = {p.name for p in session.run_path.iterdir()}
    assert names >= {
        "manifest.yaml", "plan.json", "manifest.lock", "run.json", "tasks.jsonl", "workers.jsonl",
        "resources.jsonl", "failures.jsonl", "scaling.jsonl", "artifacts.jsonl", "summary.json",
        "measurements.json",
    }  # fmt: skip
    (artifact,) = rows(session, "artifacts")
    assert (artifact["name"], artifact["kind"], artifact["bytes"]) == ("table.csv", "table", 4)
    assert artifact["metadata"] == {"rows": 0}
    lock = (session.run_path / "manifest.lock").read_text().strip()
    assert len(lock) == 64
    assert json.loads((session.run_path / "plan.json").read_text())["manifest_lock"] == lock


def test_scaling_is_absolute_recorded_and_reported(manifest, eventually):
    session = ScalableSession.from_yaml()
    with session as client:
        session.scale("demeter", 3)
        eventually(lambda: client.worker_count("demeter") == 3)
        session.scale("demeter", 3)
        session.scale("demeter", 1)
        eventually(lambda: client.worker_count("demeter") == 1)
        assert client.worker_count("post") == 2 - 1 + 1
    history = [(r["tag"], r["from"], r["to"], r["source"]) for r in session.scaling_history]
    assert history == [
        ("demeter", 0, 2, "plan"),
        ("post", 0, 2, "plan"),
        ("demeter", 2, 3, "manual"),
        ("demeter", 3, 1, "manual"),
    ]
    assert rows(session, "scaling") == session.scaling_history
    text = str(report_on(read_run(session.run_path)))
    assert "  demeter          3        3        2      1\n" in text
    assert "Scaling events: 3 scale-up, 1 scale-down" in text


def test_scaling_by_hand_beyond_the_manifest_s_total_is_done_with_a_warning(manifest, caplog):
    session = ScalableSession.from_yaml()
    with session:
        session.scale("demeter", 1)
        assert "in all" not in caplog.text
        session.scale({"demeter": 3, "post": 2})
        assert "a total of 5 workers exceeds the manifest's max_workers 4" in caplog.text
        assert session.cluster.pools["demeter"].wanted == 3


def test_a_wrong_count_is_refused(manifest):
    wrong = [
        ("nothing", 1, "no component 'nothing' to scale; known tags: 'demeter', 'post'"),
        ("post", -1, "'post' cannot have -1 workers"),
        ("post", 1.5, "'post' cannot have 1.5 workers"),
        ("post", None, "'post' cannot have None workers"),
    ]
    session = ScalableSession.from_yaml()
    with session:
        for tag, count, message in wrong:
            before = session.cluster.pools
            with pytest.raises(ClusterError, match=message):
                session.scale(tag, count)
            assert session.cluster.pools == before


def test_a_plan_made_beforehand_is_started_and_results_flow_between_pools(manifest):
    manifest.write_text(
        "version: 1\nproject: {name: forecast}\n"
        "targets:\n  local:\n    provider: local\n    max_workers: 4\n    threads_per_worker: 2\n"
        "    processes: false\n    containers: none\n"
        "components:\n  demeter: {cpus: 8, memory: 32G, tags: [compute-heavy]}\n"
        "  postprocess: {cpus: 2, memory: 4G, tags: [io-bound]}\n"
        "tasks:\n  simulate: {component: demeter}\n  analyze: {component: postprocess}\n"
    )
    session = ScalableSession.from_yaml("./scalable.yaml", target="local")
    plan = session.plan(dry_run=True)
    shown = f"Scale plan: {plan.scale_plan}"
    assert "'demeter': ResourceRequest(cpus=8, memory='32G'), count=2" in shown
    client = session.start(plan)
    simulated = [client.submit(square, i, tag="demeter") for i in range(5)]
    results = client.gather(simulated)
    analyzed = [client.submit(total, [r, 1], tag="postprocess") for r in results]
    assert client.gather(analyzed) == [1, 2, 5, 10, 17]
    assert client.submit(square, 4, tag="demeter", slots=2).result(timeout=30) == 16
    assert client.worker_count("demeter") == 2
    session.close()


# Routing -----------------------------------------------------------------------------------------


def test_a_session_that_runs_is_brought_to_the_plan_that_it_is_given(manifest):
    session = ScalableSession.from_yaml()
    plan = session.plan(objective="minimize cost", policy="aggressive")
    with session as client:  # by the manifest's counts
        assert session.start(plan) is client
        changes = session.scaling_history
    assert plan.scale_plan.workers_by_tag == {"demeter": 1, "post": 1}
    assert [(r["from"], r["to"]) for r in changes] == [(0, 2), (0, 2), (2, 1), (2, 1)]
    assert {r["source"] for r in changes} == {"plan"}


def test_unknown_tags_labels_and_too_many_slots_are_errors_that_name_what_exists(manifest):
    with ScalableSession.from_yaml() as client:
        with pytest.raises(
            ClusterError, match="no pool has the tag 'gcam'; known tags: 'demeter', 'post'"
        ):
            client.submit(square, 1, tag="gcam")
        with pytest.raises(
            ClusterError, match="a label, not a tag; it belongs to 'demeter', 'post'"
        ):
            client.submit(square, 1, tag="compute-heavy")
        with pytest.raises(ClusterError, match="slots=2 of tag 'post': its workers have 1"):
            client.submit(square, 1, tag="post", slots=2)
        with pytest.raises(ClusterError, match="slots=0"):
            client.map(square, [1], tag="post", n=0)
        with pytest.raises(ClusterError, match="give tag= too"):
            client.submit(square, 1, slots=2)


def test_equal_calls_run_each_unless_they_are_pure(manifest):
    with ScalableSession.from_yaml() as client:
        for tag in ("demeter", None):
            draws = [client.submit(random_draw, tag=tag) for _ in range(4)]
            assert len(set(client.gather(draws))) == 4
            ran = client.map(square, [3] * 5, tag=tag)
            assert len({future.key for future in ran}) == 5
            assert {key_split(future.key) for future in ran} == {"square"}
            merged = [client.submit(random_draw, tag=tag, pure=True) for _ in range(4)]
            assert len(set(client.gather(merged))) == 1


def test_actors_are_never_shared(manifest):
    with ScalableSession.from_yaml() as client:
        for options in ({}, {"pure": True}, {"tag": "post"}):
            one, other = (client.submit(list, actor=True, **options).result() for _ in range(2))
            one.append(1).result()
            assert (one.__len__().result(), other.__len__().result()) == (1, 0)
        both = client.gather(client.map(list, [()] * 2, actors=True))
        both[0].append(1).result()
        assert both[1].__len__().result() == 0


def test_a_failed_call_runs_again_when_it_is_submitted_again(manifest, tmp_path):
    switch = tmp_path / "on"
    with ScalableSession.from_yaml() as client:
        for submit in (
            lambda: client.submit(fails_until, str(switch), tag="post", pure=True),
            lambda: client.submit(fails_until, str(switch), tag="post", key="my-key"),
            lambda: client.map(fails_until, [str(switch)], tag="post", pure=True)[0],
        ):
            first = submit()
            assert isinstance(first.exception(timeout=30), FileNotFoundError)
            switch.touch()
            assert submit().result(timeout=30) == "ran"
            switch.unlink()


def fails_until(path):
    os.stat(path)
    return "ran"


def test_task_names_route_and_reach_the_record(manifest):
    session = ScalableSession.from_yaml()
    with session as client:
        client.submit(square, 1, task="simulate").result(timeout=30)
        client.gather(client.map(square, [1, 2], task="analyze"))
        client.submit(square, 5, task="simulate", key="odd-123").result(timeout=30)
    final = [r for r in rows(session, "tasks") if r["state"] == "succeeded"]
    assert sorted((r["task_name"], r["tag"]) for r in final) == [
        ("analyze", "post"),
        ("analyze", "post"),
        ("simulate", "demeter"),
        ("simulate", "demeter"),
    ]


def takes_tag(x, tag=None):
    return x, tag


def takes_n(x, n=1):
    return x, n


def takes_slots(x, slots=1):
    return x, slots


def takes_any(**kwargs):
    return kwargs


def test_a_slip_in_a_task_s_name_runs_nowhere(manifest):
    slips = [
        ({"task": "simulat"}, "no task 'simulat'; did you mean 'simulate'"),
        ({"task": "simulate", "tag": "post"}, "'simulate' belongs to component 'demeter', not to"),
    ]
    with ScalableSession.from_yaml() as client:
        for route, message in slips:
            with pytest.raises(ClusterError, match=message):
                client.submit(square, 1, **route)
        assert client.submit(square, 2, task="anything", tag="post").result(timeout=30) == 4


@pytest.fixture(scope="module")
def without_tasks():
    with ScalableSession.local({"post": 1}) as client:
        yield client


@pytest.mark.parametrize(
    "make",
    [
        lambda client: client.submit(square, 1, task="typo"),
        lambda client: client.map(square, [1], task="typo"),
        lambda client: client.pool(task="typo"),
        lambda client: client.get({"a": (square, 2)}, "a", task="typo"),
        lambda client: client.compute(dask.delayed(square)(2), task="typo"),
    ],
    ids=["submit", "map", "pool", "get", "compute"],
)
def test_a_task_is_an_error_where_the_manifest_has_no_tasks(without_tasks, make):
    client = without_tasks
    with pytest.raises(ClusterError, match="no task 'typo': the manifest .* has no tasks") as no:
        make(client)
    assert "give tag=" in no.value.hint
    assert client.submit(square, 2, task="anything", tag="post").result(timeout=30) == 4


def calls_by_task(task):
    return distributed.get_client().submit(of_worker, task=task).result(timeout=30)


def of_worker():
    return list(distributed.get_worker().state.total_resources)


def test_a_call_that_names_a_task_goes_to_its_pool_from_within_a_call_too(manifest):
    with ScalableSession.from_yaml() as client:
        assert client.submit(calls_by_task, "simulate", tag="post").result(60) == ["demeter"]
        with pytest.raises(ClusterError, match="no task 'simulat'; did you mean 'simulate'"):
            client.submit(calls_by_task, "simulat", tag="post").result(timeout=60)


def until_told(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def test_unfinished_calls_at_the_end_are_named(manifest, caplog, eventually):
    told = manifest.parent / "told"

    def tell():
        eventually(lambda: "the session closes with 4 unfinished tasks" in caplog.text)
        told.touch()

    session = ScalableSession.from_yaml()
    with ThreadPoolExecutor() as threads, session as client:
        kept = [client.submit(until_told, str(told), tag="post") for _ in range(4)]
        telling = threads.submit(tell)
    telling.result()
    assert kept[0].status == "cancelled"


def test_routing_keywords_that_a_function_wants_itself_are_refused(manifest):
    with ScalableSession.from_yaml() as client:
        with pytest.raises(TypeError, match=r"functools.partial\(takes_tag, tag=...\)"):
            client.submit(takes_tag, 1, tag="post")
        with pytest.raises(TypeError, match=r"functools.partial\(takes_n, n=...\)"):
            client.submit(takes_n, 1, n=1, tag="post")
        with pytest.raises(TypeError, match="takes_tag"):
            client.map(takes_tag, [1], tag="post")
        assert client.submit(takes_n, 1, tag="post").result(timeout=30) == (1, 1)
        bound = functools.partial(takes_tag, tag="mine")
        assert client.submit(bound, 1, tag="post").result(timeout=30) == (1, "mine")


#: How each method of the client takes a number of slots.
WITH_SLOTS = {
    "submit": lambda client, **slots: client.submit(square, 3, tag="demeter", **slots),
    "map": lambda client, **slots: client.map(square, [3], tag="demeter", **slots),
    "starmap": lambda client, **slots: client.starmap(square, [(3,)], tag="demeter", **slots),
    "sweep": lambda client, **slots: client.sweep(square, [{"x": 3}], tag="demeter", **slots),
    "get": lambda client, **slots: client.get({"a": (square, 3)}, "a", tag="demeter", **slots),
    "compute": lambda client, **slots: client.compute(
        dask.delayed(square)(3), tag="demeter", **slots
    ),
    "persist": lambda client, **slots: client.persist(
        dask.delayed(square)(3), tag="demeter", **slots
    ),
    "use": lambda client, **slots: client.use("demeter", **slots).__enter__(),
    "executor": lambda client, **slots: client.executor("demeter", **slots),
    "annotate": lambda client, **slots: annotated(client, tag="demeter", **slots),
}


def annotated(client, **annotations):
    with dask.annotate(**annotations):
        return client.submit(square, 3)


@pytest.mark.parametrize("method", WITH_SLOTS)
def test_slots_and_n_are_the_same_number_everywhere(two_slots, method):
    make = WITH_SLOTS[method]
    for name in ("slots", "n"):
        with pytest.raises(ClusterError, match="slots=3 of tag 'demeter': its workers have 2"):
            make(two_slots, **{name: 3})
    with pytest.raises(TypeError, match="slots= and n= are two names for the same number"):
        make(two_slots, slots=2, n=2)


@pytest.fixture(scope="module")
def two_slots():
    with ScalableSession.local({"demeter": 1}, threads_per_worker=2) as client:
        yield client


def test_a_function_keeps_its_own_parameter_slots(two_slots):
    client = two_slots
    routed = {"tag": "demeter", "slots": 5}
    assert client.submit(takes_slots, 1, **routed).result(timeout=30) == (1, 5)
    assert client.submit(takes_slots, 1, n=2, **routed).result(timeout=30) == (1, 5)
    assert client.gather(client.map(takes_slots, [1], **routed)) == [(1, 5)]
    assert client.sweep(takes_slots, [{"x": 1}], **routed).results() == [(1, 5)]
    sweep = client.sweep(takes_slots, [{"x": 1, "slots": 4}], tag="demeter")
    assert sweep.results() == [(1, 4)]


@pytest.mark.parametrize("func", [takes_any, functools.partial(takes_slots, slots=3), dict])
def test_slots_of_a_function_that_may_take_them_are_refused(two_slots, func):
    with pytest.raises(
        TypeError, match=r"slots= may be a keyword of \w+\(\) or .*, n= for the second"
    ):
        two_slots.submit(func, tag="demeter", slots=2)


def test_a_sweep_refuses_rows_with_slots_that_the_function_has_not(two_slots):
    with pytest.raises(TypeError, match="'slots' of the sweep is also a keyword of submit"):
        two_slots.sweep(square, [{"x": 1, "slots": 2}], tag="demeter")


def test_dask_s_own_keywords_keep_working(manifest, tmp_path):
    with ScalableSession.from_yaml() as client:
        flaky = client.submit(fails_twice, str(tmp_path), retries=2, priority=5, tag="post")
        assert flaky.result(timeout=30) == 3
        (address,) = [
            a for a, w in client.scheduler_info(n_workers=-1)["workers"].items()
            if "post" in w["resources"]
        ][:1]  # fmt: skip
        future = client.submit(square, 2, workers=[address], allow_other_workers=False, tag="post")
        assert future.result(timeout=30) == 4
        assert client.who_has(future)[future.key] == [address]
        assert client.submit(square, 3, resources={"post": 1}).result(timeout=30) == 9


def fails_twice(directory):
    count = len(os.listdir(directory))
    open(os.path.join(directory, f"attempt-{count}"), "w").close()
    if count < 4:
        raise RuntimeError("not yet")
    return count - 1


@pytest.fixture
def soon_told(monkeypatch):
    """Have waiting tasks named soon, and tasks that cannot run failed soon."""
    monkeypatch.setattr(explaining, "WAIT_BEFORE_WORD_S", 0.1)
    monkeypatch.setattr(controller, "CHECK_INTERVAL_S", 0.05)


@pytest.mark.usefixtures("soon_told")
def test_an_empty_pool_waits_and_says_why(manifest, caplog, eventually):
    session = ScalableSession.from_yaml()
    with session as client, caplog.at_level(logging.WARNING, "scalable"):
        session.scale("post", 0)
        eventually(lambda: client.worker_count("post") == 0)
        future = client.submit(square, 4, tag="post")
        eventually(lambda: "1 task is queued for pool 'post': it has no workers" in caplog.text)
        session.scale("post", 1)
        assert future.result(timeout=30) == 16


# Before it runs ------------------------------------------------------------------------------------


def test_another_objective_is_not_implemented_and_policies_are_known(manifest):
    session = ScalableSession.from_yaml()
    with pytest.raises(NotImplementedError, match="'minimize cost', 'minimize time', 'balance'"):
        session.plan(objective="fastest", policy="safe")
    with pytest.raises(PlanError, match="unknown policy 'bold'"):
        session.plan(policy="bold")
    assert session.plan(policy="manual") == session.plan()


def test_the_target_is_chosen_as_documented(manifest, monkeypatch):
    assert ScalableSession.from_yaml(target="hpc").target == "hpc"
    assert ScalableSession.from_yaml().target == "local"
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert ScalableSession.from_yaml().target == "hpc"
    monkeypatch.setenv("SCALABLE_TARGET", "processes")
    assert ScalableSession.from_yaml().target == "processes"
    assert ScalableSession.from_yaml(target="local").target == "local"
    with pytest.raises(ManifestError, match=r"(?s)'mars'.*local, processes, hpc"):
        ScalableSession.from_yaml(target="mars")


def test_several_targets_without_a_local_one_are_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCALABLE_TARGET", raising=False)
    path = tmp_path / "scalable.yaml"
    head = "version: 1\nproject: {name: p}\ncomponents: {a: {}}\ntargets:\n"
    path.write_text(head + "  one: {provider: local}\n  two: {provider: local}\n")
    with pytest.raises(ManifestError, match="no target was chosen.*one, two"):
        ScalableSession.from_yaml()
    path.write_text(head + "  one: {provider: local}\n")
    assert ScalableSession.from_yaml().target == "one"


def test_counts_that_cannot_hold_are_refused_with_their_place(manifest):
    manifest.write_text(MANIFEST.replace("    cpus: 2\n", "    cpus: 2\n    workers: 9\n"))
    session = ScalableSession.from_yaml()
    report = session.validate()
    (error,) = report.errors
    assert (error.code, error.dotted_path) == ("E_BAD_OPTION", "targets.local.max_workers")
    assert (error.line, error.hint) == (8, "the smallest value that works is 10")
    with pytest.raises(ManifestError, match="smallest value that works is 10"):
        session.start()
    assert not (manifest.parent / ".scalable").exists()


def test_options_without_effect_are_warnings(manifest):
    more = "    cpus: 2\n    slots: 3\n    image: a/b\n    memory: 40M\n"
    manifest.write_text(MANIFEST.replace("    cpus: 2\n", more))
    found = {w.dotted_path: w.code for w in ScalableSession.from_yaml().validate().warnings}
    assert found == {
        "components.demeter.slots": "W_NOT_APPLIED",
        "components.demeter.image": "W_NOT_APPLIED",
        "components.demeter.memory": "W_LITTLE_MEMORY",
    }


def test_adaptive_is_acted_upon(manifest):
    manifest.write_text(
        MANIFEST.replace(
            "max_workers: 4\n  p", "max_workers: 4\n    adaptive: {minimum: 0, maximum: 2}\n  p"
        )
    )
    assert not ScalableSession.from_yaml().validate().warnings
    manifest.write_text(manifest.read_text().replace("minimum: 0", "minimum: 3"))
    with pytest.raises(ManifestError, match=r"scalable.yaml:9:5: error .*minimum 3.*maximum 2"):
        ScalableSession.from_yaml()


# Its life ------------------------------------------------------------------------------------------


def test_starting_and_closing_twice_is_harmless(manifest):
    session = ScalableSession.from_yaml()
    assert session.start() is session.start()
    assert session.client.submit(square, 2, tag="post").result(timeout=30) == 4
    session.close()
    session.close()
    with pytest.raises(ClusterError, match="is not running"):
        session.client  # noqa: B018
    assert json.loads((session.run_path / "run.json").read_text())["status"] == "completed"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("bad input"), "failed"),
        (SystemExit(3), "failed"),
        (SystemExit(0), "completed"),
        (KeyboardInterrupt(), "cancelled"),
    ],
)
def test_the_status_says_how_the_with_block_ended(manifest, error, status):
    session = ScalableSession.from_yaml()
    with pytest.raises(type(error)), session:
        raise error
    run = json.loads((session.run_path / "run.json").read_text())
    assert run["status"] == status


def test_telemetry_can_be_switched_off_or_moved(manifest, monkeypatch, tmp_path):
    monkeypatch.setenv("SCALABLE_TELEMETRY", "off")
    session = ScalableSession.from_yaml()
    with session as client:
        assert client.submit(square, 2, tag="post").result(timeout=30) == 4
        session.record_artifact("x.csv")
        session.scale("post", 1)
    assert session.run_path is None
    assert len(session.scaling_history) == 3
    assert not (manifest.parent / ".scalable").exists()
    monkeypatch.setenv("SCALABLE_TELEMETRY", "1")
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path / "elsewhere"))
    session = ScalableSession.from_yaml()
    with session:
        pass
    assert session.run_path.parent == tmp_path / "elsewhere"


# Third parties -------------------------------------------------------------------------------------


class MyCustomProvider:
    """Written against the protocol alone."""

    name = "mine"
    closed = 0

    def validate(self, spec):
        assert spec.options["flavour"] == "vanilla"
        return ValidationReport()

    def build_cluster(self, spec):
        return LocalCluster(
            n_workers=0,
            processes=False,
            dashboard_address=":0",
            resources=dict.fromkeys(spec.tags, 1),
        )

    def scale(self, cluster, plan: ScalePlan):
        cluster.scale(sum(plan.workers_by_tag.values()))

    def close(self, cluster):
        type(self).closed += 1
        cluster.close()


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A manifest for a provider that a third party registered."""
    monkeypatch.chdir(tmp_path)
    register_provider("custom", MyCustomProvider)
    path = tmp_path / "scalable.yaml"
    path.write_text(
        "version: 1\nproject: {name: p}\ncomponents: {demeter: {workers: 2}}\n"
        "targets: {there: {provider: Custom, flavour: vanilla}}\n"
    )
    yield path
    unregister_provider("custom")


def test_a_third_party_provider_validates_plans_and_runs(mine):
    session = ScalableSession.from_yaml()
    assert session.validate().ok
    assert session.plan().scale_plan.workers_by_tag == {"demeter": 2}
    with session as client:
        client.wait_for_workers(2, timeout=60)
        assert client.gather(client.map(square, range(4), tag="demeter")) == [0, 1, 4, 9]
        with pytest.raises(ClusterError, match="known tags: 'demeter'"):
            client.submit(square, 1, tag="gcam")
        session.scale("demeter", 1)
    assert MyCustomProvider.closed == 1
    assert [(r["from"], r["to"]) for r in session.scaling_history] == [(0, 2), (2, 1)]
    final = [r for r in rows(session, "tasks") if r["state"] == "succeeded"]
    # Dask's own cluster, unlike ours, loses results when it shrinks: some calls ran twice.
    assert len({r["task_id"] for r in final}) == 4
    assert {r["event"] for r in rows(session, "workers")} == {"started", "removed"}


def test_a_cluster_whose_workers_carry_no_tags_runs_calls_anywhere(mine, monkeypatch, caplog):
    monkeypatch.setattr(
        MyCustomProvider,
        "build_cluster",
        lambda self, spec: LocalCluster(n_workers=0, processes=False, dashboard_address=":0"),
    )
    with ScalableSession.from_yaml() as client:
        client.wait_for_workers(2, timeout=60)
        assert client.submit(square, 3, tag="demeter").result(timeout=30) == 9
    assert "have no tags" in caplog.text


@pytest.mark.usefixtures("soon_told")
def test_an_asynchronous_client_fails_unknown_tags_too(eventually):
    import asyncio

    from scalable import PoolCluster
    from scalable.worker.pool_worker import PoolWorker

    async def run():
        scheduler = {
            "cls": "distributed.Scheduler",
            "options": {"protocol": "inproc://", "dashboard_address": ":0"},
        }
        async with PoolCluster(scheduler=scheduler, asynchronous=True) as cluster:
            options = {"resources": {"a": 1}, "memory_limit": 0}
            cluster.add_pool("a", {"cls": PoolWorker, "options": options})
            cluster.scale("a", 1)
            await cluster
            async with ScalableClient(cluster, asynchronous=True) as client:
                assert await client.submit(square, 3, tag="a") == 9
                with pytest.raises(ClusterError, match="no pool 'b'; known tags: 'a'"):
                    await asyncio.wait_for(client.submit(square, 3, tag="b"), 30)
                with pytest.raises(
                    ClusterError, match="more slots than a worker of pool 'a' has: 1"
                ):
                    await asyncio.wait_for(client.submit(square, 3, tag="a", n=2), 30)

    asyncio.run(run())


def test_late_heartbeat_of_a_worker_that_was_scaled_away_ends_it_without_a_warning(
    eventually, caplog
):
    session = ScalableSession.local({"a": 2})
    with session as client:
        client.wait_for_workers(2)
        before = set(client.scheduler_info(n_workers=-1)["workers"])
        session.scale("a", 1)
        eventually(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 1, "one worker")
        (gone,) = before - set(client.scheduler_info(n_workers=-1)["workers"])

        def answer(dask_scheduler, address):
            return dask_scheduler.heartbeat_worker(address=address, metrics={})["status"]

        assert client.run_on_scheduler(answer, address=gone) == "missing"
        assert "unregistered worker" not in caplog.text
        assert "unaware of this worker" not in caplog.text
        assert client.run_on_scheduler(answer, address="tcp://127.0.0.1:9") == "missing"
        assert "unregistered worker" in caplog.text
