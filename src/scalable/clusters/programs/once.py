"""A program that starts at most once, run with ``python -m ... FILE COMMAND...``.
The first start creates FILE and executes the command. After a restart of the container it exits at
once, since a scheduler without its workers and tasks is useless. The exit code is 0 if
:func:`ended` was called.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from scalable.protocol import operations

#: Set in programs that may start only once: the file that records their start.
MARK = "SCALABLE_STARTED_ONCE"
_ENDED = "ended"


def ended() -> None:
    """Record that this program, which may start only once, has finished normally."""
    if mark := os.environ.get(MARK):
        Path(mark).write_text(_ENDED, encoding="utf-8")


def main() -> None:
    """Create the file and run the command, or exit."""
    mark, command = Path(sys.argv[1]), sys.argv[2:]
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        if mark.read_text(encoding="utf-8") == _ENDED:
            sys.exit(0)
        sys.stderr.write(f"{' '.join(command)} ran here before and is not started again\n")
        sys.exit(operations.STARTED_AGAIN)
    os.environ[MARK] = str(mark)
    os.execvp(command[0], command)  # noqa: S606 - the command is ours


if __name__ == "__main__":
    main()
