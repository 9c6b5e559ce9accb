"""The functions and classes of a workflow's script, without running the workflow."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

from scalable.errors import RunError

_MAIN: Final = "__main__"
#: Calls in constants of a script that only make a value.
_HARMLESS: Final = frozenset(
    {"Path", "compile", "dict", "frozenset", "getLogger", "namedtuple", "range", "set", "tuple"}
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


@contextmanager
def code_of_workflow(script: Path, *, needs_script: bool) -> Iterator[None]:
    """Let the modules beside a script be found, and what the script itself defines.

    Parameters
    ----------
    script
        The script.
    needs_script
        Whether definitions of the script itself are needed.

    Raises
    ------
    RunError
        As in :func:`script_as_main`.
    """
    directory = str(script.absolute().parent)
    with ExitStack() as stack:
        if directory not in sys.path:
            sys.path.insert(0, directory)
            stack.callback(sys.path.remove, directory)
        if needs_script:
            stack.enter_context(script_as_main(script))
        yield


@contextmanager
def script_as_main(script: Path) -> Iterator[None]:
    """Let the definitions of a script be those of the main module.

    Parameters
    ----------
    script
        The script; what it does below ``if __name__ == "__main__":`` is not run.

    Raises
    ------
    RunError
        When the script cannot be read, or does more than define when it is loaded.
    """
    try:
        tree = ast.parse(script.read_bytes(), str(script))
    except (OSError, SyntaxError) as error:
        raise RunError(f"the workflow {script} cannot be loaded: {error}") from error
    body = [statement for statement in tree.body if not _is_guard(statement)]
    for statement in body:
        if not _only_defines(statement):
            raise RunError(
                f"{script}, line {statement.lineno}, does more than define functions and "
                "constants: the script cannot be loaded without running its workflow",
                hint='move what it does below `if __name__ == "__main__":`, or the functions that '
                "failed into a module",
            )
    module, before = ModuleType(_MAIN), sys.modules[_MAIN]
    module.__file__ = str(script.absolute())
    sys.modules[_MAIN] = module
    try:
        # Without this module's own future statements, which would change the code.
        module_code = ast.Module(body, tree.type_ignores)
        code = compile(module_code, str(script.absolute()), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - definitions of the user's own script
        yield
    finally:
        sys.modules[_MAIN] = before


def _is_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )


def _only_defines(statement: ast.stmt) -> bool:
    if isinstance(statement, _DEFINITIONS):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.If | ast.Try):
        parts = [*statement.body, *statement.orelse]
        if isinstance(statement, ast.Try):
            parts += [inner for handler in statement.handlers for inner in handler.body]
            parts += statement.finalbody
        tested = isinstance(statement, ast.Try) or _is_harmless(statement.test)
        return tested and all(_only_defines(inner) for inner in parts)
    return isinstance(statement, ast.Assign | ast.AnnAssign | ast.Pass) and _is_harmless(statement)


def _is_harmless(part: ast.AST) -> bool:
    """Return whether a part of a script only makes values."""
    called = (node.func for node in ast.walk(part) if isinstance(node, ast.Call))
    names = (
        func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in called
    )
    return all(name in _HARMLESS for name in names)
