"""`File`: a file or directory as an argument, represented in cache keys by its content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from scalable.cache.errors import UnstableValueError
from scalable.cache.file_digests import FileDigests, digest_of_file


class File(os.PathLike[str]):
    """A file or directory that a task reads.

    The cache key covers the file's name and content, but not its directory: a changed file gets
    another key, a moved one does not. A path given as a string is treated as a string.

    Parameters
    ----------
    path
        Path of the file, or of a directory with all its files.

    Examples
    --------
    >>> client.submit(run, scalable.File("scenario.csv"), cache=True)  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.path.abspath(path)  # noqa: PTH100 - links stay: they may lead elsewhere

    @property
    def path(self) -> Path:
        """Absolute path of the file."""
        return Path(self._path)

    def open(self, mode: str = "r", **options: Any) -> IO[Any]:
        """Open the file as the built-in ``open`` does."""
        return self.path.open(mode, **options)

    def __fspath__(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"File({self._path!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, File) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def content(self, known: FileDigests) -> Iterator[tuple[str, str]]:
        """Yield the name and the digest of the file, or of each file of the directory.

        Parameters
        ----------
        known
            Known digests of files. Unchanged files are not read again.

        Raises
        ------
        UnstableValueError
            When a file cannot be read, or changes while it is read.
        """
        root = self.path
        try:
            if not root.is_dir():
                yield root.name, digest_of_file(root, known)
                return
            for path in sorted(_files(root, frozenset())):
                yield str(path.relative_to(root.parent)), digest_of_file(path, known)
        except OSError as error:
            raise UnstableValueError(self, f"cannot be read ({error})") from error


def _files(directory: Path, around: frozenset[tuple[int, int]]) -> Iterator[Path]:
    """Yield the files of a tree. Links are followed, except to an enclosing directory."""
    status = directory.stat()
    around = around | {(status.st_dev, status.st_ino)}
    for path in directory.iterdir():
        if not path.is_dir():
            yield path
        elif (inner := path.stat()) and (inner.st_dev, inner.st_ino) not in around:
            yield from _files(path, around)
