"""Digests of files that are not read again while they are unchanged."""

import hashlib
import os

import pytest

from scalable.cache.files import FileDigests, digest_of_file
from scalable.cache.store import ResultStore


@pytest.fixture
def digests(tmp_path):
    return ResultStore.open(tmp_path / "results").file_digests


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "in.nc"
    path.write_bytes(b"one")
    return path


@pytest.fixture
def settled(monkeypatch):
    """Make files count as unchanged for long at once."""
    monkeypatch.setattr("scalable.cache.files.RACY_S", -1e9)


@pytest.mark.usefixtures("settled")
def test_a_file_is_read_again_only_when_it_changed(path, tmp_path, digests, monkeypatch):
    one = hashlib.sha256(b"one").hexdigest()
    assert digest_of_file(path, digests) == one
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", reading_fails(path))
        assert digest_of_file(path, digests) == one
        assert digest_of_file(path, FileDigests(digests._store)) == one  # another process
        with pytest.raises(AssertionError):
            digest_of_file(path, FileDigests())
    before = path.stat()
    path.write_bytes(b"two")  # the same size; then the time of modification is put back
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_of_file(path, digests) == hashlib.sha256(b"two").hexdigest()
    replacement = tmp_path / "new"
    replacement.write_bytes(b"six")
    os.utime(replacement, ns=(before.st_atime_ns, before.st_mtime_ns))
    replacement.rename(path)
    assert digest_of_file(path, digests) == hashlib.sha256(b"six").hexdigest()


def reading_fails(path):
    """Return an ``open`` with which a file can be opened, and not read."""
    real = open

    class Unread:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def fileno(self):
            return self.file.fileno()

        def readinto(self, buffer):
            raise AssertionError("the file is read")

    def opened(name, *args, **options):
        file = real(name, *args, **options)
        return Unread(file) if str(name) == str(path) else file

    return opened


def test_a_file_that_changed_just_now_is_not_trusted_by_its_time(path, digests):
    digest_of_file(path, digests)
    assert digests._known == {}
    assert not (digests._store / "files").exists()


def test_a_file_that_changes_while_it_is_read_is_an_error(path, monkeypatch):
    real = os.fstat

    def changing(descriptor):
        with path.open("ab") as file:
            file.write(b"x")
        return real(descriptor)

    monkeypatch.setattr(os, "fstat", changing)
    with pytest.raises(OSError, match="changed 3 times"):
        digest_of_file(path, FileDigests())


@pytest.mark.usefixtures("settled")
def test_records_of_digests_that_are_not_ours_are_not_used(path, digests):
    right = digest_of_file(path, digests)
    (record,) = (p for p in (digests._store / "files").rglob("*") if p.is_file())
    text = record.read_text()
    for other in ("", "[]", "5", text.replace(right, "00"), text.replace("in.nc", "on.nc")):
        record.write_text(other)
        assert digest_of_file(path, FileDigests(digests._store)) == right
    record.write_text(text.replace(right, "0" * 64))
    record.chmod(0o666)
    assert digest_of_file(path, FileDigests(digests._store)) == right
