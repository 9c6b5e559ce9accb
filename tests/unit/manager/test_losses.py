"""The reason for a loss, in words of ours and with the worker's last output."""

import pytest

from scalable.manager.losses import explained

DASK = (
    "2026-01-01 00:00:00,000 - distributed.worker.memory - WARNING - Unmanaged memory use is high. "
    "This may indicate a memory leak or the memory may not be released to the OS\n"
)
KILLED = "it was killed by SIGKILL"


@pytest.mark.parametrize(
    ("reason", "output", "memory", "words"),
    [
        (KILLED, "", "500M", KILLED),
        (KILLED, "no licence\n", "500M", f"{KILLED}: no licence; its last output:\n  no licence"),
        (
            KILLED,
            DASK,
            "500M",
            f"{KILLED}, when its memory was nearly used up (memory of component 'a': 500M)",
        ),
        (
            "it used more memory than it had asked for",
            f"reading\n{DASK}",
            2 * 10**9,
            (
                "it used more memory than it had asked for (memory of component 'a': 2G): reading; "
                "its last output:\n  reading"
            ),
        ),
        ("it ran out of memory (limit 500M)", DASK, "500M", "it ran out of memory (limit 500M)"),
        (KILLED, DASK, None, f"{KILLED}, when its memory was nearly used up"),
    ],
)
def test_a_loss_is_explained(reason, output, memory, words):
    assert explained(reason, output, "a", memory) == words
