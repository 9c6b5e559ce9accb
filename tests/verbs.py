"""The verbs of the command line, for tests of detached clusters."""

import contextlib
import io
import json
import subprocess
import sys

from scalable.cli.main import main

#: Verbs that start no process. They run in the process of the test, which saves a second each.
READ_OR_ASK = frozenset({"connect", "down", "list", "logs", "prune", "scale", "status", "validate"})


def program(*arguments, here=False, **options):
    """Run a verb to its end; with options, or where it starts processes, in one of its own.

    With `here` it runs in the process of the test: for verbs that start processes elsewhere.
    """
    if here or (arguments[0] in READ_OR_ASK and not options):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(arguments))
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
    options = {
        "capture_output": True, "text": True, "timeout": 150, "stdin": subprocess.DEVNULL
    } | options  # fmt: skip
    return subprocess.run([sys.executable, "-m", "scalable", *arguments], check=False, **options)


def read(*arguments):
    """Return what a verb prints for programs."""
    done = program(*arguments, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def up(*arguments):
    """Start a cluster on the target that is called local; its programs outlive this process."""
    done = program("up", "--target", "local", *arguments, here=True)
    assert done.returncode == 0, done.stderr
    return done


def status(name):
    """Return the status of a cluster."""
    return read("status", name)


def listed():
    """Return the clusters that are listed, by name."""
    return {row["name"]: row for row in read("list")["clusters"]}


def garbage(*arguments):
    """Return what is left of clusters; with ``--yes`` it is removed."""
    return read("prune", *(arguments or ("--dry-run",)))["found"]
