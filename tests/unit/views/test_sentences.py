"""The sentence for each state in which a call can be, made of facts alone."""

from dataclasses import replace

import pytest

from scalable.model import PoolStatus
from scalable.views.explanation import (
    Explanations,
    Failure,
    NextTry,
    PoolFacts,
    Reason,
    SlotHolder,
    TaskFacts,
    UnmetNeed,
    explain_pool,
    explain_task,
    means_key,
    short_key,
)


def managers(state="attached", silent_s=0.5):
    return ({"id": "m", "state": state, "silent_s": silent_s},)


def adaptive(most, requested=None, decision=""):
    return {"adaptive": (0, most), "requested": requested, "decision": decision}


UUID = "3f2a1c9d-7b1e-4c55-9a3e-0d1f2a3b4c5d"
RUNS = SlotHolder("fit-1", "fit", "a", "a-1", 60.0)
HOLDS = SlotHolder("outer-1", "outer", "a", "a-1", 60.0, holds=True)
EMPTY = PoolFacts("a", ("a",), PoolStatus(), managers=managers(), attached=1)
FULL = PoolFacts(
    "a", ("a",), PoolStatus(wanted=1, running=1), managers(), 1, busy_slots=1, slots=1, running=(RUNS,)
)  # fmt: skip


def empty(**facts):
    status = {n: facts.pop(n) for n in PoolStatus().to_dict() if n in facts}
    return replace(EMPTY, status=PoolStatus(**status), **facts)


def leaving(*reasons, **facts):
    workers = {f"a-{n}": reason for n, reason in enumerate(reasons)}
    return empty(leaving=workers, **facts)


def call(state, pool=EMPTY, **facts):
    return TaskFacts("fit-9", "fit", "a", state, pool=pool, **facts)


def no_worker(pool=EMPTY, **ask):
    return call("no-worker", pool, ask=UnmetNeed(**ask))


def needs(*states, needed=None):
    found = tuple(
        TaskFacts(f"in-{n}", "in", "", state, worker="a-1") for n, state in enumerate(states)
    )
    return call("needs", needs=found, needed=needed or len(states))


