"""Kind of machine that a process runs on, by which running times are kept separate.

A worker measures it once, in its own process, and sends it when it connects.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from scalable.harmless import harmless

#: Key of the kind of machine among the facts that a worker sends when it connects.
MACHINE_KIND = "scalable-machine"
#: Variable with the cloud's name of the machine's type, which a program on the machine sets.
MACHINE_TYPE = "SCALABLE_MACHINE_TYPE"
#: Maximum number of characters.
LONGEST = 80
#: File with the processor's name on Linux, and the names of its lines on x86 and other processors.
_PROCESSORS = Path("/proc/cpuinfo")
_MODEL = re.compile(r"^(?:model name|cpu model|Model|cpu)\s*:\s*(\S.*)$", re.MULTILINE)
#: Parts of a processor's name that differ between machines of one kind, or mean nothing.
_NOISE = re.compile(r"\((?:R|TM|tm|r)\)|\b(?:CPU|Processor)\b|@\s*[\d.]+\s*GHz|\d+-Core\b")


@cache
def machine_kind() -> str:
    """Return the cloud's machine type, or processor and architecture: equal on equal machines."""
    return cleaned(os.environ.get(MACHINE_TYPE, "")) or cleaned(
        f"{_NOISE.sub(' ', _processor())} {platform.machine()}"
    )


def cleaned(text: object) -> str:
    """Return the kind of machine as recorded, from any object, empty if it is not a string."""
    if not isinstance(text, str):
        return ""
    return " ".join(harmless(text).split())[:LONGEST].rstrip()


def _processor() -> str:
    try:
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(
                command, capture_output=True, text=True, timeout=5, check=False
            ).stdout
        found = _MODEL.search(_PROCESSORS.read_text(encoding="utf-8", errors="replace"))
    except (OSError, subprocess.SubprocessError):
        found = None
    return found[1] if found else platform.processor()
