"""The frames of all threads are read while no garbage is collected."""

import gc
import subprocess
import sys
import threading

import pytest

from scalable.protocol.servers import read_frames_without_collection

#: Threads end while a callback of the collector runs in a thread that reads the frames.
ENDING_THREADS = """
import gc, threading, time
from scalable.protocol.servers import read_frames_without_collection
import sys

def slow(phase, info):
    if threading.current_thread() is reader:
        time.sleep(0.03)

def rest(depth):
    return rest(depth - 1) if depth else time.sleep(0.02)

def read():
    for _ in range(10):
        time.sleep(0.005)
        gc.set_threshold(1)
        sys._current_frames()
        gc.set_threshold(700)

read_frames_without_collection()
reader = threading.Thread(target=read)
gc.callbacks.append(slow)
reader.start()
while reader.is_alive():
    threading.Thread(target=rest, args=(5,)).start()
    time.sleep(0.002)
"""


def test_threads_may_end_while_frames_are_read():
    done = subprocess.run([sys.executable, "-c", ENDING_THREADS], check=False, timeout=60)
    assert done.returncode == 0


@pytest.fixture
def collecting(monkeypatch):
    """Whether garbage was collected in each reading of the frames."""
    read, seen = sys._current_frames, []

    def note():
        seen.append(gc.isenabled())
        return getattr(read, "__wrapped__", read)()

    monkeypatch.setattr(sys, "_current_frames", note)
    return seen


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="this Python sees to it itself")
def test_no_garbage_is_collected_while_frames_are_read(collecting):
    read_frames_without_collection()
    read_frames_without_collection()
    assert threading.get_ident() in sys._current_frames()
    assert collecting == [False]
    assert gc.isenabled()


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="this Python sees to it itself")
def test_a_collector_that_is_switched_off_stays_off(collecting):
    read_frames_without_collection()
    gc.disable()
    try:
        sys._current_frames()
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert collecting == [False]
