"""Archives are equal for equal files, and unpack to files below one directory, or not at all."""

import io
import os
import sys
import tarfile
import zlib
from pathlib import Path

import pytest

from scalable.protocol import importing as trees_module
from scalable.protocol.code import ArchiveEntry, ArchiveError, CarriedFiles, _digest, pack, unpack
from scalable.protocol.importing import UnpackedArchives

ENTRIES = [
    ArchiveEntry("a/__init__.py", b""),
    ArchiveEntry("a/data.csv", b"1,2\n"),
    ArchiveEntry("run.sh", b"#!/bin/sh\n", executable=True),
    ArchiveEntry("é" * 120 + "/name.txt", b"long"),
]


def described(raw, roots=(("/client", "."),)):
    return CarriedFiles(_digest(raw), len(raw), roots), zlib.compress(raw)


def archive_of(*members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return described(file.getvalue())


def member(name, kind=tarfile.REGTYPE, target=""):
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


def test_equal_files_make_equal_archives_in_any_order():
    assert pack(ENTRIES) == pack(reversed(ENTRIES))
    assert pack(ENTRIES)[0] != pack(ENTRIES[1:])[0]
    assert pack([ArchiveEntry("a", b"", executable=True)])[0] != pack([ArchiveEntry("a", b"")])[0]
    assert pack([])[0]


def test_an_archive_unpacks_to_its_files_for_their_owner_alone(tmp_path):
    digest, size, data = pack(ENTRIES)
    place = tmp_path / "place"
    before = os.umask(0)
    try:
        unpack(data, CarriedFiles(digest, size), place)
    finally:
        os.umask(before)
    found = {p.relative_to(place).as_posix(): p.read_bytes() for p in place.rglob("*.*")}
    assert found == {entry.name: entry.content for entry in ENTRIES}
    modes = {path.stat().st_mode & 0o777 for path in (place, *place.rglob("*"))}
    assert modes == {0o600, 0o700}
    assert (place / "run.sh").stat().st_mode & 0o777 == 0o700
    unpack(data, CarriedFiles(digest, size), place)  # another thread may have been faster
    assert os.listdir(tmp_path) == ["place"]


ATTACKS = {
    "absolute": [(member("/tmp/absolute"), b"x")],
    "above": [(member("../above"), b"x")],
    "above inside": [(member("a/../../above"), b"x")],
    "symbolic link": [(member("link", tarfile.SYMTYPE, "/etc"), b"")],
    "through a link": [(member("link", tarfile.SYMTYPE, ".."), b""), (member("link/above"), b"x")],
    "hard link": [(member("link", tarfile.LNKTYPE, "/etc/passwd"), b"")],
    "device": [(member("null", tarfile.CHRTYPE), b"")],
    "pipe": [(member("pipe", tarfile.FIFOTYPE), b"")],
    "directory": [(member("directory", tarfile.DIRTYPE), b"")],
    "twice": [(member("a"), b"x"), (member("a"), b"y")],
    "below a file": [(member("a"), b"x"), (member("a/b"), b"y")],
    "the directory itself": [(member("."), b"x")],
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_anything_but_files_below_the_directory_is_refused(attack, tmp_path):
    files, data = archive_of((member("good"), b"x"), *attack)
    (tmp_path / "inside").mkdir()
    with pytest.raises(ArchiveError):
        unpack(data, files, tmp_path / "inside" / "place")
    assert os.listdir(tmp_path) == ["inside"]
    assert os.listdir(tmp_path / "inside") == []


def test_content_that_is_not_the_described_one_is_refused(tmp_path):
    digest, size, data = pack(ENTRIES)
    files = CarriedFiles(digest, size)
    other = pack(ENTRIES[:1])[2]
    bomb = zlib.compress(bytes(20_000_000))
    for wrong in (data[:-20], b"", b"not compressed", other, bomb):
        with pytest.raises(ArchiveError):
            unpack(wrong, files, tmp_path / "place")
    with pytest.raises(ArchiveError):
        unpack(data, CarriedFiles("../" + digest, size), tmp_path / "place")
    assert os.listdir(tmp_path) == []


def test_files_of_the_client_are_found_below_their_roots():
    files = CarriedFiles("d", 1, (("/home/x/src", "src"), ("/home/x", ".")))
    assert files.name_of("/home/x/src/a.py") == "src/a.py"
    assert files.name_of("/home/x/b/c.py") == "b/c.py"
    assert files.name_of("/home/y/c.py") is None


@pytest.fixture
def trees(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return UnpackedArchives(tmp_path)


def packed(number):
    digest, size, data = pack([ArchiveEntry("file", str(number).encode())])
    return CarriedFiles(digest, size, (("/client", "."),)), data


def test_only_the_directories_of_the_archive_in_use_are_on_the_search_path(trees, tmp_path):
    before = list(sys.path)
    (one, first), (two, second) = packed(1), packed(2)
    trees.add(one, first)
    trees.add(two, second)
    trees.use(one)
    assert sys.path == [*before, str(tmp_path / "carried" / one.digest)]
    trees.use(two)
    assert sys.path == [*before, str(tmp_path / "carried" / two.digest)]
    path = trees.path_of(two, "/client/file")
    assert Path(path).read_text() == "2"
    assert trees.is_outdated(path, one)
    assert not trees.is_outdated(path, two)
    assert not trees.is_outdated("/client/file", two)
    trees.use(None)
    assert sys.path == before


def test_old_archives_are_removed_but_those_of_running_calls_stay(trees, tmp_path, monkeypatch):
    monkeypatch.setattr(trees_module, "TREES_KEPT", 2)
    all_files = []
    for number in range(5):
        files, data = packed(number)
        trees.add(files, data)
        all_files.append(files)
    trees.drop_old({all_files[1].digest})
    assert [files in trees for files in all_files] == [False, True, False, True, True]
    assert sorted(os.listdir(tmp_path / "carried")) == sorted(
        files.digest for files in all_files if files in trees
    )


def test_without_a_directory_a_private_one_is_made(monkeypatch):
    made = UnpackedArchives()
    files, data = packed(1)
    made.add(files, data)
    place = os.path.dirname(os.path.dirname(made.path_of(files, "/client/file")))
    assert os.stat(place).st_mode & 0o777 == 0o700
    made._own.release()
    assert not os.path.exists(place)
