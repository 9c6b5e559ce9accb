"""Progress of a workflow's runs, read from their records while they grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalable.report.table import on_one_line
from scalable.telemetry import NO_TAG, REASON_CLOSED, RunTail

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class PoolCounts:
    """Counts of one pool at one moment.

    Attributes
    ----------
    workers, wanted
        Number of connected workers, and of wanted workers; ``wanted`` is None where not recorded.
    done, running, waiting, failed
        Number of calls in each state.
    """

    workers: int = 0
    wanted: int | None = None
    done: int = 0
    running: int = 0
    waiting: int = 0
    failed: int = 0


class RunProgress:
    """Running totals of the rows of one run.

    Attributes
    ----------
    ended
        Whether the session has begun to end the workers.
    """

    def __init__(self) -> None:
        self.ended = False
        self._wanted: dict[str, int] = {}
        self._present: dict[str, str] = {}
        self._states: dict[str, tuple[str, str]] = {}
        self._calls: Counter[tuple[str, str]] = Counter()
        # A dictionary keeps the order in which pools appeared.
        self._tags: dict[str, None] = {}

    def add(self, rows: Mapping[str, Rows]) -> None:
        """Add new rows.

        Parameters
        ----------
        rows
            Stream -> its new rows, as returned by :meth:`RunTail.poll`.
        """
        for row in rows.get("scaling", ()):
            if isinstance(row.get("to"), int):
                self._wanted[self._tag(row)] = row["to"]
        for row in rows.get("workers", ()):
            self._worker(row)
        for row in rows.get("tasks", ()):
            self._call(row)

    def pools(self) -> dict[str, PoolCounts]:
        """Return the current counts by tag."""
        workers = Counter(self._present.values())
        return {
            tag: PoolCounts(
                workers=workers[tag],
                wanted=self._wanted.get(tag),
                done=self._calls[tag, "succeeded"],
                running=self._calls[tag, "running"],
                waiting=self._calls[tag, "submitted"],
                failed=self._calls[tag, "failed"],
            )
            for tag in self._tags
        }

    def _tag(self, row: Mapping[str, Any]) -> str:
        tag = str(row.get("tag") or NO_TAG)
        self._tags.setdefault(tag)
        return tag

    def _worker(self, row: Mapping[str, Any]) -> None:
        event, worker = row.get("event"), str(row.get("worker"))
        if event == "started":
            self._present[worker] = self._tag(row)
        elif event == "removed":
            self._present.pop(worker, None)
            self.ended = self.ended or row.get("reason") == REASON_CLOSED

    def _call(self, row: Mapping[str, Any]) -> None:
        now = (self._tag(row), str(row.get("state")))
        before = self._states.get(task_id := str(row.get("task_id")))
        if before is not None:
            self._calls[before] -= 1
        self._states[task_id] = now
        self._calls[now] += 1


class Followed:
    """Runs that a workflow opens, followed while they last.

    Parameters
    ----------
    listing
        File in which sessions write the directories of the runs they open; it may be missing.
    """

    def __init__(self, listing: Path) -> None:
        self._listing = listing
        self._tails: dict[Path, tuple[RunTail, RunProgress]] = {}

    def runs(self) -> list[Path]:
        """Return the directories of the runs opened so far."""
        try:
            lines = self._listing.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return []
        # The last part is empty or an unfinished line.
        return [Path(line) for line in dict.fromkeys(lines[:-1]) if line]

    def poll(self) -> dict[str, PoolCounts]:
        """Return the counts of active runs by tag; with several runs the tag includes the run."""
        for path in self.runs():
            tail, progress = self._tails.setdefault(path, (RunTail(path), RunProgress()))
            progress.add(tail.poll())
        active = {path: run for path, (_, run) in self._tails.items() if not run.ended}
        if len(active) == 1:
            return next(iter(active.values())).pools()
        return {
            f"{path.name}/{tag}": counts
            for path, run in active.items()
            for tag, counts in run.pools().items()
        }


def render_pools(pools: Mapping[str, PoolCounts]) -> str:
    """Return all pools as one line: ``climate: 2/2 workers, 14 done, 2 running | ...``."""
    return " | ".join(f"{on_one_line(tag)}: {_counts(pool)}" for tag, pool in pools.items())


def _counts(pool: PoolCounts) -> str:
    wanted = "" if pool.wanted is None else f"/{pool.wanted}"
    calls = {
        "done": pool.done,
        "running": pool.running,
        "waiting": pool.waiting,
        "failed": pool.failed,
    }
    shown = [f"{pool.workers}{wanted} workers"]
    shown += [f"{count} {state}" for state, count in calls.items() if count]
    return ", ".join(shown)
