"""Names to which a function's code refers, read from its bytecode."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_GLOBALS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})

#: Built-in functions that reach code by names that are known only at run time.
DYNAMIC: Final = frozenset({"eval", "exec", "compile", "globals", "__import__"})
#: Names of Python's own modules that do so.
IMPORTERS: Final = frozenset(
    {
        *(("builtins", name) for name in DYNAMIC),
        ("importlib", "import_module"),
        ("importlib.util", "module_from_spec"),
        ("pkgutil", "resolve_name"),
        ("runpy", "run_module"),
        ("runpy", "run_path"),
        ("sys", "modules"),
    }
)
#: Attributes by which code reaches other code that is known only at run time.
HIDDEN: Final = frozenset({"__globals__", "__subclasses__", "f_globals"})
#: Names that Python gives to each module.
OF_MODULES: Final = frozenset(
    {
        "__builtins__",
        "__cached__",
        "__file__",
        "__loader__",
        "__name__",
        "__package__",
        "__path__",
        "__spec__",
    }
)


@dataclass(frozen=True)
class References:
    """Names to which a code object, and those within it, refer."""

    #: Global names with attributes: ``np.random.rand`` is ``("np", "random", "rand")``.
    globals: tuple[tuple[str, ...], ...]
    #: Imports at run time: level (0 is absolute), module, and the names taken from it.
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    #: All names of globals and attributes that are read.
    names: frozenset[str]


@lru_cache(maxsize=4096)
def references(code: types.CodeType) -> References:
    """Return the names to which a code object and those within it refer, each once, in order."""
    chains: dict[tuple[str, ...], None] = {}
    imports: dict[tuple[int, str, tuple[str, ...]], None] = {}
    names: set[str] = set()
    for part in with_nested(code):
        names.update(part.co_names)
        instructions = [i for i in dis.get_instructions(part) if i.opname != "EXTENDED_ARG"]
        for number, instruction in enumerate(instructions):
            if instruction.opname in _GLOBALS:
                chain = [str(instruction.argval)]
                for following in instructions[number + 1 :]:
                    if following.opname not in _ATTRIBUTES:
                        break
                    chain.append(str(following.argval))
                chains[tuple(chain)] = None
            elif instruction.opname == "IMPORT_NAME":
                level, taken = (instructions[number - n].argval for n in (2, 1))
                imports[int(level), str(instruction.argval), tuple(taken or ())] = None
    return References(tuple(chains), tuple(imports), frozenset(names))


def with_nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and those of the functions, classes and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from with_nested(constant)
