"""``scalable top``: a terminal application, which needs textual (the extra ``tui``)."""

from __future__ import annotations

import logging
import time
from asyncio import sleep, to_thread
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen, Screen
from textual.widgets import Button, DataTable, Footer, Input, Static, TabbedContent, TabPane

from scalable.clusters import control
from scalable.clusters.discovery import look, running_clusters, workers_of
from scalable.errors import ScalableError
from scalable.harmless import indented_line, one_line
from scalable.model.overview import Events, Overview, WorkerOverview
from scalable.palette import DARK, numbers_of
from scalable.units import format_duration
from scalable.views.cluster_text import LINES_OF_POOL, failure_in_words, summary, use_lines
from scalable.views.columns import (
    UNTAGGED_NAME,
    clusters_table,
    failures_by_cause,
    pool_reasons,
    tables_of,
)
from scalable.views.explanation import short_key
from scalable.views.tables import Row, Table, clock, fitted, padded

logger = logging.getLogger("scalable.watch")

# Table --------------------------------------------------------------------------------------------

#: Number of cells between two columns.
_GAP = 1
#: Styles of the characters of a bar.
_BAR_STYLES = {"█": "green", "x": "bold red", "-": "magenta", "▒": "cyan", "░": "bright_black"}


class Grid(DataTable[Text]):
    """Widget that shows a :class:`.Table`, without interpreting markup."""

    # Rows are selected, not cells: the keys for the ends of a row lead to the ends of the table.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", "Top", show=False),
        Binding("end", "scroll_bottom", "Bottom", show=False),
    ]

    def __init__(self, **options: Any) -> None:
        super().__init__(
            cell_padding=0,
            cursor_type="row",
            cursor_foreground_priority="renderable",
            zebra_stripes=True,
            **options,
        )
        self.table = Table(())
        #: Headings, keys and cells that are drawn.
        self._shown: tuple[Any, ...] = ()

    @property
    def chosen(self) -> Row | None:
        place = self.cursor_row
        return self.table.rows[place] if 0 <= place < len(self.table.rows) else None

    def fill(self, table: Table, *, sorted_by: str = "", down: bool = False) -> None:
        """Show a sorted table, with a mark at the column ``sorted_by``."""
        before = self.chosen
        width = max(20, self.screen.size.width - 2)  # a grid in a hidden tab has no size
        titles = [
            f"{column.title}{'▼' if down else '▲'}" if column.name == sorted_by else column.title
            for column in table.columns
        ]
        widths = table.widths(width, _GAP)
        widths = [max(wide, len(title)) for wide, title in zip(widths, titles, strict=True)]
        heads = tuple(zip(titles, widths, strict=True))
        cells = [table.drawn(row, widths) for row in table.rows]
        keys = [row.key for row in table.rows]
        self.table = table
        if (heads, keys, cells) == self._shown:
            return
        self._shown = heads, keys, cells
        at = self.scroll_offset
        self.clear(columns=True)
        for (title, wide), column in zip(heads, table.columns, strict=True):
            label = Text(padded(title, wide, right=column.number))
            self.add_column(label, width=wide + _GAP)
        colours = self._colours()
        for place, texts in enumerate(cells):
            self.add_row(*(self._styled(place, n, text, colours) for n, text in enumerate(texts)))
        if before is not None and before.key in keys:
            self.move_cursor(row=keys.index(before.key), scroll=False)
            self.scroll_to(*at, animate=False, force=True)

    def _colours(self) -> dict[str, int]:
        if not any(column.kind == "progress" for column in self.table.columns):
            return {}
        return numbers_of(row.cells[0] for row in self.table.rows)

    def _styled(self, place: int, column: int, text: str, colours: dict[str, int]) -> Text:
        shown = self.table.columns[column]
        if shown.kind == "progress":
            return Text.assemble(*((char, _BAR_STYLES.get(char, "")) for char in text))
        if column == 0 and colours:
            return Text(text, DARK[colours[self.table.rows[place].cells[0]]])
        if shown.name in ("failed", "lost") and text.strip() not in ("", "0"):
            return Text(text, "bold red")
        return Text(text)


# Dialogs ------------------------------------------------------------------------------------------

#: Maximum lines of a text in the details.
_MOST_LINES = 500


