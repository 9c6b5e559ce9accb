"""Workers that would idle, as earlier runs tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import request, task

from scalable.model import ComponentSpec, Forecast, WorkerRange
from scalable.planning import Knowledge, make_plan, worker_counts

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


def planned(given, knowledge):
    made = make_plan(given, "0" * 64, knowledge)
    before = make_plan(given, "0" * 64).scale_plan.workers_by_tag["statistics"]
    after = made.scale_plan.workers_by_tag["statistics"]
    assert made.left_out == ({"statistics": before - after} if before > after else {})
    said = [reason for reason in made.reasons if "would idle" in reason]
    return made.scale_plan.workers_by_tag["statistics"], said


def test_idle_workers_are_not_given_and_named():
    count, said = planned(spec(max_workers=5), known())
    assert count == 1
    (sentence,) = said
    assert sentence == (
        "2 of 3 statistics workers would idle: earlier runs sent at most 1 call to the pool, so it "
        "gets 1."
    )


def test_the_greatest_number_of_calls_of_the_latest_runs_counts():
    assert planned(spec(max_workers=5), known(1, busiest=2))[0] == 2
    assert planned(spec(max_workers=5), known(1, busiest=20)) == (3, [])


def test_without_earlier_runs_the_manifests_counts_are_kept():
    assert planned(spec(max_workers=5), Knowledge()) == (3, [])


@pytest.mark.parametrize(
    ("given", "count", "because"),
    [
        (spec(workers=WorkerRange(3, 3)), 3, "`components.statistics.workers` asks for 3."),
        (spec(workers=WorkerRange(2, 3), max_workers=5), 2, "so it gets 2"),
        (spec(n_workers=5), 3, "`n_workers: 5` of the target asks for them."),
        (
            spec({"adaptive": WorkerRange(4, 5)}, max_workers=5),
            2,
            "`adaptive.minimum` of the target asks for them.",
        ),
    ],
)
def test_workers_that_the_manifest_asks_for_are_obeyed(given, count, because):
    found, (said,) = planned(given, known(1))
    assert found == count
    assert because in said or "asks for 2" in said


def test_a_slot_less_pool_counts_the_calls_of_all_slots():
    given = spec(max_workers=5, threads_per_worker=4)
    assert planned(given, known(5))[0] == 2


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(4, 30),
    st.integers(0, 3),
)
def test_counts_grow_with_what_is_useful_and_with_the_total(useful, total, pool):
    tags = [f"p{i}" for i in range(len(useful))]
    components = [ComponentSpec(tag) for tag in tags]
    tasks = [task(tag, tag) for tag in tags]

    def counts(maximum, of):
        given = request(*tasks, components=components, options={"max_workers": maximum})
        return worker_counts(given, dict(zip(tags, of, strict=True)))

    now = counts(total, useful)
    assert all(1 <= now[tag] <= n for tag, n in zip(tags, useful, strict=True))
    assert sum(now.values()) == min(total, sum(useful))
    more = counts(total + 1, useful)
    assert all(more[tag] >= now[tag] for tag in tags)
    pool %= len(tags)
    grown = [n + (i == pool) for i, n in enumerate(useful)]
    assert counts(total, grown)[tags[pool]] >= now[tags[pool]]
