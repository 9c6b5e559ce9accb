"""How far the runs of a workflow are, from what they have recorded so far."""

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
    """One pool at one moment.

    Attributes
    ----------
    workers, wanted
        Workers that are connected, and that are wanted; ``wanted`` None where nobody said.
    done, running, waiting, failed
        Calls by state.
    """

    workers: int = 0
    wanted: int | None = None
    done: int = 0
    running: int = 0
    waiting: int = 0
    failed: int = 0


class RunProgress:
    """Adds up the rows of one run as they come.

    Attributes
    ----------
    ended
        Whether its workers were told that the session ends.
    """

    def __init__(self) -> None:
        self.ended = False
        self._wanted: dict[str, int] = {}
        self._present: dict[str, str] = {}
        self._states: dict[str, tuple[str, str]] = {}
        self._calls: Counter[tuple[str, str]] = Counter()
        # A dictionary for its order: pools are shown as they appeared.
        self._tags: dict[str, None] = {}

    def add(self, rows: Mapping[str, Rows]) -> None:
        """Take in new rows.

        Parameters
        ----------
        rows
            Stream -> its new rows, as :meth:`RunTail.poll` gives them.
        """
        for row in rows.get("scaling", ()):
            if isinstance(row.get("to"), int):
                self._wanted[self._tag(row)] = row["to"]
        for row in rows.get("workers", ()):
            self._worker(row)
        for row in rows.get("tasks", ()):
            self._call(row)

    def pools(self) -> dict[str, PoolCounts]:
        """Tag -> counts, as of now."""
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
    """The runs that a workflow opens.

    Parameters
    ----------
    listing
        The file in which sessions name the directories of the runs they open; it need not exist.
    """

    def __init__(self, listing: Path) -> None:
        self._listing = listing
        self._tails: dict[Path, tuple[RunTail, RunProgress]] = {}

    def runs(self) -> list[Path]:
        """Directories of the runs that were opened so far."""
        try:
            lines = self._listing.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return []
        # The last part is empty, or a line that is still being written.
        return [Path(line) for line in dict.fromkeys(lines[:-1]) if line]

    def poll(self) -> dict[str, PoolCounts]:
        """Tag -> counts of the runs that go on; a tag bears the run's name where there are more."""
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
    """All pools on one line: ``climate: 2/2 workers, 14 done, 2 running | impacts: ...``."""
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
