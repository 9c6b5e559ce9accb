"""Entry point of ``python -m scalable``."""

import sys

from scalable.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