TWO = leaving("its walltime ends in 3 min", "its walltime ends in 9 min", wanted=2, launching=2)
CASES = [
    (no_worker(replace(EMPTY, status=None, known_tags=("b",))), Reason.NO_POOL, "no pool 'a'; known tags: 'b'"),
    (no_worker(replace(EMPTY, status=None, attached=0)), Reason.NO_MANAGER, "no manager is attached"),
    (no_worker(empty(attached=0, wanted=1)), Reason.NO_MANAGER, "to start workers"),
    (no_worker(empty(managers=managers("leaving", 1.0), wanted=1)), Reason.NO_MANAGER, "is leaving and starts no more"),
    (no_worker(empty(awaits_managers=True)), Reason.MANAGER_STARTS, "not attached yet"),
    (no_worker(replace(EMPTY, status=None, awaits_managers=True)), Reason.MANAGER_STARTS, "not attached yet"),
    (no_worker(empty(managers=managers("lost", 90.0))), Reason.MANAGER_LOST, "no longer reports"),
    (no_worker(empty(wanted=1, reason="no image")), Reason.MANAGER_FAILS, "no image"),
    (no_worker(empty(held="80 % of the budget is spent", way_out="raise it")), Reason.BUDGET, "80 % of the budget is spent"),
    (no_worker(empty()), Reason.EMPTY, "it has no workers"),
    (no_worker(empty(**adaptive(0))), Reason.EMPTY, "its maximum is 0"),
    (no_worker(empty(**adaptive(3))), Reason.ADAPTIVE, "has not decided yet"),
    (no_worker(empty(**adaptive(3, 0, "too little work"))), Reason.ADAPTIVE, "too little work"),
    (no_worker(empty(wanted=1, launching=1, launching_s=9.0, usual_start_s=4.0)), Reason.LAUNCHING, "are starting, for 9.0 s now"),
    (no_worker(empty(wanted=2)), Reason.LAUNCHING, "none of its 2 workers has connected yet"),
    (no_worker(FULL), Reason.LAUNCHING, "have just connected or take no tasks yet"),
    (no_worker(empty(wanted=1, launching=1, waiting="Slurm: Priority")), Reason.PLACE, "(Slurm: Priority)"),
    (no_worker(empty(wanted=1, waiting="quota")), Reason.PLACE, "has connected yet (quota)"),
    (no_worker(empty(wanted=2, suspended=2)), Reason.PLACE, "its 2 workers are suspended"),
    (no_worker(TWO), Reason.WALLTIME, "its walltime ends in 3 min; its walltime ends in 9 min); 2 successors starting"),
    (no_worker(leaving("scale-down")), Reason.LEAVING, "its only worker is leaving: scale-down"),
    (no_worker(leaving("a", "b")), Reason.LEAVING, "all of its workers are leaving: a; b"),
    (no_worker(replace(FULL, paused=("a-1",))), Reason.PAUSED, "their memory is nearly full"),
    (no_worker(replace(FULL, ending="it was idle")), Reason.ENDING, "the cluster is stopping: it was idle"),
    (no_worker(not_offered=("GPU",)), Reason.RESOURCES, "resource 'GPU', which no worker offers"),
    (no_worker(apart=("a", "b")), Reason.RESOURCES, "pool 'a' and pool 'b'"),
    (no_worker(FULL, slots=4), Reason.SLOTS, "more slots than a worker of pool 'a' has: 1"),
    (no_worker(gone=("tcp://x",)), Reason.RESTRICTION, "worker tcp://x, which has left"),
    (no_worker(restricted_to=("tcp://x",), unable={"a": 2}), Reason.RESTRICTION, "without enough"),
    (needs("running"), Reason.DEPENDENCIES, "is blocked by task in-0 (running on worker a-1)"),
    (needs("assigned"), Reason.DEPENDENCIES, "in-0 (queued on worker a-1)"),
    (needs("no-worker", "needs"), Reason.DEPENDENCIES, "by 2 tasks: 1 queued, 1 blocked; one is in-0 (queued on worker a-1)"),
    (needs("failed"), Reason.DEPENDENCIES, "in-0 (failed"),
    (needs("lost", "lost", needed=40), Reason.DEPENDENCIES, "40 tasks; of the first 2: 2 recomputed"),
    (call("fetching", worker="a-1"), Reason.ARGUMENTS, "is queued on worker a-1: its arguments are being transferred"),
    (call("backoff", next_try=NextTry(20.0, 3, 4, "OSError: no")), Reason.BACKOFF, "is queued: attempt 3 of 4 starts in 20.0 s, after OSError: no"),
    (call("held"), Reason.ARGUMENTS, "is blocked in its client until its arguments are on a worker"),
    (call("queued", FULL), Reason.FULL, "its slot is taken, by tasks of 'fit', the oldest for"),
    (call("assigned", FULL, worker="a-1"), Reason.FULL, "on worker a-1 for a slot of pool 'a'"),
    (call("assigned", FULL, before=2, first=("fit-2",)), Reason.PRIORITY, "; after 2 tasks with a higher priority or submitted earlier, first fit-2"),
    (call("assigned", leaving("scale-down"), worker="a-1"), Reason.LEAVING, "on worker a-1 of pool 'a'"),
    (call("assigned", replace(FULL, running=(HOLDS,)), parent="outer-1"), Reason.HELD_SLOT, "neither can continue"),
    (call("assigned", replace(FULL, running=(HOLDS,))), Reason.HELD_SLOT, "outer-1 holds its slot while it waits"),
    (call("backlog", FULL, before=1), Reason.BACKLOG, "in its client until a slot is free, after 1 task; pool"),
    (call("backlog", empty()), Reason.EMPTY, "in its client for pool 'a': it has no workers"),
    (call("running", worker="a-1", since_s=3.0), Reason.RUNNING, "is running on worker a-1 for 3.0 s"),
    (call("running", worker="a-1", children=1, child="in-1", lends=True), Reason.NESTED, "its slot is lent"),
    (call("running", worker="a-1", children=2, child="in-1"), Reason.NESTED, "2 unfinished tasks, and it keeps its slot"),
    (call("done", worker="a-1"), Reason.DONE, "its result is available"),
    (call("failed", failure=Failure("ValueError", "no", "flow.py:3 in run", "a-1", 1)), Reason.FAILED, "ValueError: no (flow.py:3 in run); 1 worker was lost while running it"),
    (call("failed", failure=Failure("ValueError", "no", blamed="in-1")), Reason.FAILED, "because it needs task in-1"),
    (call("failed"), Reason.FAILED, "task fit-9 has failed"),
    (call("failed", count=3, gone=True, failure=Failure("ValueError", "no", "", "a-1")), Reason.FAILED, "3 tasks of 'fit' have failed, the last on worker a-1: ValueError: no"),
    (call("cancelled"), Reason.CANCELLED, "was cancelled"),
    (call("anything else"), Reason.UNKNOWN, "no task fit-9"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "reason", "words"), CASES, ids=[c[2] for c in CASES])
