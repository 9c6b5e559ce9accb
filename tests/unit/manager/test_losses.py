"""The reason for a loss, in words of ours and with the worker's last output."""

import pytest

from scalable.manager.reconciler import explained

DASK = (
    "2026-01-01 00:00:00,000 - distributed.worker.memory - WARNING - Unmanaged memory use is high. "
    "This may indicate a memory leak or the memory may not be released to the OS\n"
)
#: What a worker prints that is stopped while it runs a task.
CANCELLED = (
    "2026-01-01 00:00:00,000 - distributed.worker.state_machine - WARNING - Async instruction for "
    "<Task cancelled name=\"execute('f-1')\" coro=<Worker.execute() done>> ended with CancelledError\n"
)
KILLED = "it was killed by SIGKILL"


def test_a_loss_without_a_tag_names_no_component():
    assert explained(KILLED, DASK, "", "1G") == (
        f"{KILLED}, when its memory was nearly used up (memory of a worker without a tag: 1G)"
    )


@pytest.mark.parametrize(("reason", "output", "memory", "words"), [
    (KILLED, "", "500M", KILLED),
    (KILLED, 3 * CANCELLED, "500M", KILLED),
    (
        KILLED,
        f"{CANCELLED}year 1\n{CANCELLED}",
        "500M",
        f"{KILLED}, after it had printed 'year 1'; its last output:\n  year 1",
    ),
    (
        KILLED,
        "year 1\nyear 2\n",
        "500M",
        f"{KILLED}, after it had printed 'year 2'; its last output:\n  year 1\n  year 2",
    ),
    *(
        (KILLED, line, None, f"{KILLED}: {line}; its last output:\n  {line}")
        for line in (
            "RuntimeError: no licence",
            "model.errors.LicenceError",
            "slurmstepd: error: Detected 1 oom_kill event",
            "sh: 1: gcam: not found",
            "out of memory: 2 GB used, the limit is 1G; the worker exits",
        )
    ),
    (KILLED, DASK, "500M", f"{KILLED}, when its memory was nearly used up (memory of component 'a': 500M)"),
    (
        "it used more memory than it had requested",
        f"reading\n{DASK}",
        2 * 10**9,
        (
            "it used more memory than it had requested (memory of component 'a': 2G), after it had "
            "printed 'reading'; its last output:\n  reading"
        ),
    ),
    ("it ran out of memory (limit 500M)", DASK, "500M", "it ran out of memory (limit 500M)"),
    (KILLED, DASK, None, f"{KILLED}, when its memory was nearly used up"),
])  # fmt: skip
def test_a_loss_is_explained(reason, output, memory, words):
    assert explained(reason, output, "a", memory) == words