class Confirm(ModalScreen[bool]):
    """Question with the answers yes and no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the question and two buttons, with the focus on "No"."""
        with Vertical(classes="box"):
            yield Static(Text(self._question))
            with Horizontal(classes="buttons"):
                yield Button("No (n)", id="no")
                yield Button("Yes (y)", id="yes", variant="warning")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Question(ModalScreen[str | None]):
    """Question with a string as answer, or None if cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Cancel")]

    def __init__(self, question: str, value: str, *, integer: bool = False) -> None:
        super().__init__()
        self._question, self._value, self._integer = question, value, integer

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Text(self._question))
            yield Input(self._value, type="integer" if self._integer else "text", max_length=200)
            yield Static(Text("Enter takes the value, Escape leaves it.", "dim"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss(None)


class Details(ModalScreen[None]):
    """Scrollable titles and texts, made harmless for a terminal."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "leave", "Back")]

    def __init__(self, title: str, parts: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title, self._parts = title, parts

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="details") as scroll:
            scroll.border_title = Text(one_line(self._title)[:60])
            scroll.border_subtitle = "Escape goes back"
            yield Static(self._text(), id="parts")

    def _text(self) -> Text:
        shown = Text()
        for title, text in self._parts:
            lines = [indented_line(line) for line in text.splitlines()[:_MOST_LINES]] or [""]
            if title:
                shown.append(f"{title}: " if len(lines) == 1 else f"{title}:\n", "bold")
            shown.append("\n".join(lines) + "\n")
        return shown

    def add(self, parts: Sequence[tuple[str, str]]) -> None:
        self._parts = (*parts, *self._parts)
        self.query_one("#parts", Static).update(self._text())

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_leave(self) -> None:
        self.dismiss(None)


# All clusters -------------------------------------------------------------------------------------

#: Seconds between two refreshes of the list.
LIST_EVERY_S = 5.0


class TopApp(App[None]):
    """Terminal application for the named cluster, or for the list of running ones."""

    CSS_PATH = "top.css"
    TITLE = "scalable top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", "Quit")]

    def __init__(self, name: str | None = None, *, every_s: float = 2.0) -> None:
        super().__init__()
        self._cluster, self._every_s = name, every_s

    def on_mount(self) -> None:
        if self._cluster is None:
            self.push_screen(ListScreen(self._every_s))
        else:
            self.push_screen(ClusterScreen(self._cluster, self._every_s))


def say(screen: Screen[None], words: str, *, bad: bool = False) -> None:
    """Show a sentence below the summary of a screen."""
    said = screen.query_one("#said", Static)
    said.update(Text(fitted(words, max(20, screen.size.width - 2))))
    said.set_class(bad, "bad")


