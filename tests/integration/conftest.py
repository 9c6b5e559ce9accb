"""Waiting without guessing: every wait has a generous bound and says what it waited for."""

import time

import pytest


@pytest.fixture
def eventually():
    """Wait until a condition holds; the answer of the condition is returned."""

    def wait(condition, what="", timeout=60.0):
        deadline = time.monotonic() + timeout
        while True:
            answer = condition()
            if answer:
                return answer
            assert time.monotonic() < deadline, f"waited {timeout} s in vain: {what or condition}"
            time.sleep(0.05)

    return wait
