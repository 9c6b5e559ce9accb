"""The notice on its way from a machine to the workers on it, without processes."""

import json
from dataclasses import asdict

import pytest

from scalable.clusters.programs.machine import NoticeWatch
from scalable.errors import ProviderError
from scalable.worker.config import WorkerConfig, read_file
from scalable.worker.notices import NOTICE_FILE, read_notice, write_notice


class Side:
    def __init__(self, *answers):
        self.answers = list(answers)

    def notice(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_notice_is_read_with_the_time_that_is_left(tmp_path):
    file = tmp_path / "notice"
    assert read_notice(file) is None
    write_notice(file, 120.0)
    left_s, notice_s = read_notice(file)
    assert notice_s == 120.0
    assert 0 < left_s <= 120.0
    assert [path.name for path in tmp_path.iterdir()] == ["notice"]


def test_a_watch_writes_the_first_notice_and_asks_no_more(tmp_path):
    side = Side(None, 30.0)
    watch = NoticeWatch(side, tmp_path / "notice")
    assert not watch.look()
    assert not (tmp_path / "notice").exists()
    assert watch.look()
    assert watch.look()
    assert read_notice(tmp_path / "notice")[1] == 30.0


@pytest.mark.parametrize("error", [ProviderError("no answer"), TimeoutError("timed out")])
def test_a_machine_that_does_not_answer_is_asked_again_and_the_log_says_so_once(
    tmp_path, caplog, error
):
    watch = NoticeWatch(Side(error, error, 30.0), tmp_path / "notice")
    assert [watch.look() for _ in range(3)] == [False, False, True]
    assert [str(error) in record.getMessage() for record in caplog.records].count(True) == 1


def test_a_worker_takes_the_path_of_its_notice_out_of_its_environment(tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(asdict(WorkerConfig("tcp://127.0.0.1:1", ""))))
    file.chmod(0o600)
    monkeypatch.setenv("SCALABLE_SCRATCH", str(tmp_path))
    monkeypatch.setenv(NOTICE_FILE, "/run/notice")
    assert read_file(file, "w").notice_file == "/run/notice"
    monkeypatch.setenv("SCALABLE_SCRATCH", str(tmp_path))
    assert read_file(file, "w").notice_file == ""
