"""Sessions that are closed when their process exits, also after a signal."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

#: Method that closes a session; its argument is the error that stopped the script, or None.
Close: TypeAlias = Callable[[BaseException | None], None]

_open: set[weakref.WeakMethod[Close]] = set()
#: Signals that exit a process in which sessions are open, as Ctrl-C does.
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
#: The exit that such a signal has caused.
_exits: list[SystemExit] = []


def closed_at_exit(close: Close) -> None:
    """Register a session to close at the interpreter's exit, with a weak reference."""
    import distributed.deploy.spec  # noqa: F401 - its exit handler has to run later

    atexit.unregister(_close_open_sessions)
    atexit.register(_close_open_sessions)
    _open.add(weakref.WeakMethod(close, _open.discard))
    _handle_signals(signal.SIG_DFL, _exit_by_signal)


def no_longer_closed_at_exit(close: Close) -> None:
    """Undo :func:`closed_at_exit`, if the session is registered."""
    _open.discard(weakref.WeakMethod(close))
    if not _open:  # a handler in Python waits for the end of a long call into C
        _handle_signals(_exit_by_signal, signal.SIG_DFL)


def _handle_signals(old: Any, new: Any, numbers: Iterable[signal.Signals] = _SIGNALS) -> None:
    """Replace a handler of signals with another one, and keep those of the program."""
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) == old:
                signal.signal(number, new)


def _exit_by_signal(number: int, frame: object) -> None:  # noqa: ARG001 - as signal calls it
    """Exit as after Ctrl-C, so that sessions are closed. The next signal kills."""
    signal.signal(number, signal.SIG_DFL)
    if not _open:  # in the fork of a thread, or the sessions are being closed
        os.kill(os.getpid(), number)
    _exits.append(SystemExit(128 + number))
    raise _exits[-1]


# Python forgets a signal that a new child receives before its handlers can run, and a child that is
# terminated at once would live on. During a fork, signals therefore have their default effect.
os.register_at_fork(
    before=lambda: _handle_signals(_exit_by_signal, signal.SIG_DFL),
    after_in_parent=lambda: _handle_signals(
        signal.SIG_DFL, _exit_by_signal if _open else signal.SIG_DFL
    ),
    after_in_child=_open.clear,
)


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Raise KeyboardInterrupt after the block, where it would be lost or become another error."""
    caught = []

    def catch(number: int, _: object) -> None:
        caught.append(number)

    _handle_signals(signal.default_int_handler, catch, [signal.SIGINT])
    try:
        yield
    finally:
        _handle_signals(catch, signal.default_int_handler, [signal.SIGINT])
        if caught:
            raise KeyboardInterrupt from None


def _close_open_sessions() -> None:
    """Close the sessions left open by the script, before Dask closes their event loops."""
    error = _exits[-1] if _exits else getattr(sys, "last_value", None)
    for reference in list(_open):
        close = reference()
        if close is not None:
            close(error)
