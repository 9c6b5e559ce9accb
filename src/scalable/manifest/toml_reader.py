"""Reader of TOML that returns a tree.
``tomllib`` reports no positions, so a second pass over the valid document finds them.
"""

from __future__ import annotations

import bisect
import re
import tomllib

from scalable.manifest.document import (
    MAX_DEPTH,
    Node,
    Path,
    Position,
    Spelling,
    UnfitValueError,
    tree_of,
)
from scalable.manifest.faults import E_DUPLICATE_KEY, E_SYNTAX, Faults

_PLACE_IN_MESSAGE = re.compile(
    r"^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$", re.DOTALL
)
_TWICE = ("Cannot overwrite", "Cannot declare", "Cannot redefine", "Cannot mutate", "Duplicate")
_TOKEN = re.compile(
    r"""(?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
    r"""|(?P<gap>[ \t\r]+|\#[^\n]*)"""
    r"""|(?P<line>\n)"""
    r"""|(?P<mark>[\[\]{}=,.])"""
    r"""|(?P<bare>[^\s=,.\[\]{}\#"']+)""",
    re.DOTALL,
)
_KEY_ENDS = re.compile(r"[=\n,{]")


def read_toml(text: str, faults: Faults) -> Node | None:
    """Return the tree of one TOML document, or None after reporting its errors."""
    start = Position(1, 1)
    # tomllib takes time quadratic in the number of a key's dots.
    if any(part.count(".") > MAX_DEPTH for part in _KEY_ENDS.split(text)):
        message = f"a line has more than {MAX_DEPTH} dots"
        faults.add(E_SYNTAX, (), start, message, "use fewer levels, or split the string into lines")
        return None
    try:
        data = tomllib.loads(text)
        return tree_of(data, _Walk(text).found)
    except tomllib.TOMLDecodeError as error:
        _file_syntax_error(error, faults)
    except RecursionError:
        faults.add(E_SYNTAX, (), start, "the manifest is nested too deeply", "use fewer levels")
    except UnfitValueError as error:
        hint = "split the manifest, or use fewer levels"
        faults.add(E_SYNTAX, error.path, start, str(error), hint)
    except ValueError:  # of int()
        faults.add(E_SYNTAX, (), start, "a number has too many digits", "use fewer digits")
    return None


def _file_syntax_error(error: tomllib.TOMLDecodeError, faults: Faults) -> None:
    match = _PLACE_IN_MESSAGE.match(str(error))
    message, line, column = match.groups() if match else (str(error), None, None)
    end = faults.source.lines
    place = (
        Position(int(line), int(column))
        if line and column
        else Position(len(end), len(end[-1]) + 1)
    )
    if message.startswith(_TWICE):
        faults.add(E_DUPLICATE_KEY, (), place, message, "keep one of the two")
    else:
        hint = "put strings in quotes, and give each key a value"
        faults.add(E_SYNTAX, (), place, f"not valid TOML: {message}", hint)


class _Walk:
    """Positions of the keys and values in a valid document."""

    def __init__(self, text: str) -> None:
        start = Position(1, 1)
        self.found: dict[Path, Spelling] = {(): Spelling(start, start)}
        self._tokens = [
            (match.lastgroup or "", match.group(), match.start())
            for match in _TOKEN.finditer(text)
            if match.lastgroup != "gap"
        ]
        self._tokens.append(("end", "", len(text)))
        self._at = 0
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        #: Index of the last table by path of an array of tables.
        self._last: dict[Path, int] = {}
        table: Path = ()
        while self._skip_lines() != "end":
            if self._take("["):
                table = self._header(is_array=self._take("["))
            else:
                self._pair(table)

    def _header(self, *, is_array: bool) -> Path:
        place = self._place()
        path: Path = ()
        parts = self._key()
        for i, part in enumerate(parts):
            path = (*path, part)
            if is_array and i == len(parts) - 1:
                self._last[path] = self._last.get(path, -1) + 1
            self._note(path, place)
            if path in self._last:
                path = (*path, self._last[path])
                self._note(path, place)
        while self._take("]"):
            pass
        return path

    def _pair(self, table: Path) -> None:
        place = self._place()
        parts = self._key()
        self._take("=")
        for i in range(1, len(parts)):
            self._note((*table, *parts[:i]), place)
        self._value((*table, *parts), place)

    def _value(self, path: Path, key: Position) -> None:
        is_bare = self._skip_lines() == "bare"
        place = self._place()
        self.found[path] = Spelling(key, place, self._bare() if is_bare else None)
        if is_bare:
            return
        if self._take("["):
            index = 0
            while not self._closed("]"):
                self._value((*path, index), self._place())
                index += 1
        elif self._take("{"):
            while not self._closed("}"):
                self._pair(path)
        else:
            self._at += 1

    def _closed(self, bracket: str) -> bool:
        """Skip separators, and return whether the list or table ends here."""
        self._skip_lines()
        while self._take(","):
            self._skip_lines()
        return self._take(bracket) or self._tokens[self._at][0] == "end"

    def _bare(self) -> str:
        """Return a number, date or boolean as written. It may contain dots."""
        text = ""
        while (kind_text := self._tokens[self._at])[0] == "bare" or kind_text[1] == ".":
            text += kind_text[1]
            self._at += 1
        return text

    def _key(self) -> list[str]:
        parts: list[str] = []
        while (token := self._tokens[self._at])[0] in ("bare", "text") or token[1] == ".":
            self._at += 1
            if token[0] == "bare":
                parts.append(token[1])
            elif token[0] == "text":
                parts.append(tomllib.loads(f"key = {token[1]}")["key"])
        return parts

    def _note(self, path: Path, place: Position) -> None:
        self.found.setdefault(path, Spelling(place, place))

    def _take(self, mark: str) -> bool:
        kind, text, _ = self._tokens[self._at]
        if kind == "mark" and text == mark:
            self._at += 1
            return True
        return False

    def _skip_lines(self) -> str:
        while self._tokens[self._at][0] == "line":
            self._at += 1
        return self._tokens[self._at][0]

    def _place(self) -> Position:
        offset = self._tokens[self._at][2]
        line = bisect.bisect_right(self._lines, offset)
        return Position(line, offset - self._lines[line - 1] + 1)
