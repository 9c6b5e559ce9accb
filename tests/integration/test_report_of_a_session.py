"""The report of a real run: what the scheduler recorded is what the report tells."""

import pytest

from scalable import RunError, ScalableSession


def first(number):
    return number


def second(number):
    return number + 1


def broken(number):
    raise ValueError(f"bad value {number}")


def test_a_session_reports_its_run_while_it_runs_and_after_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALABLE_RUNS_DIR", str(tmp_path))
    session = ScalableSession.local({"a": 2})
    with pytest.raises(RunError, match="no record of a run"):
        session.report()
    with session as client:
        ends = [client.submit(second, client.submit(first, n, tag="a"), tag="a") for n in range(3)]
        assert client.gather(ends) == [1, 2, 3]
        failed = [client.submit(broken, n, tag="a") for n in range(2)]
        assert all(future.exception() is not None for future in failed)
        running = session.report().summary
        assert running.status == "running"
        assert running.tasks == {"succeeded": 6, "failed": 2}
    report = session.report()
    assert report.summary.status == "completed"
    assert report.summary.tasks == {"succeeded": 6, "failed": 2}
    assert {name.partition("-")[0] for name in report.timeline["rows"]} == {"a"}
    assert report.pools[0].workers == 2
    assert dict(report.chain.names) == {"first": 1, "second": 1}
    assert [(cause.count, cause.failure_class) for cause in report.causes] == [(2, "ValueError")]
    assert set(report.environment.versions) == {"python", "dask", "distributed", "scalable"}
    assert report.environment.hosts == 1
    assert report.environment.cpus >= 1
    assert "bad value" in report.save(tmp_path / "report.html").read_text()