def test_each_state_of_a_call_has_its_sentence(facts, reason, words):
    found = explain_task(facts)
    assert found.reason is reason
    assert words in found.sentence
    assert "\n" not in found.sentence
    several = explain_task(replace(facts, count=3))  # the calls of a group
    assert several.reason is reason


def test_several_tasks_in_clients_are_queued_in_their_client():
    told = explain_task(call("backlog", empty(), count=3)).sentence
    assert told == "3 tasks of 'fit' are queued in their client for pool 'a': it has no workers"
    told = explain_task(call("backlog", FULL, count=3)).sentence
    assert told == "3 tasks of 'fit' are queued in their client until a slot is free"


def test_several_tasks_do_not_repeat_what_fills_their_pool():
    assert "its slot is taken" in explain_task(call("assigned", FULL, worker="a-1")).sentence
    told = explain_task(call("assigned", FULL, worker="a-1", count=3)).sentence
    assert told == "3 tasks of 'fit' are queued for a slot of pool 'a'"


def test_every_reason_has_a_case():
    told = {reason for _, reason, _ in CASES} | {explain_pool(replace(FULL, busy_slots=0)).reason}
    assert told == set(Reason)


def test_a_full_pool_that_does_not_grow_says_which_count_to_set():
    waiting = replace(FULL, queued=2, cluster_name="climate")
    assert explain_pool(waiting).sentence.endswith("; 2 tasks are queued")
    assert explain_pool(replace(waiting, queued=1)).sentence.endswith("; 1 task is queued")
    assert "scalable scale climate a=2" in explain_pool(waiting).advice
    growing = replace(waiting, **adaptive(3, 1, "enough"))
    assert "at most 3 workers: enough" in explain_pool(growing).advice


def of_climate(facts):
    pool = facts.pool and replace(facts.pool, cluster_name="climate")
    return replace(facts, cluster_name="climate", pool=pool)


def test_advice_for_a_shell_is_made_of_commands():
    def advice(facts):
        return explain_task(of_climate(facts)).advice

    assert advice(no_worker(empty())) == "start some with `scalable scale climate a=1`"
    again = advice(no_worker(empty(wanted=1, reason="no image")))
    assert again == "remove the cause, then `scalable scale climate a=1` starts workers again"
    assert advice(needs("needs")) == "see `scalable explain climate in-0`"
    assert (
        advice(call("running", children=1, child="in-1")) == "see `scalable explain climate in-1`"
    )
    blamed = call("failed", failure=Failure("ValueError", "no", blamed="('in', 1)"))
    assert advice(blamed) == """see `scalable explain climate '('"'"'in'"'"', 1)'`"""
    long = TaskFacts(f"in-{UUID}-7", "in", "", "needs")
    told = advice(call("needs", needs=(long,), needed=1))
    assert told == "see `scalable explain climate in-3f2a1c9d...-7`"
    assert explain_task(needs("needs")).advice == "explain task in-0"


