"""How long the expected work takes."""

import pytest

from scalable.planning import expected_duration
from scalable.spec import ComponentSpec, DeploymentSpec, TaskSpec


def spec(*tasks, slots=1, **options):
    components = {tag: ComponentSpec(name=tag, slots=slots) for tag in ("a", "b")}
    by_name = {task.name: task for task in tasks}
    return DeploymentSpec("p", "t", "local", components, tasks=by_name, options=options)


def task(name, tag="a", count=10, duration_s=60.0, after=()):
    return TaskSpec(name=name, component=tag, count=count, duration_s=duration_s, after=after)


@pytest.mark.parametrize(
    ("request_", "workers", "seconds"),
    [
        (spec(task("x")), {"a": 2}, 300),
        (spec(task("x")), {"a": 3}, 240),
        (spec(task("x")), {"a": 100}, 60),
        (spec(task("x"), slots=5), {"a": 2}, 60),
        (spec(task("x"), threads_per_worker=2), {"a": 1}, 300),
        (spec(task("x"), task("y")), {"a": 2}, 600),
        (spec(task("x"), task("y", "b")), {"a": 2, "b": 1}, 600),
        (spec(task("x"), task("y", "b", after=("x",))), {"a": 2, "b": 1}, 900),
        (spec(task("y", "b", after=("x",)), task("x", count=1)), {"a": 2, "b": 10}, 120),
        (spec(task("x", count=0)), {"a": 1}, 0),
    ],
)
def test_pools_and_chains(request_, workers, seconds):
    assert expected_duration(request_, workers) == seconds


@pytest.mark.parametrize(
    ("request_", "workers"),
    [
        (spec(), {"a": 1}),
        (spec(task("x", count=None)), {"a": 1}),
        (spec(task("x"), task("y", duration_s=None)), {"a": 1}),
        (spec(task("x")), {"a": 0}),
        (spec(task("x")), {"b": 1}),
    ],
)
def test_without_expectations_or_workers_nothing_is_said(request_, workers):
    assert expected_duration(request_, workers) is None


def test_chains_may_be_long():
    tasks = [task(f"t{n}", count=1, after=(f"t{n - 1}",) if n else ()) for n in range(3000)]
    assert expected_duration(spec(*tasks), {"a": 9}) == 3000 * 60
