"""Which process is which, whether it is still there, and the end of exactly that one."""

import os
import signal
import subprocess
import sys
import time

import pytest

from scalable import liveness
from scalable.liveness import (
    SILENCE_S,
    end_process,
    identify,
    identify_process,
    is_alive,
    number_taken,
    process_gone,
    rebooted,
)

SLEEP = "import signal; signal.pause()"
DEAF = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True);"


@pytest.fixture
def start():
    """Starts a program, and ends it when the test is over."""
    started = []

    def start(code=SLEEP, **more):
        child = subprocess.Popen([sys.executable, "-c", code], **more)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait(10)
        if child.stdout:
            child.stdout.close()


@pytest.fixture(params=["pidfd_open", "of no such system call", "of no such function"])
def way(request, monkeypatch):
    """The ways to a process: by its descriptor, or without where there are none."""

    def refused(pid):
        raise OSError(38, "Function not implemented")

    if request.param == "of no such system call":
        monkeypatch.setattr(os, "pidfd_open", refused)
    elif request.param == "of no such function":
        monkeypatch.delattr(os, "pidfd_open")


def test_a_process_of_another_container_with_the_same_host_name_is_unknown(start):
    """Its number means another process here, or none."""
    child = start()
    there = {**identify(child.pid), "pid_namespace": "pid:[1]"}
    assert is_alive(there) is None
    assert is_alive({**there, "start_ticks": 1}) is None
    assert not number_taken({**there, "start_ticks": 1})
    assert "in another container" in liveness.place_of(there)
    assert "container" not in liveness.place_of(identify(child.pid))
    end_process(there, 0.1, 0.1)
    assert child.poll() is None
    assert is_alive({**there, "boot_id": "before"}) is False


def zombie(child):
    """Kill it, and wait until it is one; nobody reaps it."""
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_the_own_process():
    own = identify_process()
    assert own == identify(os.getpid())
    assert is_alive(own) is True
    assert not rebooted(own)
    assert not number_taken(own)


def test_another_process(start):
    child = start()
    identity = identify(child.pid)
    assert is_alive(identity) is True
    assert identity["start_ticks"] >= identify_process()["start_ticks"]
    child.kill()
    child.wait()
    assert is_alive(identity) is False
    assert not number_taken(identity)


def test_one_that_was_gone_when_it_was_identified_is_nobody(start):
    child = start()
    child.kill()
    child.wait()
    identity = identify(child.pid)
    assert is_alive(identity) is False
    assert is_alive({**identity, "pid": os.getpid()}) is False


def test_same_number_other_process():
    own = identify_process()
    for other in (
        {**own, "start_ticks": own["start_ticks"] + 1},
        {**own, "start_ticks": None, "process_started_at": own["process_started_at"] - 60},
    ):
        assert is_alive(other) is False
        assert number_taken(other)


def test_a_clock_that_was_corrected_a_bit():
    own = identify_process()
    moved = own["process_started_at"] + 3
    assert is_alive({**own, "process_started_at": moved}) is True
    assert is_alive({**own, "start_ticks": None, "process_started_at": moved}) is True


def test_a_machine_that_was_started_anew():
    before = {**identify_process(), "boot_id": "of another boot"}
    assert rebooted(before)
    assert is_alive(before) is False
    assert process_gone(before, time.time(), time.time())


def test_of_another_host_nothing_can_be_told():
    elsewhere = {**identify_process(), "host": "elsewhere", "boot_id": "theirs"}
    assert is_alive(elsewhere) is None
    assert not rebooted(elsewhere)
    assert not number_taken(elsewhere)
    assert not process_gone(elsewhere, 1000.0, 1000.0 + SILENCE_S)
    assert process_gone(elsewhere, 1000.0, 1001.0 + SILENCE_S)


@pytest.mark.parametrize("pid", [None, True, "7", 1.5])
def test_liveness_of_an_invalid_process_number_is_unknown(pid):
    assert is_alive({**identify_process(), "pid": pid}) is None
    assert not number_taken({**identify_process(), "pid": pid})


@pytest.mark.parametrize("pid", [-1, 2**40])
def test_a_number_that_no_process_has(pid):
    assert is_alive({**identify_process(), "pid": pid}) is False
    assert not number_taken({**identify_process(), "pid": pid})


def test_a_zombie_is_gone_and_not_another_process(start):
    child = start()
    identity = identify(child.pid)
    zombie(child)
    assert is_alive(identity) is False
    assert process_gone(identity, time.time(), time.time())
    assert not number_taken(identity)


def test_a_process_ends_when_it_is_asked(start, way):
    child = start()
    end_process(identify(child.pid), 30, 0)
    assert child.wait(10) == -signal.SIGTERM


def test_one_that_does_not_listen_is_killed(start, way):
    child = start(DEAF + SLEEP, stdout=subprocess.PIPE)
    child.stdout.readline()
    end_process(identify(child.pid), 0.2, 30)
    assert child.wait(10) == -signal.SIGKILL


def test_only_the_one_that_is_meant_ends(start, way):
    child = start()
    identity = identify(child.pid)
    for other in (
        {**identity, "start_ticks": identity["start_ticks"] + 1},
        {**identity, "boot_id": "of another boot"},
        {**identity, "host": "elsewhere"},
    ):
        end_process(other, 0.1, 0.1)
    # A signal would have ended it: it was there long enough to be ended.
    assert child.poll() is None
    time.sleep(0.2)
    assert child.poll() is None


def test_one_whose_number_is_given_away_at_the_last_moment_gets_no_signal(start, way, monkeypatch):
    child = start()
    identity = identify(child.pid)
    answers = iter([True])
    monkeypatch.setattr(liveness, "is_alive", lambda identity: next(answers, False))
    end_process(identity, 0, 0)
    time.sleep(0.2)
    assert child.poll() is None


def test_ending_what_is_gone_is_fine(start, way):
    child = start()
    identity = identify(child.pid)
    end_process(identity, 30, 0)
    end_process(identity, 30, 0)
    child.wait(10)
    end_process(identity, 30, 0)


def test_one_that_goes_between_the_look_and_the_signal_is_fine(start, way, monkeypatch):
    child = start()
    identity = identify(child.pid)
    child.kill()
    child.wait(10)
    monkeypatch.setattr(liveness, "is_alive", lambda identity: True)
    end_process(identity, 0, 0)
