"""Progress of a workflow's runs, as its sessions show it."""

from __future__ import annotations

from pathlib import Path

from scalable.records.overview_file import OverviewFile
from scalable.spec.overview import Overview


class Followed:
    """Runs that a workflow opens, and the clusters of its sessions, from two exchange files."""

    def __init__(self, listing: Path, shown: Path) -> None:
        self._listing = listing
        self._file = OverviewFile(shown)
        self._last: list[Overview] = []

    def runs(self) -> list[Path]:
        try:
            lines = self._listing.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return []
        # The last part is empty, or an unfinished line.
        return [Path(line) for line in dict.fromkeys(lines[:-1]) if line]

    def overviews(self) -> list[Overview]:
        """Return the overviews of the running sessions, or of the last one if all have closed."""
        clusters = self._file.read()
        if clusters:
            live = [cluster.overview for cluster in clusters.values() if not cluster.ended]
            self._last = live or [list(clusters.values())[-1].overview]
        return self._last
