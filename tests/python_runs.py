"""Python in processes of their own, and the end of processes."""

import subprocess
import sys

import psutil


def run_python(*words, check=False, **options):
    """Run Python to its end; its output is text."""
    options = {"capture_output": True, "text": True, "timeout": 120} | options
    return subprocess.run([sys.executable, *map(str, words)], check=check, **options)


def gone(pid):
    """Return whether a process has ended; an orphan that nobody has waited for has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
