"""The last lines that the process of a worker has printed."""

from scalable.protocol.failures import LAST_CHARACTERS
from scalable.worker.program import _last_printed

DASK = (
    "2026-03-01 12:00:00,759 - distributed.worker - INFO -       Start worker at: tls://10.0.0.1\n"
)


def test_the_log_of_normal_work_is_left_out():
    warned = "2026-03-01 12:00:01,000 - distributed.worker - WARNING - memory is full\n"
    traced = "Traceback (most recent call last):\n  File 'x'\nOSError: lost\n"
    text = f"{30 * DASK}fitting 2020\n{DASK}{warned}{traced}{warned}{40 * DASK}"
    assert _last_printed(text) == "fitting 2020"


def test_the_log_of_other_failed_calls_is_left_out():
    entry = (
        "2026-03-01 12:00:00,900 - distributed.worker - ERROR - Compute Failed\n"
        "Key:       read-1\nState:     executing\nTask:  <Task 'read-1' read>\n"
        """Exception: "ValueError('no')"\nTraceback: '  File "f.py", line 2, in read\\n'\n\n"""
    )
    assert _last_printed(f"first\n{entry}{entry}Key: of the user\n") == "first\nKey: of the user"


def test_an_output_of_normal_work_alone_is_none():
    assert _last_printed(30 * DASK) is None
    assert len(_last_printed("x" * 3 * LAST_CHARACTERS)) == LAST_CHARACTERS
