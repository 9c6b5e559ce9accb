"""The script by which an instance starts its container, as cloud-init runs it. No I/O.

It is the same for all instances of a component, and has no secret in it: the names of the units are
tags of the instance, and the program reads its files by the instance's role.
"""

from __future__ import annotations

#: Variable with the ARN of the secret that holds the files, which says nothing of them.
FILES_AT_VARIABLE = "SCALABLE_FILES_AT"
