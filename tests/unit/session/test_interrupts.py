"""Interrupts while a session starts."""

import signal

import pytest

from scalable.session.exits import interrupts_later


@pytest.fixture(autouse=True)
def usual_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("error", [None, ImportError("half loaded")])
def test_an_interrupt_is_raised_after_what_it_would_break(error):
    done = []

    def load():
        with interrupts_later():
            signal.raise_signal(signal.SIGINT)
            done.append("loaded")
            if error is not None:
                raise error

    with pytest.raises(KeyboardInterrupt) as caught:
        load()
    assert done == ["loaded"]
    assert caught.value.__suppress_context__


def test_without_an_interrupt_nothing_is_raised():
    with interrupts_later():
        pass
