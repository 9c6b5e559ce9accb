"""`Sweep`: one function run with many sets of parameters, and a table of the outcomes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from distributed import Client, Future, wait

from scalable.client.failures import CallFailed
from scalable.protocol.handlers import SchedulerCalls
from scalable.units import seconds_of

#: Words for Dask's states of futures.
STATES = {"finished": "done", "error": "failed"}
#: Columns after those of the parameters.
COLUMNS = ("state", "result", "error", "duration_s", "worker")
#: Number of tasks whose measurements are requested at once.
_AT_ONCE = 100


class Sweep:
    """Tasks of one function, one for each set of parameters. Made by ``ScalableClient.sweep``.

    Attributes
    ----------
    parameters
        Keyword arguments of each task, as dictionaries.
    futures
        Futures of the tasks, in the same order. The result of a failed one is a
        :class:`scalable.CallFailed`.
    """

    def __init__(
        self,
        client: Client,
        parameters: Iterable[Mapping[str, Any]],
        futures: Iterable[Future[Any]],
        frame: type[Any] | None = None,
    ) -> None:
        self.parameters = tuple(dict(row) for row in parameters)
        self.futures = tuple(futures)
        self._client, self._frame = client, frame

    def __len__(self) -> int:
        return len(self.futures)

    def __iter__(self) -> Iterator[Future[Any]]:
        return iter(self.futures)

    def __repr__(self) -> str:
        counts = Counter(map(_state, self.futures))
        shown = ", ".join(f"{count} {state}" for state, count in counts.items())
        return f"<Sweep of {len(self)} tasks: {shown or 'none'}>"

    def _repr_html_(self) -> str | None:
        table = self.table()
        return table._repr_html_() if hasattr(table, "_repr_html_") else None

    def wait(self, timeout: str | float | None = None) -> Sweep:
        """Wait until all tasks have finished, and return the sweep.

        Parameters
        ----------
        timeout
            Time after which TimeoutError is raised, in seconds or as a string such as ``"5 min"``.
            None for no limit.
        """
        wait(self.futures, seconds_of("timeout", timeout))
        return self

    def results(self) -> list[Any]:
        """Wait for all tasks, and return their results in order.

        Returns
        -------
        list
            One result for each task: a :class:`scalable.CallFailed` for a failed one.
        """
        return list(self._client.gather(list(self.futures)))

    def succeeded(self) -> list[Future[Any]]:
        """Return the futures of tasks that have succeeded so far, in order, without waiting.
        Pass them to another task to reduce their results.
        """
        return [future for future in self.futures if future.status == "finished"]

    def failures(self) -> list[CallFailed]:
        """Return the failures so far, in order, without waiting."""
        failed = [future for future in self.futures if future.status == "error"]
        return list(self._client.gather(failed))

    def table(self) -> Any:
        """Return a table of the tasks with their states and results so far. Does not wait.

        Returns
        -------
        list of dict, or pandas.DataFrame
            A DataFrame if the sweep was made from one. Each row has the parameters, then ``state``
            (``pending``, ``done``, ``failed``, ``cancelled``, ``lost``), ``result``, ``error``
            (type and message), ``duration_s`` (seconds) and ``worker``. Unknown values are None. A
            column gets an underscore appended if a parameter has the same name.
        """
        ended = [future for future in self.futures if future.status in STATES]
        values = dict(zip(_keys(ended), self._client.gather(ended), strict=True))
        measured = self._client.sync(self._measured, _keys(ended))
        rows = []
        for parameters, future in zip(self.parameters, self.futures, strict=True):
            value, facts = values.get(future.key), measured.get(future.key) or {}
            failed = value if isinstance(value, CallFailed) and future.status == "error" else None
            found = (
                _state(future),
                None if failed is not None else value,
                None if failed is None else failed.error,
                facts.get("duration_s"),
                facts.get("worker") or (failed.worker if failed is not None else None),
            )
            names = (f"{name}_" if name in parameters else name for name in COLUMNS)
            rows.append(parameters | dict(zip(names, found, strict=True)))
        return rows if self._frame is None else self._frame(rows)

    async def _measured(self, keys: list[Any]) -> dict[Any, Any]:
        """Return the measurements of finished tasks by key."""
        calls = SchedulerCalls(self._client.scheduler)
        found: dict[Any, Any] = {}
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            rows = await asyncio.gather(*(calls.profile(key) for key in some))
            found |= dict(zip(some, rows, strict=True))
        return found


def rows_of(parameters: Any) -> tuple[list[dict[str, Any]], type[Any] | None]:
    """Return rows of parameters as dictionaries, and the DataFrame class or None."""
    if hasattr(parameters, "to_dict") and hasattr(parameters, "columns"):
        rows, frame = parameters.to_dict("records"), type(parameters)
    else:
        rows, frame = list(parameters), None
    for row in rows:
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise TypeError(
                f"a sweep takes a DataFrame or mappings from parameter names to values, not {row!r}"
            )
    return [dict(row) for row in rows], frame


def _keys(futures: Iterable[Future[Any]]) -> list[Any]:
    return [future.key for future in futures]


def _state(future: Future[Any]) -> str:
    state = str(future.status)
    return STATES.get(state, state)
