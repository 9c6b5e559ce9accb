"""Build of an image with docker or podman."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scalable.containers import run_bounded
from scalable.errors import ProviderError

logger = logging.getLogger("scalable.images")

#: Programs that build images, in the order in which they are tried.
BUILDERS = ("podman", "docker")
#: Seconds that a build may take by default.
BUILD_S = 3600.0
#: Seconds that a program which is told to end may take before it is killed.
END_S = 10.0
INSPECT_S = 60.0
DOCKERFILE = "Dockerfile"
SAID_LINES = 15


@dataclass(frozen=True)
class BuildRequest:
    """One build.

    Attributes
    ----------
    builder
        ``podman`` or ``docker``.
    tag
        Name of the image.
    platform
        Platform of the image, such as ``linux/amd64``; None for this machine's.
    timeout_s
        Seconds that the build may take.
    """

    builder: str
    tag: str
    platform: str | None = None
    timeout_s: float = BUILD_S


def choose_builder(asked: str | None, which: Callable[[str], str | None] = shutil.which) -> str:
    """Return the program that builds images.

    Parameters
    ----------
    asked
        Name of the program; None for the first that is installed.
    which
        Function that finds a program on PATH.

    Raises
    ------
    ProviderError
        When it is not installed.
    """
    found = next((name for name in ((asked,) if asked else BUILDERS) if which(name)), None)
    if found is None:
        missing = f"{asked} is not" if asked else f"neither {' nor '.join(BUILDERS)} is"
        raise ProviderError(
            f"{missing} on PATH, and builds the image",
            hint="install one, or let another machine build: `scalable image show --context "
            "DIRECTORY` writes the Dockerfile and the file that it copies",
        )
    return found


def build(request: BuildRequest, dockerfile: Path, tell: Callable[[str], None]) -> str:
    """Build an image, and return its id.

    Parameters
    ----------
    request
        The build.
    dockerfile
        Path of the Dockerfile, in the directory of the files that it copies.
    tell
        Function that is called with each line of the builder's output.

    Returns
    -------
    str
        Id of the image: ``sha256:`` and 64 hexadecimal digits.

    Raises
    ------
    ProviderError
        When the build fails or takes too long.
    """
    command = [request.builder, "build", "--tag", request.tag, "--file", str(dockerfile)]
    command += ["--platform", request.platform] if request.platform else []
    _run([*command, str(dockerfile.parent)], request.timeout_s, tell)
    inspect = [request.builder, "image", "inspect", "--format", "{{.Id}}", request.tag]
    answer = run_bounded(inspect, INSPECT_S)
    if answer.returncode:
        raise ProviderError(f"image {request.tag!r} was built and is not there: {answer.stderr}")
    identity = answer.stdout.strip()
    # podman leaves the algorithm out.
    return identity if ":" in identity else f"sha256:{identity}"


def build_from(
    text: str, files: Mapping[str, bytes], request: BuildRequest, tell: Callable[[str], None]
) -> str:
    """Build an image from a Dockerfile's text; for the rest see :func:`build`.

    Parameters
    ----------
    text
        The Dockerfile.
    files
        Name -> content of the files that it copies.
    request
        The build.
    tell
        Function that is called with each line of the builder's output.
    """
    with tempfile.TemporaryDirectory(prefix="scalable-image-") as name:
        context = Path(name)
        write_context(context, text, files)
        return build(request, context / DOCKERFILE, tell)


def build_in_place(
    file: Path, files: Mapping[str, bytes], request: BuildRequest, tell: Callable[[str], None]
) -> str:
    """Build an image from a user's Dockerfile; for the rest see :func:`build`.

    Files that it names and that are missing in its directory are there during the build.

    Parameters
    ----------
    file
        The Dockerfile.
    files
        Name -> content of files that it may copy.
    request
        The build.
    tell
        Function that is called with each line of the builder's output.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        missing = {file.parent / n: data for n, data in files.items() if n in text}
        missing = {path: data for path, data in missing.items() if not path.exists()}
        for path, data in missing.items():
            path.write_bytes(data)
    except OSError as error:
        raise ProviderError(f"cannot prepare the build of {file}: {error}") from error
    try:
        return build(request, file.absolute(), tell)
    finally:
        for path in missing:
            path.unlink(missing_ok=True)


def write_context(directory: Path, text: str, files: Mapping[str, bytes]) -> None:
    """Write a Dockerfile and the files that it copies to a directory.

    Raises
    ------
    ProviderError
        When the directory cannot be written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / DOCKERFILE).write_text(text, encoding="utf-8")
        for name, data in files.items():
            (directory / name).write_bytes(data)
    except OSError as error:
        raise ProviderError(f"cannot write to {directory}: {error}") from error


def _run(command: Sequence[str], timeout_s: float, tell: Callable[[str], None]) -> None:
    """Run a command and pass each line of its output on; end it if this function ends early."""
    last: deque[str] = deque(maxlen=SAID_LINES)
    logger.debug("running %s", command)
    try:
        # In a session of its own, so that all its processes can be ended together.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ProviderError(f"{command[0]} cannot be started: {error}") from error
    late = threading.Event()

    def end() -> None:
        late.set()
        _signal(process, signal.SIGKILL)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line.rstrip())
            tell(line.rstrip())
        code = process.wait()
    finally:
        timer.cancel()
        _end(process)
    if late.is_set():
        raise ProviderError(
            f"{command[0]} build did not end within {timeout_s:g} s",
            hint="give it more with --timeout",
        )
    if code:
        said = "\n  ".join(line for line in last if line) or f"exit code {code}"
        raise ProviderError(f"{command[0]} could not build the image:\n  {said}")


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and its children, if it still runs."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
