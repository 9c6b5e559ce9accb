"""The functions of an earlier run's calls, as they are now."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from scalable.errors import RunError
from scalable.session.script_module import code_of_workflow

logger = logging.getLogger("scalable.session")

_SCRIPT: Final = "__main__."


@contextmanager
def functions_now(names: Iterable[str], script: Path) -> Iterator[Mapping[str, Any]]:
    """Yield functions by their names, without those that are not found.

    The modules of the functions are imported; the script is loaded, and not run.

    Parameters
    ----------
    names
        Names of functions with their modules.
    script
        The workflow's script.
    """
    wanted = sorted(set(names))
    with ExitStack() as stack:
        try:
            needs_script = any(name.startswith(_SCRIPT) for name in wanted)
            stack.enter_context(code_of_workflow(script, needs_script=needs_script))
        except RunError:  # the script cannot be loaded without running it
            wanted = [name for name in wanted if not name.startswith(_SCRIPT)]
            stack.enter_context(code_of_workflow(script, needs_script=False))
        found = {name: _named(name) for name in wanted}
        yield {name: function for name, function in found.items() if function is not None}


def _named(name: str) -> Any:
    """Return a function by its name with the module; None if there is none."""
    parts = name.split(".")
    for position in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:position]))
            for part in parts[position:]:
                found = getattr(found, part)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module is run
            logger.debug("%s is not found in %s: %r", name, ".".join(parts[:position]), error)
            continue
        return found
    return None