class ListScreen(Screen[None]):
    """All running clusters and sessions. Enter opens one."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", "Open", show=True)]

    def __init__(self, every_s: float) -> None:
        super().__init__()
        self._every_s = every_s

    def compose(self) -> ComposeResult:
        yield Static(Text("Running clusters and sessions", "bold"), id="summary")
        yield Static(Text("looking ..."), id="said")
        yield Grid(id="clusters")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(Grid).focus()

    @work(exclusive=True)
    async def on_screen_resume(self) -> None:
        """Show what is running, now and every few seconds."""
        while True:
            try:
                living = await to_thread(running_clusters)
            except (ScalableError, OSError) as error:
                say(self, str(error), bad=True)
            else:
                table = clusters_table(living.clusters, living.runs, time.time(), "top")
                self.query_one(Grid).fill(table)
                words = "; ".join(living.errors) or ("" if table.rows else table.empty)
                say(self, words, bad=bool(living.errors))
            await sleep(LIST_EVERY_S)

    def on_data_table_row_selected(self, event: Any) -> None:
        event.stop()
        row = self.query_one(Grid).chosen
        if row is not None:
            self.app.push_screen(ClusterScreen(row.key, self._every_s, leads_back=True))


# One cluster --------------------------------------------------------------------------------------

#: Maximum rows of a table. The others are found by a filter.
MOST_ROWS = 1_000
#: Lines of the screen around the tables, and most rows of the last failures and decisions.
_FRAME, _RECENT = 5, 5
#: Grids in the tabs, by their titles.
_GRIDS = {
    "Overview": ("pools", "tasks"),
    "Workers": ("workers",),
    "Failures": ("failures",),
    "Decisions": ("decisions",),
    "Managers": ("managers",),
    "Use": (),
}
_TABS = tuple(_GRIDS)


class ClusterScreen(Screen[None]):
    """Pools, tasks, workers, failures, decisions, managers and utilisation of one cluster."""

    AUTO_FOCUS = "#tasks"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n + 1), f"tab('{title}')", show=False) for n, title in enumerate(_TABS)),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("p", "pool", "Pool"),
        Binding("s", "sort", "Sort"),
        Binding("r", "turn", "Reverse"),
        Binding("c", "scale", "Scale pool"),
        Binding("d", "drain", "Drain worker"),
        Binding("escape", "back", "Back", show=False),
    ]

    def __init__(self, name: str, every_s: float, *, leads_back: bool = False) -> None:
        super().__init__()
        self._cluster, self._every_s, self._leads_back = name, every_s, leads_back
        self._watched = Watched()
        self._workers: list[WorkerOverview] = []
        self._silent_since: float | None = None
        self._pool: str | None = None
        self._filter = ""
        self._left_out = 0
        #: Name of the column that a grid is sorted by, and whether its largest value is first.
        self._orders: dict[str, tuple[str, bool]] = {}

    # Layout -------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Static(id="summary")
        yield Static(Text("waiting for the scheduler ..."), id="said")
        with TabbedContent(id="tabs"):
            for number, title in enumerate(_TABS):
                with TabPane(f"{number + 1} {title}", id=f"tab-{title}"):
                    if title == "Use":
                        with VerticalScroll():
                            yield Static(id="use")
                    for grid in _GRIDS[title]:
                        yield Grid(id=grid)
                        if grid == "pools":
                            yield Static(id="reasons")
                    if title == "Overview":
                        yield Static(id="recent")
        yield Footer()

    def on_mount(self) -> None:
        self._look()

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    # Refreshing ---------------------------------------------------------------------------------

    @work(exclusive=True, group="look")
    async def _look(self) -> None:
        """Query the scheduler, and again some seconds after each answer."""
        while True:
            try:
                await self._look_once()
            except NoMatches:
                return  # the screen is closed: its widgets go one by one
            await sleep(self._every_s)

    async def _look_once(self) -> None:
        try:
            overview, events = await to_thread(look, self._cluster, self._watched.events.seq)
            if self._tab == "Workers":
                self._workers = await to_thread(workers_of, self._cluster)
        except (ScalableError, OSError) as error:
            self._lost(error)
        else:
            self._silent_since = None
            self._watched.take(overview, events)
            self._show()

    def _lost(self, error: Exception) -> None:
        if self._silent_since is None:
            self._silent_since = time.time()
            logger.debug("the scheduler does not answer: %s", error)
        since = clock(self._silent_since, time.time())
        say(self, f"No answer since {since}, retrying: {error}", bad=True)

    # Showing ------------------------------------------------------------------------------------

    @property
    def _tab(self) -> str:
        return self.query_one(TabbedContent).active.removeprefix("tab-")

    def _show(self) -> None:
        overview = self._watched.overview
        if overview is None or not self.query("#summary"):  # it goes first as the screen is closed
            return
        width = max(20, self.size.width - 2)
        lines = [Text(fitted(line, width)) for line in summary(overview, "top")]
        lines[0].stylize("bold")
        self.query_one("#summary", Static).update(Text("\n").join(lines))
        events = self._watched.events
        tables = tables_of(overview, "top", events, self._workers)
        for name in _GRIDS[self._tab]:
            self._fill(name, tables[name])
        reasons = pool_reasons(overview.pools)
        self.query_one("#reasons", Static).update(
            Text("\n".join(fitted(line, width) for line in reasons[:3]))
        )
        if self._tab == "Overview":
            recent = [Text(line) for line in self._recent(tables, len(lines) + len(reasons[:3]))]
            self.query_one("#recent", Static).update(Text("\n").join(recent))
        if self._tab == "Use":
            charts = use_lines(events.samples, width)
            self.query_one("#use", Static).update(Text("\n".join(charts)))
        if self._silent_since is None:
            say(self, self._chosen_in_words())

    def _recent(self, tables: Mapping[str, Table], taken: int) -> list[str]:
        """Return the last failures and decisions, and charts of the pools, for the lines that the
        tables leave free.
        """
        rows = sum(self.query_one(f"#{name}", Grid).row_count + 1 for name in _GRIDS["Overview"])
        free = self.size.height - taken - rows - _FRAME
        lines: list[str] = []
        for name in ("failures", "decisions"):
            table = tables[name]
            if table.rows and free - len(lines) >= 4:
                shown = table.first(min(_RECENT, free - len(lines) - 3))
                lines += ["", f" Last {name}:", *shown.lines(max(20, self.size.width - 2))]
        charts = use_lines(self._watched.events.samples, max(20, self.size.width - 4))
        room = max(0, free - len(lines) - 1) // LINES_OF_POOL * LINES_OF_POOL
        if charts and room:
            lines += ["", *(f" {line}" for line in charts[:room])]
        return lines

    def _chosen_in_words(self) -> str:
        words = []
        if self._pool is not None:
            words.append(f"pool {self._pool or UNTAGGED_NAME}")
        if self._filter:
            words.append(f"rows with {self._filter!r}")
        shown = f"only {' and '.join(words)} (p, / change it); " if words else ""
        overview = self._watched.overview
        at = "" if overview is None else clock(overview.at, overview.at)
        left = f"; {self._left_out} more rows: filter them" if self._left_out else ""
        return f"{shown}{at}; Enter shows details{left}"

    def _fill(self, name: str, table: Table) -> None:
        if name not in ("pools", "managers"):
            table = table.of_pool(self._pool).containing(self._filter)
        column, down = self._orders.get(name, ("", False))
        if column:
            table = table.sorted(column, reverse=down)
        self._left_out = max(0, len(table.rows) - MOST_ROWS)
        self.query_one(f"#{name}", Grid).fill(table.first(MOST_ROWS), sorted_by=column, down=down)

    # Keys ---------------------------------------------------------------------------------------

    def _grid(self) -> Grid | None:
        """Return the focused grid, or the tab's main one."""
        names = _GRIDS[self._tab]
        focused = self.focused
        if isinstance(focused, Grid) and focused.id in names:
            return focused
        return self.query_one(f"#{names[-1]}", Grid) if names else None

    def action_tab(self, title: str) -> None:
        # A focus in the hidden tab would move to another widget, and show that tab again.
        self.set_focus(None)
        self.query_one(TabbedContent).active = f"tab-{title}"

    def on_tabbed_content_tab_activated(self) -> None:
        """Fill the tab, and give its table the focus."""
        if not self.query("#summary"):
            return
        self._show()
        grid = self._grid()
        if grid is not None:
            grid.focus()
        if self._tab == "Workers":
            self._look()

    @work
    async def action_filter(self) -> None:
        """Prompt for a string, and show only the rows that contain it."""
        question = Question("Show rows that contain (empty for all):", self._filter)
        text = await self.app.push_screen_wait(question)
        if text is not None:
            self._filter = text
            self._show()

    def action_pool(self) -> None:
        """Show only the rows of the next pool, or all rows after the last pool."""
        overview = self._watched.overview
        tags = [None, *(overview.pools if overview is not None else ())]
        place = tags.index(self._pool) if self._pool in tags else 0
        self._pool = tags[(place + 1) % len(tags)]
        self._show()

    def action_sort(self) -> None:
        """Sort by the next column, or in the scheduler's order after the last column."""
        grid = self._grid()
        if grid is None or grid.id is None:
            return
        names = ["", *(column.name for column in grid.table.columns)]
        before, _ = self._orders.get(grid.id, ("", False))
        name = names[(names.index(before) + 1) % len(names)] if before in names else ""
        numbers = {column.name for column in grid.table.columns if column.number}
        self._orders[grid.id] = name, name in numbers
        self._show()

    def action_turn(self) -> None:
        """Reverse the sort order."""
        grid = self._grid()
        if grid is not None and grid.id in self._orders:
            name, down = self._orders[grid.id]
            self._orders[grid.id] = name, not down
            self._show()

    @work
    async def on_data_table_row_selected(self, event: Any) -> None:
        """Show the details of a row, and then its explanation."""
        grid, overview = event.data_table, self._watched.overview
        row = grid.chosen
        if row is None or overview is None:
            return
        title, parts, about = details_of(grid.id, row, grid.table, self._watched)
        screen = Details(title, parts)
        self.app.push_screen(screen)
        if not about:
            return
        try:
            told = "\n".join(map(str, await to_thread(control.explain, self._cluster, about)))
        except (ScalableError, OSError) as error:
            told = f"no explanation: {error}"
        if screen.is_current:
            screen.add([("Why", told)])

    # Changes, after a confirmation --------------------------------------------------------------

    @work
    async def action_drain(self) -> None:
        """Drain and stop the selected worker, after a confirmation."""
        grid = self._grid()
        row = None if grid is None else grid.chosen
        if grid is None or grid.id != "workers" or row is None:
            self.notify("first choose a worker (key 2)", severity="warning")
            return
        worker = row.key
        question = (
            f"Drain worker {fitted(worker, 60)}?\n\nIts tasks finish first, and its results move. "
            "Its manager then starts another worker in its place."
        )
        if await self.app.push_screen_wait(Confirm(question)):
            done = f"{one_line(worker)} is drained"
            await self._change(done, control.drain, self._cluster, [worker])

    @work
    async def action_scale(self) -> None:
        """Set the number of workers of the selected pool, after a confirmation."""
        grid, overview = self._grid(), self._watched.overview
        row = None if grid is None else grid.chosen
        tag = row.pool if row is not None and row.pool else self._pool
        if not tag or overview is None or tag not in overview.pools:
            self.notify("choose a row of a pool first", severity="warning")
            return
        pool, shown = overview.pools[tag], fitted(tag, 40)
        before = pool.status.wanted
        asked = Question(f"Number of workers of pool {shown}:", str(before), integer=True)
        text = await self.app.push_screen_wait(asked)
        if text is None or not text.strip().isdecimal():
            return
        count = int(text)
        try:
            beyond = await to_thread(control.beyond_most, self._cluster, {tag: count})
        except (ScalableError, OSError) as error:
            self._refused(error)
            return
        question = f"Set pool {shown} from {before} to {count} workers?"
        if pool.adaptive is not None:
            question += "\n\nThe pool then no longer follows its load."
        if beyond is not None:
            question += f"\n\nA total of {beyond[0]} workers exceeds {beyond[1]}."
        if await self.app.push_screen_wait(Confirm(question)):
            done = f"pool {one_line(tag)}: {before} -> {count}"
            await self._change(done, control.scale, self._cluster, {tag: count})

    async def _change(self, done: str, change: Callable[..., Any], *arguments: Any) -> None:
        try:
            await to_thread(change, *arguments)
        except (ScalableError, OSError) as error:
            self._refused(error)
        else:
            self.notify(done, markup=False)
            self._look()

    def _refused(self, error: Exception) -> None:
        self.notify(one_line(error), severity="error", markup=False)

    def action_back(self) -> None:
        """Return to the list, if the application started with it."""
        if self._leads_back:
            self.dismiss(None)


