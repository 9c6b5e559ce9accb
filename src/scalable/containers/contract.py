"""The contract of an image: it has a Python with this package. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Packages without which no worker starts.
NEEDED = ("scalable", "distributed")
#: Advice for an image that breaks the contract.
ADVICE = (
    "an image for workers has a program python3 with scalable and distributed in the releases of "
    "this machine; `scalable image build` makes one"
)

#: Messages of runtimes and shells about a missing Python.
_NO_PYTHON = re.compile(
    r"""python3?["'`]?:?\s+(executable\ file\s)?not\ found
    |executable\ file\s["'`]?python3?["'`]?\snot\ found""",
    re.VERBOSE,
)
_MODULE = re.compile(r"No module named '?([\w.]+)")


def image_fault(image: str, said: str) -> str | None:
    """Return a sentence about an image without a suitable Python, or None for another error.
    ``said`` is the output of the runtime, or of the program in the image.
    """
    for name in _MODULE.findall(said):
        package = name.partition(".")[0]
        if package in (*NEEDED, "dask"):
            return f"the Python of image {image!r} does not have the package {package}"
    if _NO_PYTHON.search(said):
        return f"image {image!r} has no program python3"
    return None


def lacking(image: str, packages: Mapping[str, str | None]) -> str | None:
    """Return a sentence about needed packages that are not installed (version None), or None."""
    missing = [name for name in NEEDED if packages.get(name, "") is None]
    if not missing:
        return None
    noun = "package" if len(missing) == 1 else "packages"
    return f"the Python of image {image!r} does not have the {noun} {' and '.join(missing)}"
