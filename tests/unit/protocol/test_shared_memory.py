"""Segments: sealed, opened by other processes, freed with their last holder, never mistaken."""

import contextlib
import fcntl
import gc
import os

import pytest

from scalable import settings
from scalable.dask_compat import comm
from scalable.protocol import shared_memory
from scalable.protocol.shared_memory import (
    Part,
    RefusedSegmentError,
    is_shared,
    limiting_group,
    open_part,
    process_of,
    shared,
    write_segment,
)

DATA = memoryview(bytes(range(256)) * 64)


def opened(segment, start=0, length=None):
    return open_part(os.getpid(), segment.part(start, len(DATA) if length is None else length))


def descriptors():
    """Return how many descriptors of segments, and of the file of `plain_file`, are open."""
    gc.collect()
    count = 0
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(entry.path)
            count += shared_memory._NAME in target or target.endswith("/secret")
    return count


def test_nobody_can_change_a_segment():
    segment = write_segment(DATA)
    for change in (
        lambda: os.pwrite(segment.descriptor, b"x", 0),
        lambda: os.ftruncate(segment.descriptor, 1),
        lambda: fcntl.fcntl(segment.descriptor, fcntl.F_ADD_SEALS, 0),
    ):
        with pytest.raises(PermissionError):
            change()
    assert os.fstat(segment.descriptor).st_mode & 0o777 == 0o600


def test_a_view_is_lent_again_without_a_copy():
    segment = write_segment(DATA)
    view = opened(segment)
    found, start = shared(view)
    assert (found.part(0, 1).inode, start) == (segment.part(0, 1).inode, 0)
    found, start = shared(view[4096:])
    assert (found.part(0, 1).inode, start) == (segment.part(0, 1).inode, 4096)
    readonly = view.toreadonly()
    assert is_shared(readonly)
    assert not is_shared(DATA), "other memory is in no segment"


def test_a_small_part_of_a_view_is_copied_instead_of_keeping_the_rest():
    view = opened(write_segment(DATA))
    found, start = shared(view[4096:5000])
    assert (os.fstat(found.descriptor).st_size, start) == (904, 0)
    assert opened(found, 0, 904) == view[4096:5000]


def test_pages_are_looked_at_in_parts(monkeypatch):
    monkeypatch.setattr(shared_memory, "_PAGES_AT_ONCE", 1)
    view = opened(write_segment(DATA))
    assert (view[0], view[-1]) == (DATA[0], DATA[-1])  # now these pages are in memory
    assert is_shared(view)
    view[-1] ^= 1
    assert not is_shared(view)


def test_what_cannot_be_mapped_is_copied(monkeypatch):
    def refused(_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(shared_memory, "_map", refused)
    view = opened(write_segment(DATA), 3, 1000)
    assert view == DATA[3:1003]
    assert not is_shared(view)


def test_a_view_is_copied_where_the_system_does_not_tell_its_pages(monkeypatch):
    view = opened(write_segment(DATA))

    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(shared_memory.os, "pread", refused)
    assert not is_shared(view)


def unsealed():
    descriptor = os.memfd_create(shared_memory._NAME, os.MFD_ALLOW_SEALING)
    os.write(descriptor, DATA)
    return descriptor


def plain_file(directory):
    path = directory / "secret"
    path.write_bytes(DATA)
    return os.open(path, os.O_RDONLY)


@pytest.mark.parametrize("change", [
    {"inode": 1},
    {"size": len(DATA) - 1},
    {"start": 1},
    {"length": len(DATA) + 1},
    {"start": -1, "length": 1},
    {"descriptor": "../../../etc/passwd"},
    {"descriptor": -1},
    {"descriptor": True},
], ids=str)  # fmt: skip
def test_a_wrong_part_is_refused(change):
    segment = write_segment(DATA)
    before = descriptors()
    with pytest.raises(RefusedSegmentError):
        open_part(os.getpid(), segment.part(0, len(DATA))._replace(**change))
    assert descriptors() == before, "nothing stays open"


def test_what_is_no_segment_is_refused(tmp_path):
    for descriptor in (unsealed(), plain_file(tmp_path)):
        status = os.fstat(descriptor)
        part = Part(descriptor, status.st_ino, status.st_size, 0, status.st_size)
        before = descriptors()
        with pytest.raises(RefusedSegmentError):
            open_part(os.getpid(), part)
        assert descriptors() == before, "nothing stays open"
        os.close(descriptor)
        with pytest.raises(FileNotFoundError):
            open_part(os.getpid(), part)


def test_a_process_with_many_segments_shares_no_more_and_copies_what_it_gets(monkeypatch):
    segment = write_segment(DATA)
    monkeypatch.setattr(shared_memory, "_DESCRIPTOR_SHARE", 0)
    assert shared(DATA) is None
    before = descriptors()
    view = opened(segment, 5, 100)
    assert view == DATA[5:105]
    assert descriptors() == before


def test_without_memory_or_descriptors_nothing_is_shared(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = descriptors()
    monkeypatch.setattr(shared_memory.os, "write", full)
    assert shared(DATA) is None
    assert descriptors() == before


def test_a_process_shares_with_itself_and_knows_who_it_cannot_share_with():
    told = shared_memory.introduction()
    assert process_of(told) == os.getpid()
    boot, space, user, domain = told["system"]
    for system in (
        ["other boot", space, user, domain],
        [boot, "pid:[1]", user, domain],
        [boot, space, user + 1, domain],
        [boot, space, user, "a group with a limit"],
        [None, space, user, domain],
    ):
        assert process_of({**told, "system": system}) is None
    assert process_of({**told, "word": b"0" * 16}) is None
    assert process_of({**told, "process": os.getppid()}) is None
    for garbage in (None, {}, "text", {**told, "part": [1]}, {**told, "process": "self"}):
        assert process_of(garbage) is None


@pytest.mark.parametrize(("groups", "files", "expected"), [
    ("0::/a/b\n", {"a/memory.max": "1000", "a/b/memory.max": "max"}, "a"),
    ("0::/a/b\n", {"a/memory.max": "max", "a/b/memory.max": "max"}, ""),
    ("0::/\n", {"memory.max": "5"}, "."),
    ("0::/../gone\n", {}, ""),
    ("3:cpu:/x\n2:memory,hugetlb:/job\n", {"memory/job/memory.limit_in_bytes": "7"}, "memory/job"),
    ("2:memory:/job\n", {"memory/job/memory.limit_in_bytes": str(2**63 - 4096)}, ""),
    ("", {}, ""),
])  # fmt: skip
def test_the_group_with_the_memory_limit_is_found(groups, files, expected, tmp_path):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert limiting_group(groups, tmp_path) == (str(tmp_path / expected) if expected else "")


@pytest.mark.parametrize(("value", "on"), [("0", False), ("off", False), ("1", True), ("", True)])
def test_a_variable_turns_it_off(value, on, monkeypatch):
    monkeypatch.setenv(settings.SHARED_MEMORY, value)
    assert settings.shares_memory() is on
    assert (comm._introduction() is not None) is on
