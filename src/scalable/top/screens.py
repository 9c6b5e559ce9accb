"""Screens that lie above the application's: questions, details, and the list of keys."""

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

#: Number of lines of a text in the details.
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
        """Show the question and two buttons; "No" has the focus."""
        with Vertical(classes="box"):
            yield Static(Text(self._question))
            with Horizontal(classes="buttons"):
                yield Button("No (n)", id="no")
                yield Button("Yes (y)", id="yes", variant="warning")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        """Answer by a key."""
        self.dismiss(yes)


class Ask(ModalScreen[str | None]):
    """A question that is answered with a text; None if it is left."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Cancel")]

    def __init__(self, question: str, value: str, *, integer: bool = False) -> None:
        super().__init__()
        self._question, self._value, self._integer = question, value, integer

    def compose(self) -> ComposeResult:
        """Show the question and a field."""
        with Vertical(classes="box"):
            yield Static(Text(self._question))
            yield Input(self._value, type="integer" if self._integer else "text", max_length=200)
            yield Static(Text("Enter takes the value, Escape leaves it.", "dim"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer."""
        self.dismiss(event.value)

    def action_leave(self) -> None:
        """Leave the question."""
        self.dismiss(None)


class Details(ModalScreen[None]):
    """Texts under titles, which can be scrolled.

    Parameters
    ----------
    title
        Title of the screen.
    parts
        Title and text of each part; texts may be of any kind, and are made harmless.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "leave", "Back")]

    def __init__(self, title: str, parts: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title, self._parts = title, parts

    def compose(self) -> ComposeResult:
        """Show the parts."""
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
        """Show further parts, before those that are there."""
        self._parts = (*parts, *self._parts)
        self.query_one("#parts", Static).update(self._text())

    def on_mount(self) -> None:
        """Let the keys scroll."""
        self.query_one(VerticalScroll).focus()

    def action_leave(self) -> None:
        """Leave the screen."""
        self.dismiss(None)


def one_line_of(line: str) -> str:
    """Return a line of a text without control characters; its indentation stays."""
    indent = len(line) - len(line.lstrip(" "))
    return " " * min(indent, 40) + one_line(line)
