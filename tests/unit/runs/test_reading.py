"""Reading a run that was torn, that is missing parts, that crashed, or that still goes on."""

import json
import os
import time
from pathlib import Path

import psutil
import pytest

import scalable.runs.reading as reading_module
from scalable.runs.reading import read_run


def rewrite(run, **changes):
    path = run.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def append_raw(run, data, stream="tasks"):
    with (run.path / f"{stream}.jsonl").open("ab") as file:
        file.write(data)


@pytest.mark.parametrize("garbage", [
    b"garbage", b'{"task_id":"x"}{"task_id":"y"}', b"17", b"\xff\xfe\x00", b"\x00" * 50,
    b"[" * 100_000, b'{"n":' + b"9" * 5000 + b"}",
], ids=["text", "merged", "number", "binary", "zeros", "deep", "long-number"])  # fmt: skip
def test_garbage_in_the_middle_is_counted(run, garbage):
    append_raw(run, b'{"task_id":"a"}\n' + garbage + b'\n\n{"task_id":"b"}\n')
    record = read_run(run.path)
    assert [row["task_id"] for row in record.tasks] == ["a", "b"]
    assert record.malformed_lines == 1


class TestInterrupted:
    """A run that says it is running, and whose process is not there."""

    def test_own_process_is_running(self, run):
        assert read_run(run.path).status == "running"

    def test_pid_in_use_by_another_process(self, run):
        rewrite(run, start_ticks=1)
        assert read_run(run.path).status == "interrupted"

    @pytest.mark.parametrize(("off_s", "status"), [(60, "interrupted"), (2, "running")])
    def test_start_by_a_clock_that_may_be_corrected_a_bit(self, run, off_s, status):
        began = psutil.Process().create_time() - off_s
        rewrite(run, start_ticks=None, process_started_at=began)
        assert read_run(run.path).status == status

    def test_clock_that_was_corrected_while_it_ran(self, run):
        rewrite(run, process_started_at=psutil.Process().create_time() - 60)
        assert read_run(run.path).status == "running"

    def test_machine_that_was_started_again(self, run):
        rewrite(run, boot_id="of another boot")
        gone = Path("/proc/sys/kernel/random/boot_id").exists()
        assert read_run(run.path).status == ("interrupted" if gone else "running")

    @pytest.mark.parametrize(("age_s", "status"), [(110, "running"), (130, "interrupted")])
    def test_other_host_goes_by_silence(self, run, age_s, status):
        rewrite(run, host="elsewhere", pid=1, process_started_at=0.0)
        then = time.time() - age_s
        for path in [*run.path.iterdir(), run.path]:
            os.utime(path, (then, then))
        assert read_run(run.path).status == status

    def test_other_host_that_wrote_one_stream_lately(self, run):
        rewrite(run, host="elsewhere")
        then = time.time() - 500
        for path in [*run.path.iterdir(), run.path]:
            os.utime(path, (then, then))
        os.utime(run.path / "resources.jsonl")
        assert read_run(run.path).status == "running"

    def test_run_that_closes_while_it_is_looked_at(self, run, monkeypatch):
        def ends_meanwhile(about, last_write, now):
            run.close("completed")
            return True

        monkeypatch.setattr(reading_module, "process_gone", ends_meanwhile)
        assert read_run(run.path).status == "completed"

    def test_closed_run_of_a_process_that_is_gone(self, run):
        run.close("completed")
        rewrite(run, process_started_at=1.0)
        assert read_run(run.path).status == "completed"
