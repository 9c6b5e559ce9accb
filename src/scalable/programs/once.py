"""A program that is started at most once: ``python -m scalable.programs.once FILE COMMAND...``.

The file, which must not exist at the first start, is made, and the command takes this process's
place. Where something starts an ended container again, such as the controller of a Deployment, the
second start ends at once: a scheduler without its workers and calls is worse than none. Its exit
code is 0 if the first program has ended as it should, and has said so with :func:`ended`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from scalable.protocol import exit_codes

#: Variable with the path of the file, for the command.
MARK = "SCALABLE_STARTED_ONCE"
_ENDED = "ended"


def ended() -> None:
    """Note that this program, which may be started once, has ended as it should."""
    if mark := os.environ.get(MARK):
        Path(mark).write_text(_ENDED, encoding="utf-8")


def main() -> None:
    """Make the file and run the command, or end."""
    mark, command = Path(sys.argv[1]), sys.argv[2:]
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        if mark.read_text(encoding="utf-8") == _ENDED:
            sys.exit(0)
        sys.stderr.write(f"{' '.join(command)} ran here before: it is not started again\n")
        sys.exit(exit_codes.STARTED_AGAIN)
    os.environ[MARK] = str(mark)
    os.execvp(command[0], command)  # noqa: S606 - the command is ours


if __name__ == "__main__":
    main()
