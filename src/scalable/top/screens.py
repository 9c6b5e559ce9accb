"""Screens above the application's: questions and details."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from scalable.showing.texts import one_line

#: Maximum lines of a text in the details.
_MOST_LINES = 500


class Confirm(ModalScreen[bool]):
    """A question that is answered with yes or no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the question and two buttons, of which "No" has the focus."""
        with Vertical(classes="box"):
            yield Static(Text(self._question))
            with Horizontal(classes="buttons"):
                yield Button("No (n)", id="no")
                yield Button("Yes (y)", id="yes", variant="warning")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Ask(ModalScreen[str | None]):
    """A question that is answered with a string, or None if it is cancelled."""

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
    """Titles and texts of any content, which are made harmless and can be scrolled."""

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
            lines = [one_line_of(line) for line in text.splitlines()[:_MOST_LINES]] or [""]
            if title:
                shown.append(f"{title}: " if len(lines) == 1 else f"{title}:\n", "bold")
            shown.append("\n".join(lines) + "\n")
        return shown

    def add(self, parts: Sequence[tuple[str, str]]) -> None:
        """Show other parts before the present ones."""
        self._parts = (*parts, *self._parts)
        self.query_one("#parts", Static).update(self._text())

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_leave(self) -> None:
        self.dismiss(None)


def one_line_of(line: str) -> str:
    """Return a line without control characters. Its indentation stays."""
    indent = len(line) - len(line.lstrip(" "))
    return " " * min(indent, 40) + one_line(line)
