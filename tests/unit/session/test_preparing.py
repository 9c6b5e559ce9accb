"""Programs of a provider that are started early, and end if no cluster takes them over."""

import pytest

from scalable import PlanError, ScalableSession
from scalable.providers.local import cluster
from scalable.providers.local import provider as local


class Server:
    """A fork server that counts how often it was closed."""

    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


@pytest.fixture
def servers(monkeypatch):
    started = []

    def start(_spec):
        started.append(Server())
        return started[-1]

    monkeypatch.setattr(local, "_fork_server", start)
    return started


@pytest.fixture
def session():
    return ScalableSession.local({"a": 1}, processes=True)


def test_a_session_that_cannot_plan_ends_what_was_started_early(servers, session, monkeypatch):
    def fail(_self):
        raise PlanError("no plan")

    monkeypatch.setattr(ScalableSession, "plan", fail)
    with pytest.raises(PlanError, match="no plan"):
        session.start()
    assert [server.closed for server in servers] == [1]


def test_a_cluster_takes_over_what_was_started_early(servers, session, monkeypatch):
    provider, taken = local.LocalProvider(), []
    monkeypatch.setattr(cluster, "build_cluster", lambda _spec, server: taken.append(server))
    end = provider.prepare(session.spec)
    provider.build_cluster(session.spec)
    end()
    assert taken == servers
    assert [server.closed for server in servers] == [0]
    provider.build_cluster(session.spec)
    assert taken == servers
    assert len(servers) == 2


def test_threads_need_no_fork_server(servers):
    session = ScalableSession.local({"a": 1})
    local.LocalProvider().prepare(session.spec)()
    assert servers == []