def test_only_a_detached_cluster_is_resumed():
    lost = no_worker(empty(managers=managers("lost", 90.0)))
    assert explain_task(of_climate(lost)).advice == ""
    detached = of_climate(replace(lost, pool=replace(lost.pool, detached=True)))
    assert explain_task(detached).advice == "`scalable manager restart climate` starts it again"


HASH = UUID.replace("-", "")


@pytest.mark.parametrize(("key", "shown"), [
    ("fit-3", "fit-3"),
    (f"fit-{UUID}", "fit-3f2a1c9d"),
    (f"fit-{UUID}-12", "fit-3f2a1c9d...-12"),
    (f"fit-{HASH}-1234", "fit-3f2a1c9d...-1234"),
    (f"fit-{2 * HASH}", "fit-3f2a1c9d"),
    (f"('sum-{HASH}', 0, 1)", "('sum-3f2a1c9d...', 0, 1)"),
    (f"a-{HASH}-b-{HASH}-3", f"a-3f2a1c9d...-b-{HASH}-3"),
    (300 * "x" + UUID, f"{100 * 'x'}...{UUID.rjust(97, 'x')}"),
])  # fmt: skip
def test_a_short_key_means_its_key_and_no_similar_one(key, shown):
    assert short_key(key) == shown
    assert means_key(shown, key)
    assert means_key(key[:5], key)
    assert not means_key(shown, key.replace("3f2a1c9d", "3f2a1c9e").replace("fit-3", "fit-4"))
    assert "..." not in shown or not means_key(shown, f"{key}0")


@pytest.mark.parametrize("name", ["", "climate"])
def test_no_advice_exceeds_max_workers(name):
    allows = "max_workers 2 of the target allows no more workers: raise it in the manifest"
    full = replace(FULL, queued=1, cluster_name=name, max_workers=2)
    assert "a=2" in explain_pool(replace(full, wanted_in_all=1, cluster_name="c")).advice
    advice = explain_pool(replace(full, wanted_in_all=2)).advice
    assert advice == f"wait; {allows}, or give another pool fewer"
    jobs = replace(full, wanted_in_all=2, limited_by="at_most")
    assert explain_pool(jobs).advice.startswith("wait; at_most 2 of the target allows no more")
    alone = replace(full, max_workers=1, wanted_in_all=1)
    assert explain_pool(alone).advice == f"wait; {allows.replace('2', '1')}"
    nothing = empty(max_workers=2, wanted_in_all=2, cluster_name=name)
    assert explain_pool(nothing).advice == f"{allows}, or give another pool fewer"


def test_a_name_that_nobody_knows_is_answered_with_close_ones():
    found = explain_task(call("unknown", close=("fit", "fix")))
    assert found.advice.startswith("did you mean 'fit' or 'fix'? `scalable report")


def test_a_name_whose_tasks_have_finished_is_not_suggested_again():
    facts = call("unknown")
    found = explain_task(replace(facts, close=(facts.key, "fix")))
    assert "all are done, were cancelled, or were cache hits" in found.sentence
    assert "did you mean" not in found.advice


def test_an_explanation_is_shown_as_its_sentence():
    found = explain_task(call("anything else"))
    assert repr(found) == f"<Explanation: {found}>"
    assert found.sentence in repr(found)
    assert "scalable report --failed" in found.advice
    assert repr(Explanations((), (found,))) == f"<Explanations: {found}>"
