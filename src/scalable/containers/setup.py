"""Shell lines that run before a worker starts, and values that contain node variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

# Setup commands -----------------------------------------------------------------------------------

# Each line is evaluated by itself, so that a mistake in its syntax is reported as its own failure.
# Standard input may contain the credentials of the worker. An "exit 0" would start no worker.
_SETUP = """\
setup_failed() {{
    code=$?
    trap - EXIT
    echo "setup failed with exit code $code: $setup_line" >&2
    [ "$code" -ne 0 ] || code=1
    exit "$code"
}}
trap setup_failed EXIT
set -e
{{
{lines}
}} </dev/null
set +e
trap - EXIT
unset -f setup_failed
unset setup_line
exec "$@"
"""


def setup_entry(lines: Sequence[str], shell: str) -> tuple[str, ...]:
    """Return the words to put before a command so that setup lines run first.
    There are no such words without lines. A failing line is printed, and its exit code returned.
    """
    if not lines:
        return ()
    steps = "\n".join(f'setup_line={shlex.quote(line)}\neval "$setup_line"' for line in lines)
    return shell, "-c", _SETUP.format(lines=steps), shell


# Variables of the node ----------------------------------------------------------------------------

_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")


def node_value(value: str, environ: Mapping[str, str]) -> str:
    """Replace ``$NAME`` in a value by the node's variable of that name, if it exists."""
    return _VARIABLE.sub(lambda found: environ.get(found[1], found[0]), value)


def node_quoted(word: str) -> str:
    """Quote a word for the node's shell, which makes the replacements of :func:`node_value`."""
    parts, at = [], 0
    for found in _VARIABLE.finditer(word):
        parts += [word[at : found.start()], f'"${{{found[1]}-\\{found[0]}}}"']
        at = found.end()
    parts.append(word[at:])
    quoted = [part if n % 2 else shlex.quote(part) for n, part in enumerate(parts) if part]
    return "".join(quoted) or "''"
