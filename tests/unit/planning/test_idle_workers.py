"""Workers that would be idle, as earlier runs tell."""

import pytest
from plans import request, task

from scalable.model import ComponentSpec, Forecast, WorkerRange
from scalable.planning import Knowledge, PlanRequest, make_plan, worker_counts

MEASURED = Forecast(1.0, 1.0, 1.0, 1.0, samples=5, source="history")


def spec(more=None, workers=None, **options):
    components = [
        ComponentSpec("crops", workers=WorkerRange(2, 2)),
        ComponentSpec("statistics", workers=workers),
    ]
    tasks = [task("grow", "crops"), task("summarise", "statistics")]
    return request(*tasks, components=components, options=options, **(more or {}))


def known(statistics=1, busiest=None):
    return Knowledge(
        forecasts={"grow": MEASURED, "summarise": MEASURED},
        calls={"grow": 12, "summarise": statistics},
        busiest={"crops": 12, "statistics": busiest or statistics},
    )


def planned(given, knowledge, **requested):
    made = make_plan(given, "0" * 64, knowledge, PlanRequest.parse(**requested))
    # Earlier runs only advise: the counts are those of the manifest.
    assert made.scale_plan.workers_by_tag == worker_counts(given)
    return [reason for reason in made.reasons if "would be idle" in reason]


@pytest.mark.parametrize("policy", [None, "manual"])
def test_a_small_earlier_run_does_not_lower_the_counts(policy):
    (said,) = planned(spec(max_workers=5), known(), policy=policy)
    assert said == (
        "2 of 3 statistics workers would be idle if this run sends no more tasks to the pool than "
        "earlier runs, at most 1; `max_workers: 5` of the target requests them."
    )


def test_the_greatest_number_of_calls_of_the_latest_runs_counts():
    assert planned(spec(max_workers=5), known(1, busiest=20)) == []
    assert planned(spec(max_workers=5), Knowledge()) == []


@pytest.mark.parametrize(("given", "because"), [
    (spec(workers=WorkerRange(3, 3)), "`components.statistics.workers` requests 3."),
    (spec(workers=WorkerRange(2, 3), max_workers=4), "`components.statistics.workers` requests 2."),
    (spec(n_workers=5), "`n_workers: 5` of the target requests them."),
    (spec({"adaptive": WorkerRange(4, 5)}, max_workers=5), "`adaptive` of the target requests them."),
])  # fmt: skip
def test_idle_workers_are_named_with_what_asks_for_them(given, because):
    (said,) = planned(given, known(1))
    assert because in said


def test_a_worker_with_several_slots_counts_that_many_calls():
    given = spec(max_workers=5, threads_per_worker=4)
    (said,) = planned(given, known(5))
    assert said.startswith("1 of 3 statistics workers would be idle")
