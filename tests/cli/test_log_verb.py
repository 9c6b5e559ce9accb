"""``scalable logs``."""

import json
import signal

import pytest

from scalable import ScalableSession


@pytest.fixture
def written(recorded, tmp_path):
    """A cluster with the logs of two workers."""
    logs = tmp_path / "logs"
    logs.mkdir()
    directory = recorded()
    directory.write_scheduler({**directory.scheduler(), "log_dir": str(logs)})
    directory.logs_dir.mkdir()
    (directory.logs_dir / "scheduler.log").write_text("listens\n")
    (logs / "model-local-1f-0.log").write_text("first\nlast")
    (logs / "analysis-local-1f-0.log").write_text("")
    return directory, logs


def test_logs_for_people(invoke, written):
    result = invoke("logs", "one", "--pool", "model")
    assert (result.code, result.err) == (0, "")
    assert result.out == "==> model-local-1f-0 <==\nfirst\nlast\n"
    assert invoke("logs", "one", "--worker", "analysis-local-1f-0").out == (
        "==> analysis-local-1f-0 <==\n"
    )
    assert invoke("logs", "one", "--worker", "scheduler").out == "==> scheduler <==\nlistens\n"
    both = invoke("logs", "one").out
    assert "==> model-local-1f-0 <==" in both
    assert "==> analysis-local-1f-0 <==" in both


def test_the_logs_of_an_ended_cluster_are_in_its_record(invoke, written):
    result = invoke("logs", "two")
    assert result.code == 5
    assert "there is no cluster 'two'" in result.err
    assert "in logs/ of its run's record" in result.err


def test_logs_for_programs(invoke, written):
    value = json.loads(invoke("logs", "one", "--pool", "model", "--format", "json").out)
    log = {"worker": "model-local-1f-0", "tag": "model", "text": "first\nlast"}
    assert value == {"version": 1, "logs": [log]}


def test_the_last_lines_alone_can_be_shown(invoke, written):
    shown = invoke("logs", "one", "--pool", "model", "--tail", "1").out
    assert shown == "==> model-local-1f-0 <==\nlast\n"
    assert invoke("logs", "one", "--tail", "1", "--follow").code == 2


def test_no_log_yet(invoke, recorded):
    recorded(running=False)
    assert invoke("logs", "one").out == "no output yet\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--pool", "moon"),
            "cluster 'one' has no pool 'moon'\n  hint: known pools: model, analysis",
        ),
        (("--worker", "moon"), "worker 'moon' has no log\n  hint: available logs: "),
        (("--worker", "moon", "--follow"), "worker 'moon' has no log"),
    ],
)
def test_an_unknown_pool_or_worker_is_an_error(arguments, message, invoke, written):
    result = invoke("logs", "one", *arguments)
    assert (result.code, result.out) == (5, "")
    assert message in result.err


def test_following_ends_with_the_cluster(written, spawn):
    directory, logs = written
    process = spawn("logs", "one", "--pool", "model", "--follow")
    assert process.stdout.readline() == "model-local-1f-0: first\n"
    with (logs / "model-local-1f-0.log").open("a") as file:
        file.write(" word\n")
    assert process.stdout.readline() == "model-local-1f-0: last word\n"
    directory.remove()
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_following_for_programs_is_a_value_a_line_and_ends_when_interrupted(written, spawn):
    process = spawn("logs", "one", "--pool", "model", "--follow", "--format", "json")
    assert json.loads(process.stdout.readline()) == {"worker": "model-local-1f-0", "line": "first"}
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_followed_lines_can_go_to_a_file(written, spawn, tmp_path, eventually):
    file = tmp_path / "followed"
    file.write_text("of yesterday\n")
    process = spawn("logs", "one", "--pool", "model", "--follow", "--output", file)
    eventually(lambda: file.read_text() == "model-local-1f-0: first\n")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")


def test_the_name_of_the_only_cluster_may_be_left_out(invoke, written):
    assert invoke("logs", "--worker", "scheduler").out == "==> scheduler <==\nlistens\n"


def test_several_clusters_must_be_told_apart(invoke, recorded):
    recorded()
    recorded(name="two", uuid="1f0e0d0c-1111-4222-8333-444455556666")
    result = invoke("logs")
    assert result.code == 5
    assert "there are 2 clusters: one, two\n  hint: name one of them" in result.err


def test_without_a_cluster_the_last_run_is_shown(invoke, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "contains no recorded run" in invoke("logs").err
    with ScalableSession.local({"model": 1}, processes=True) as client:
        client.submit(print, "of the last run", tag="model").result()
    result = invoke("logs", "--pool", "model")
    assert result.code == 0
    assert "\nof the last run\n" in result.out
    assert "has no log of pool moon" in invoke("logs", "--pool", "moon").err
    assert "leave out --follow" in invoke("logs", "--follow").err
