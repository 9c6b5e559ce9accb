"""Outcomes of tasks, as a worker sends them."""

from __future__ import annotations

from typing import Any

from scalable.client.calls.backlog import ValueOrError
from scalable.client.missing_packages import with_package
from scalable.protocol.bundles import ERROR, KEPT, PICKLED
from scalable.protocol.messages import load, load_error


def loaded(kind: int, value: Any) -> ValueOrError:
    """Return the result and the error of a task, of which one is None.

    ``kind`` is a kind of outcome of :mod:`scalable.protocol.bundles`. ``value`` is the value
    itself, the pickled value, or the pickled error.
    """
    if kind == ERROR:
        return None, with_package(load_error(value))
    if kind in (PICKLED, KEPT):
        try:
            return value.load() if kind == KEPT else load(value), None
        except Exception as error:  # noqa: BLE001 - whatever the object's own code raises
            return None, error
        except BaseException as ended:  # noqa: BLE001 - it would end the event loop
            return None, RuntimeError(f"the result cannot be loaded: {ended!r}")
    return value, None
