"""Programs in interpreters of their own."""

import subprocess
import sys


def printed_by(code, *arguments, **options):
    """Run code in a new interpreter, and return what it prints; its errors fail the test."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
