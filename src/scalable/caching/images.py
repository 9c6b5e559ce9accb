"""The identity of a container image, whose name may be given to another image tomorrow."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from scalable.caching.errors import MovableImageError

logger = logging.getLogger("scalable.caching")

#: Programs that know the images of this machine.
PROGRAMS: Final = ("podman", "docker")
#: Longest wait for one of them, in seconds.
ANSWER_S: Final = 10.0
#: Marks a name that says the image's content.
_PINNED: Final = "@sha256:"


def image_identity(image: str, digest_of: Callable[[Path], str], *, here: bool) -> str:
    """Return a text that is equal for equal images only.

    Parameters
    ----------
    image
        Image of a component, as it is written in the manifest.
    digest_of
        Function that returns the digest of a file's content.
    here
        Whether the workers run the images that this machine has.

    Returns
    -------
    str
        Of a file, the digest of its content; a name with a digest as it is; of another name, the
        id of the image that podman or docker has here.

    Raises
    ------
    MovableImageError
        When nothing but a name is known, which may be given to another image.
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
