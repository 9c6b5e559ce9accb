"""Identity of a container image, whose name may later refer to another image."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scalable.caching.errors import MovableImageError

logger = logging.getLogger("scalable.caching")

#: Programs that can identify the images of this machine.
PROGRAMS: Final = ("podman", "docker")
#: Longest wait for one of them, in seconds.
ANSWER_S: Final = 10.0
#: Marks a name that contains the image's digest.
_PINNED: Final = "@sha256:"


def image_identity(image: str, digest_of: Callable[[Path], str], *, here: bool) -> str:
    """Return a string that is equal for equal images only.

    It is the digest of a file's content, a name with a digest, or, if ``here`` (workers run the
    images of this machine), the id from podman or docker. Raises MovableImageError if only a name
    is known.
    """
    if _PINNED in image:
        return image
    path = Path(image)
    try:
        if path.is_file() and (path.is_absolute() or path.suffix == ".sif"):
            return f"sha256:{digest_of(path)}"
    except OSError as error:
        raise MovableImageError(image, f"its file cannot be read ({error.strerror})") from error
    if here and "://" not in image and (found := _inspected(image)):
        return found
    raise MovableImageError(image, "only its name is known, which may be given to another image")


def _inspected(image: str) -> str | None:
    for program in PROGRAMS:
        if shutil.which(program) is None:
            continue
        command = [program, "image", "inspect", "--format", "{{.Id}}", "--", image]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            logger.debug("%s does not tell what image %s is: %s", program, image, error)
            continue
        told = done.stdout.strip()
        if done.returncode == 0 and told:
            logger.debug("image %s is %s, by %s", image, told, program)
            return told.removeprefix("sha256:")
    return None
