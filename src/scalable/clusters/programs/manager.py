"""Program of a manager: ``python -m scalable.clusters.programs.manager DIRECTORY ID``.
A manager starts and stops workers of a cluster on one target.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from scalable.clusters.managing import config_of, run_manager
from scalable.errors import ClusterError
from scalable.harmless import log_to_stderr
from scalable.records import opened

logger = logging.getLogger("scalable.clusters.programs")


def main() -> None:
    """Run the manager named on the command line."""
    log_to_stderr()
    directory, manager = opened(Path(sys.argv[1])), sys.argv[2]
    try:
        sys.exit(run_manager(config_of(directory, manager)))
    except ClusterError as error:
        logger.error("%s", error)  # noqa: TRY400 - a traceback adds nothing
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
