"""The table and the dialogs of the application."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, DataTable, Input, Static

from scalable.harmless import indented_line, one_line
from scalable.palette import DARK, numbers_of
from scalable.views.tables import Row, Table, padded

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