# Details ------------------------------------------------------------------------------------------

#: Maximum failures of a task in its details.
_SHOWN_FAILURES = 5
#: Maximum characters of a task name in an overview, where longer names are cut.
LONGEST = 200

Parts = list[tuple[str, str]]


def details_of(
    grid: str | None, row: Row, table: Table, watched: Watched
) -> tuple[str, Parts, str | None]:
    """Return the title and the parts of a row's details, and the subject to explain or None."""
    parts: Parts = [
        (column.heading, cell) for column, cell in zip(table.columns, row.cells, strict=True)
    ]
    at = 0.0 if watched.overview is None else watched.overview.at
    match grid:
        case "failures":
            group = failures_by_cause(watched.events.failures).get(row.key)
            if group is None:
                return "failure", parts, None
            told = failure_in_words(group, at)
            call = group["details"].get("task_id")
            return "failure", [parts[0], *told], None if call is None else str(call)
        case "tasks":
            name = row.key.partition("\n")[2]
            running = [] if watched.overview is None else watched.overview.running
            lines = [
                f"{short_key(call.key)} on {call.worker}, for {format_duration(call.since_s)}"
                for call in running
                if call.name == name and (call.tag or "") == row.pool
            ]
            parts += [("Longest-running tasks", "\n".join(lines))] if lines else []
            failed = [f for f in watched.events.failures if _name_of(f)[:LONGEST] == name][
                -_SHOWN_FAILURES:
            ]
            for failure in reversed(failed):
                parts += [("", ""), *failure_in_words(failure, at)]
            return f"task {row.cells[0]}", parts, name
        case "pools":
            return f"pool {row.cells[0]}", parts, row.key or None
    return str(grid).removesuffix("s"), parts, None


def _name_of(failure: Mapping[str, Any]) -> str:
    return str((failure.get("details") or {}).get("task_name") or "")


#: Number of the latest events that are kept, by kind.
KEPT = {"decisions": 500, "failures": 500, "samples": 1_200}


class Watched:
    """Latest overview of a cluster (None at first), and the latest events of all answers."""

    def __init__(self) -> None:
        self.overview: Overview | None = None
        self.events = Events(seq=0)

    def take(self, overview: Overview, events: Events) -> None:
        """Add a scheduler's answer. The events of an earlier scheduler are dropped."""
        before = self.overview
        started = None if before is None else before.cluster.get("started_at")
        self.overview = overview
        if before is not None and started != overview.cluster.get("started_at"):
            # A new scheduler numbers its events from the start, so that all are requested again.
            self.events = Events(seq=0)
            return
        kept: dict[str, Any] = {
            kind: [*getattr(self.events, kind), *getattr(events, kind)][-most:]
            for kind, most in KEPT.items()
        }
        self.events = Events(seq=events.seq, **kept)
