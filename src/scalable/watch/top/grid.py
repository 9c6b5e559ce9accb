"""Table of the application that keeps its cursor while its rows change."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable

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
        self._shown: list[tuple[str, ...]] = []
        self._heads: tuple[Any, ...] = ()

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
        same_rows = [row.key for row in self.table.rows] == [row.key for row in table.rows]
        self.table = table
        cells = [table.drawn(row, widths) for row in table.rows]
        if heads == self._heads and same_rows:
            self._change(cells)
        else:
            self._fill_anew(table, heads, cells, before)
        self._shown, self._heads = cells, heads

    def _change(self, cells: list[tuple[str, ...]]) -> None:
        """Replace the cells that have changed."""
        colours = self._colours()
        for place, (new, old) in enumerate(zip(cells, self._shown, strict=True)):
            for column, text in enumerate(new):
                if text != old[column]:
                    styled = self._styled(place, column, text, colours)
                    self.update_cell_at(Coordinate(place, column), styled)

    def _fill_anew(
        self,
        table: Table,
        heads: tuple[Any, ...],
        cells: list[tuple[str, ...]],
        before: Row | None,
    ) -> None:
        scroll = self.scroll_y
        self.clear(columns=True)
        for (title, wide), column in zip(heads, table.columns, strict=True):
            label = Text(padded(title, wide, right=column.number))
            self.add_column(label, width=wide + _GAP)
        colours = self._colours()
        for place, texts in enumerate(cells):
            self.add_row(*(self._styled(place, n, text, colours) for n, text in enumerate(texts)))
        keys = [row.key for row in table.rows]
        if before is not None and before.key in keys:
            self.move_cursor(row=keys.index(before.key), scroll=False)
            self.scroll_to(y=scroll, animate=False, force=True)

    def _colours(self) -> dict[str, int]:
        if not any(column.kind == "progress" for column in self.table.columns):
            return {}
        return numbers_of(row.cells[0] for row in self.table.rows)

    def _styled(self, place: int, column: int, text: str, colours: dict[str, int]) -> Text:
        shown = self.table.columns[column]
        if shown.kind == "progress":
            drawn = Text()
            for char in text:
                drawn.append(char, _BAR_STYLES.get(char, ""))
            return drawn
        if column == 0 and colours:
            return Text(text, DARK[colours[self.table.rows[place].cells[0]]])
        if shown.name in ("failed", "lost") and text.strip() not in ("", "0"):
            return Text(text, "bold red")
        return Text(text)
