"""The application, which requests overviews and manages the screens."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Static

from scalable.clusters.discovery import RunningClusters
from scalable.errors import ScalableError
from scalable.views.columns import clusters_table
from scalable.watch.top.cluster_screen import ClusterScreen
from scalable.watch.top.grid import Grid
from scalable.watch.top.source import Sources

#: Seconds between two refreshes of the list.
LIST_EVERY_S = 5.0


class TopApp(App[None]):
    """Terminal application for the named cluster, or for the list of running ones."""

    CSS_PATH = "app.css"
    TITLE = "scalable top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "Quit")]

    def __init__(self, sources: Sources, name: str | None = None, *, every_s: float = 2.0) -> None:
        super().__init__()
        self._sources, self._name, self._every_s = sources, name, every_s

    def on_mount(self) -> None:
        if self._name is None:
            self.push_screen(ListScreen(self._sources, self._every_s))
        else:
            self.push_screen(ClusterScreen(self._sources.open(self._name), self._every_s))


class ListScreen(Screen[None]):
    """All running clusters and sessions. Enter opens one."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", "Open", show=True)]

    def __init__(self, sources: Sources, every_s: float) -> None:
        super().__init__()
        self._sources, self._every_s = sources, every_s

    def compose(self) -> ComposeResult:
        yield Static(Text("Running clusters and sessions", "bold"), id="summary")
        yield Static(Text("looking ..."), id="said")
        yield Grid(id="clusters")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(Grid).focus()
        self._look()
        self.set_interval(LIST_EVERY_S, self._look)

    def on_screen_resume(self) -> None:
        self._look()

    @work(thread=True, group="look", exit_on_error=True)
    def _look(self) -> None:
        try:
            living = self._sources.living()
        except (ScalableError, OSError) as error:
            self.app.call_from_thread(self._say, str(error), bad=True)
            return
        self.app.call_from_thread(self._show, living)

    def _show(self, living: RunningClusters) -> None:
        table = clusters_table(living.clusters, living.runs, time.time(), "top")
        self.query_one(Grid).fill(table)
        words = "; ".join(living.errors) or ("" if table.rows else table.empty)
        self._say(words, bad=bool(living.errors))

    def _say(self, words: str, *, bad: bool) -> None:
        said = self.query_one("#said", Static)
        said.update(Text(words))
        said.set_class(bad, "bad")

    def on_data_table_row_selected(self, event: Any) -> None:
        event.stop()
        row = self.query_one(Grid).chosen
        if row is not None:
            source = self._sources.open(row.key)
            self.app.push_screen(ClusterScreen(source, self._every_s, leads_back=True))
