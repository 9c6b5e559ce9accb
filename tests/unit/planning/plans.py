"""Requests, work and problems to plan for."""

from hypothesis import strategies as st

from scalable.model import ComponentSpec, DeploymentSpec, Forecast, TaskSpec
from scalable.planning.frontier import CountBounds
from scalable.planning.network import make_network
from scalable.planning.objectives import Problem
from scalable.planning.work import ExpectedTasks


def request(*tasks, components=None, provider="slurm", **fields):
    """A request; ``n_workers`` and ``max_workers`` among the options count as written."""
    options = fields.pop("options", {})
    tags = dict.fromkeys(task.component for task in tasks)
    made = components or [ComponentSpec(tag) for tag in tags]
    return DeploymentSpec(
        project_name="p",
        target_name="t",
        provider_name=provider,
        components={c.name: c for c in made},
        tasks={t.name: t for t in tasks},
        options=options,
        written_options=frozenset(k for k, v in options.items() if v is not None),
        **fields,
    )


def task(name, tag, count=None, duration_s=None, after=()):
    return TaskSpec(name, tag, count=count, duration_s=duration_s, after=after)


def calls(name, tag, count, forecast, after=()):
    if not isinstance(forecast, Forecast):
        forecast = Forecast.exactly(float(forecast))
    return ExpectedTasks(name, tag, count, forecast, tuple(after))


def problem(work, *, most=1000, total=None, rates=None, slots=1, startup=0.0):
    tags = list(dict.fromkeys(c.tag for c in work))
    network = make_network(work, dict.fromkeys(tags, slots), dict.fromkeys(tags, startup))
    given = [1.0] * len(tags) if rates is None else rates
    bounds = CountBounds([1] * len(tags), [most] * len(tags), total, given)
    return Problem(network, network, bounds)


UNEVEN = Forecast(12.0, 10.0, 18.0, 30.0, samples=30, source="history")


@st.composite
def works(draw, most_pools=4, most_calls=30):
    """Some pools, each with a task or two, in any order that has no circle."""
    pools = draw(st.integers(1, most_pools))
    work = []
    for number in range(draw(st.integers(pools, pools + 2))):
        before = [c.task for c in work if draw(st.booleans())]
        forecast = draw(st.sampled_from([5, 20.0, UNEVEN]))
        count = draw(st.integers(1, most_calls))
        work.append(calls(f"t{number}", f"p{number % pools}", count, forecast, before))
    return work
