"""Dask's own pages with tasks of our workers."""

import pytest

from scalable import ScalableSession

pytest.importorskip("bokeh")


def fit(x):
    return x


def fail(x):
    raise ValueError(x)


@pytest.fixture(scope="module")
def session():
    session = ScalableSession.local({"a": 1})
    with session as client:
        client.gather([client.submit(fit, n, tag="a", pure=False) for n in range(3)])
        yield session


def test_the_task_stream_shows_calls_bundles_and_failures(session):
    from distributed.dashboard.components.scheduler import AggregateAction, TaskStream

    scheduler, client = session.cluster.scheduler, session.client

    async def begin():
        return TaskStream(scheduler)

    async def update(stream):
        stream.update()
        sums = AggregateAction(scheduler)
        sums.update()
        return stream.source.data, sums.action_source.data

    stream = session.cluster.sync(begin)
    assert client.submit(fit, 1, tag="a", pure=False).result() == 1
    assert client.submit(fail, 1, tag="a", pure=False).exception() is not None
    with client.pool("a") as pool:
        assert list(pool.map(fit, range(2))) == [0, 1]
        assert pool.submit(fail, 2).exception() is not None
    shapes, sums = session.cluster.sync(update, stream)
    assert {"fit", "fail"} <= set(shapes["name"])
    assert "black" in list(shapes["color"])  # the task that failed
    assert max(shapes["start"]) < 1e9  # in milliseconds since the first: no shape lies in 1970
    ours = [n for n, name in enumerate(shapes["name"]) if name.startswith("deserialize-")]
    assert {shapes["duration"][n] for n in ours} == {0.0}
    assert "compute" in list(sums["names"])
