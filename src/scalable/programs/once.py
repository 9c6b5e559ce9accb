"""A program that is started at most once: ``python -m scalable.programs.once FILE COMMAND...``.

The file, which must not exist at the first start, is made, and the command takes this process's
place. Where something starts an ended container again, such as the controller of a Deployment, the
second start ends at once: a scheduler without its workers and calls is worse than none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from scalable.protocol import exit_codes


def main() -> None:
    """Make the file and run the command, or end."""
    mark, command = Path(sys.argv[1]), sys.argv[2:]
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        sys.stderr.write(f"{' '.join(command)} ran here before: it is not started again\n")
        sys.exit(exit_codes.STARTED_AGAIN)
    os.execvp(command[0], command)  # noqa: S606 - the command is ours


if __name__ == "__main__":
    main()
