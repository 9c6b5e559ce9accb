"""The store of cached results: reads, writes, and what is wrong with files."""

import hashlib
import json
import logging
import os
import pickle
import socket
import stat
import struct
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from scalable.cache import store as store_module
from scalable.cache.entries import VERSION, make_private
from scalable.cache.key import CallKey
from scalable.cache.store import LAYOUT, ResultStore, inputs_of, path_of
from scalable.errors import ManifestError
from unit.programs import printed_by

KEY = CallKey(hashlib.sha256(b"a call").hexdigest(), {"argument:year": "2050"}, "model.run")
OTHER = CallKey(hashlib.sha256(b"another").hexdigest(), {"argument:year": "2051"}, "model.run")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def file_of(store, key=KEY):
    return Path(store.url.removeprefix("file://"), path_of(key))


def put(store, value, key=KEY, cost_s=2.0, **facts):
    return store.put(key, value, cost_s=cost_s, **facts)


def entry_of(store, key=KEY):
    found = {one.key: one for one in store.stored()}
    return store.described(found[key.digest]) if key.digest in found else None


def test_a_result_comes_back_with_its_description(store):
    entry = put(store, {"a": [1, 2]}, task="run", tag="small", run="r1")
    found = store.get(KEY)
    assert found.value() == {"a": [1, 2]}
    assert found.entry == entry == entry_of(store)
    assert (entry.key, entry.function, entry.cost_s, entry.task, entry.tag, entry.run) == (
        KEY.digest, "model.run", 2.0, "run", "small", "r1",
    )  # fmt: skip
    assert entry.parts == {"argument:year": "2050"}
    assert entry.host
    (stored,) = store.stored()
    assert stored.size == file_of(store).stat().st_size


def test_results_of_a_function_are_in_a_directory_with_its_name(store):
    assert path_of(KEY) == f"{LAYOUT}/model.run/{inputs_of(KEY.parts)}-{KEY.digest}"
    same = CallKey(OTHER.digest, {**KEY.parts, "code:f": "1"}, "model.run")
    assert path_of(same)[:-64] == path_of(KEY)[:-64] != path_of(OTHER)[:-64]


@pytest.mark.parametrize(
    "name", ["m.f.<locals>.g", "../../x", ".hidden", "a/b", "x" * 300, "m.\ud800", "m.é", "", ".."]
)
def test_a_function_with_a_name_of_any_kind_has_a_safe_directory(store, name):
    key = CallKey(KEY.digest, {}, name)
    assert put(store, 5, key)
    assert store.get(key).value() == 5
    folder = file_of(store, key).parent
    assert folder.parent == file_of(store).parents[1]
    assert set(folder.name) <= set("0123456789abcdef")


def test_a_key_without_a_result_is_a_miss_without_a_warning(store, caplog):
    assert store.get(KEY) is None
    assert entry_of(store) is None
    assert store.fault_of(KEY) is None
    assert caplog.records == []


@pytest.mark.parametrize("size", [0, 10, 100_000, 3_000_000])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_all_sizes_come_back_writable(store, size, order):
    array = np.asarray(np.arange(size, dtype="f4").reshape(-1, 2), order=order)
    put(store, {"one": array, "view": array[::2], "other": array + 1})
    found = store.get(KEY).value()
    assert np.array_equal(found["one"], array)
    assert np.array_equal(found["view"], array[::2])
    assert np.array_equal(found["other"], array + 1)
    assert found["one"].flags.f_contiguous == array.flags.f_contiguous
    found["one"][...] = 5  # belongs to the caller alone
    assert np.array_equal(store.get(KEY).value()["one"], array)


def test_a_read_only_array_stays_read_only(store):
    array = np.arange(100_000)
    array.flags.writeable = False
    put(store, array)
    assert not store.get(KEY).value().flags.writeable


def test_a_large_array_is_written_without_a_copy_of_it(store):
    import tracemalloc

    array = np.ones(20_000_000, dtype="u1")
    tracemalloc.start()
    try:
        put(store, array)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_result_larger_than_asked_for_is_left_to_a_worker(store):
    put(store, bytes(1000))
    assert store.get(KEY, at_most=500) is None
    assert store.get(KEY, at_most=5000).value() == bytes(1000)


def test_an_object_of_the_script_is_read_only_where_its_class_is_known(store, monkeypatch):
    script = (
        "import sys; from scalable.cache.key import CallKey\n"
        "from scalable.cache.store import ResultStore\n"
        "class Local:\n    x = 7\n"
        "key = CallKey(sys.argv[2], {'argument:year': '2050'}, 'model.run')\n"
        "assert ResultStore.open(sys.argv[1]).put(key, [Local(), lambda: 3], cost_s=0)\n"
    )
    printed_by(script, store.url, KEY.digest)
    assert store.get(KEY) is None
    assert "the class Local of the script is not defined in this process" in store.fault_of(KEY)

    class Local:
        x = 8

    Local.__qualname__ = "Local"
    monkeypatch.setattr(sys.modules["__main__"], "Local", Local, raising=False)
    assert store.get(KEY) is None  # a class of this module that has the name there
    Local.__module__ = "__main__"
    found, function = store.get(KEY).value()
    assert (type(found), found.x, function()) == (Local, 8, 3)
    monkeypatch.delattr(sys.modules["__main__"], "Local")

    def call():
        return None

    brought = type(call)(call.__code__, {"Local": Local})
    assert isinstance(store.get(KEY, function=brought).value()[0], Local)


def test_the_store_pickles_as_its_url_and_is_one_object_in_a_process(store, tmp_path):
    put(store, 5)
    text = pickle.dumps(store)
    assert len(text) < 200
    assert pickle.loads(text) is pickle.loads(text) is ResultStore.open(tmp_path / "results")
    assert pickle.loads(text).get(KEY).value() == 5
    limited = pickle.dumps(ResultStore(tmp_path / "other", 100))
    assert pickle.loads(limited).limit == 100


def test_the_directory_and_its_files_are_for_their_owner_alone(tmp_path):
    old = os.umask(0)
    try:
        store = ResultStore.open(tmp_path / "results")
        put(store, 5)
    finally:
        os.umask(old)
    for path in [tmp_path / "results", *(tmp_path / "results").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_every_changed_byte_is_a_miss(store):
    put(store, "value")
    path = file_of(store)
    whole = path.read_bytes()
    end = 48 + struct.unpack(">I", whole[12:16])[0]
    assert len(whole) - 40 < end < len(whole)
    for position in range(len(whole)):  # the payload's too
        for bits in (1, 0x80, 0xFF):
            changed = bytearray(whole)
            changed[position] ^= bits
            path.write_bytes(changed)
            assert store.get(KEY) is None, position
            if position < end:
                assert entry_of(store) is None, position
    path.write_bytes(whole)
    assert store.get(KEY).value() == "value"


def test_a_shorter_or_longer_file_is_a_miss_at_every_length(store):
    put(store, "value")
    path = file_of(store)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert store.get(KEY) is None, length
        assert entry_of(store) is None, length
    for more in (b"\0", b"more", whole):
        path.write_bytes(whole + more)
        assert store.get(KEY) is None


def test_a_large_file_that_is_cut_or_changed_is_a_miss(store):
    put(store, np.arange(500_000))
    path = file_of(store)
    whole = path.read_bytes()
    for changed in (whole[:-1], whole[:2_000_000], whole[:-1] + b"\1", whole + b"\0"):
        path.write_bytes(changed)
        assert store.get(KEY) is None
    path.write_bytes(whole)
    assert store.get(KEY).value().sum() == np.arange(500_000).sum()


def test_the_entry_of_another_key_is_a_miss(store):
    put(store, 5, OTHER)
    file_of(store, OTHER).rename(file_of(store))
    assert store.get(KEY) is None
    assert "belongs to the key" in store.fault_of(KEY)


def sealed(header, payload=b"", version=VERSION):
    """Return an entry whose digests are right."""
    text = json.dumps(header).encode()
    fixed = struct.pack(">8sII", b"\x93scaRES\n", version, len(text))
    return fixed + hashlib.sha256(fixed + text).digest() + text + payload


def sound_header(payload):
    return {
        "key": KEY.digest, "parts": {}, "function": "f", "created": 1.0, "cost_s": 1.0,
        "size": len(payload), "task": "", "tag": "", "run": "", "host": "",
        "digest": hashlib.sha256(payload).hexdigest(), "sizes": [len(payload)], "read_only": [],
    }  # fmt: skip


@pytest.mark.parametrize("version", [0, VERSION + 1, 2**32 - 1])
def test_an_entry_of_another_version_is_a_miss_and_is_replaced(store, version):
    payload = pickle.dumps("other")
    file_of(store).parent.mkdir()
    file_of(store).write_bytes(sealed(sound_header(payload), payload))
    assert store.get(KEY).value() == "other"
    file_of(store).write_bytes(sealed(sound_header(payload), payload, version))
    assert store.get(KEY) is None
    assert entry_of(store) is None
    assert f"version {version}" in store.fault_of(KEY)
    put(store, "mine")
    assert store.get(KEY).value() == "mine"


@pytest.mark.parametrize("change", [
    {"key": 5}, {"sizes": []}, {"sizes": [-1]}, {"sizes": ["1"]}, {"sizes": 5},
    {"sizes": [10**30]}, {"digest": 5}, {"read_only": 0},
])  # fmt: skip
def test_a_sealed_header_with_other_values_is_a_miss(store, change):
    payload = pickle.dumps("other")
    file_of(store).parent.mkdir()
    file_of(store).write_bytes(sealed(sound_header(payload) | change, payload))
    assert store.get(KEY) is None


@pytest.mark.parametrize("header", [[], 5, "text", None, {}])
def test_a_sealed_header_that_is_no_entry_is_a_miss(store, header):
    file_of(store).parent.mkdir()
    file_of(store).write_bytes(sealed(header))
    assert store.get(KEY) is None
    assert "has a header that cannot be read" in store.fault_of(KEY)


class Refuses:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise RuntimeError("the class has gone")


def test_a_result_that_cannot_be_unpickled_is_a_miss(store):
    assert put(store, Refuses())
    assert store.get(KEY) is None
    assert "the class has gone" in store.fault_of(KEY)
    assert entry_of(store) is not None


def test_a_result_that_cannot_be_pickled_is_named_once(store, caplog):
    for _ in range(3):
        assert put(store, threading.Lock()) is None
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "results of model.run are not cached: a result of type _thread.lock" in (
        record.getMessage()
    )
    assert store.get(KEY) is None


def test_thousands_of_unreadable_entries_of_a_kind_are_logged_once(store, caplog, make_key):
    for number in range(50):
        put(store, 1, make_key(number))
        file_of(store, make_key(number)).write_bytes(b"nothing")
        assert store.get(make_key(number)) is None
    (record,) = caplog.records
    assert make_key(0).digest[:12] in record.getMessage()
    assert "has only 7 bytes, too few for an entry" in record.getMessage()
    assert "too few for an entry" in store.fault_of(make_key(49))


@needs_root
def test_an_entry_of_another_user_is_refused(store):
    put(store, "planted")
    os.chown(file_of(store), 65534, 65534)
    assert store.get(KEY) is None
    assert entry_of(store) is None
    assert "belongs to another user (uid 65534)" in store.fault_of(KEY)
    put(store, "mine")
    assert store.get(KEY).value() == "mine"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_that_others_can_change_is_refused(store, mode):
    put(store, "planted")
    file_of(store).chmod(mode)
    assert store.get(KEY) is None
    assert "can be changed by other users" in store.fault_of(KEY)


def test_links_pipes_and_directories_are_refused_without_waiting(store, files_of):
    put(store, "elsewhere", OTHER)
    path = file_of(store)
    path.symlink_to(file_of(store, OTHER))
    assert store.get(KEY) is None
    path.unlink()
    os.mkfifo(path)
    assert store.get(KEY) is None
    path.unlink()
    path.mkdir()
    assert store.get(KEY) is None
    assert put(store, 1) is None
    assert files_of(store) == [file_of(store, OTHER)]


@needs_root
@pytest.mark.parametrize("part", [".", LAYOUT])
def test_a_directory_of_another_user_is_not_used_and_named_once(tmp_path, caplog, part):
    put(ResultStore(tmp_path), "theirs")
    os.chown(tmp_path / part, 65534, 65534)
    store = ResultStore.open(tmp_path)
    for _ in range(2):
        assert store.get(KEY) is None
        assert put(store, 1) is None
    (record,) = caplog.records
    assert "are not cached" in record.getMessage()
    assert "belongs to another user (uid 65534)" in record.getMessage()


def test_a_directory_with_other_files_stays_open_to_others_but_not_its_results(tmp_path):
    tmp_path.chmod(0o755)
    assert put(ResultStore(tmp_path), 1) is not None
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path, tmp_path / LAYOUT)]
    assert modes == [0o755, 0o700]


def test_a_file_in_place_of_the_directory_is_named_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    (tmp_path / "file").chmod(0o640)
    store = ResultStore.open(tmp_path / "file")
    assert store.get(KEY) is None
    assert put(store, 1) is None
    (record,) = caplog.records
    assert "is not a directory" in record.getMessage()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://", "s3://user:pass@bucket/x"])
def test_a_url_that_is_none_of_ours_is_an_error_without_its_secrets(url):
    with pytest.raises(ManifestError) as caught:
        ResultStore.open(url)
    assert "pass@" not in str(caught.value)


def test_removed_results_are_gone_and_counted(store):
    put(store, 1)
    stored = list(store.stored())
    assert store.remove(stored * 2) == 1
    assert store.get(KEY) is None
    assert put(store, 2)  # although the directory has gone with its last result
    assert store.get(KEY).value() == 2


def test_a_use_is_noted_by_the_time_of_the_file_at_most_once_an_hour(store):
    put(store, 1)
    path = file_of(store)
    for seconds, is_noted in ((100, False), (5000, True), (-5000, True)):
        old = path.stat().st_mtime - seconds
        os.utime(path, (old, old))
        store.get(KEY)
        assert (path.stat().st_mtime != pytest.approx(old)) == is_noted
        put(store, 1)


def test_one_of_several_writers_that_do_not_replace_succeeds(store, at_once):
    def write(number):
        try:
            return put(ResultStore(store.url), number, replace=False) is not None
        except FileExistsError:
            return False

    assert sorted(at_once(write, range(4))) == [False] * 3 + [True]
    assert store.get(KEY).value() in range(4)


# Buckets ------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(tmp_path):
    return ResultStore(f"memory://{tmp_path.name}-{os.getpid()}")


def test_objects_hold_results_of_all_kinds(bucket):
    assert bucket.get(KEY) is None
    entry = put(bucket, {"a": bytearray(100_000)})
    assert bucket.get(KEY).value() == {"a": bytearray(100_000)}
    assert entry_of(bucket) == entry
    (stored,) = bucket.stored()
    assert stored.path == path_of(KEY)
    with bucket._place._storage.open(path_of(KEY), "wb") as file:
        file.write(b"torn")
    assert bucket.get(KEY) is None
    assert bucket.remove([stored, stored]) == 1
    assert list(bucket.stored()) == []


def test_a_large_object_is_written_in_parts(bucket, monkeypatch):
    monkeypatch.setattr("scalable.cache.store.LARGE", 1000)
    put(bucket, bytearray(300_000))
    assert bucket.get(KEY).value() == bytearray(300_000)


def test_what_a_library_of_objects_raises_is_a_miss_and_logged_once(bucket, monkeypatch, caplog):
    def refuse(*_, **__):
        raise RuntimeError("no credentials")

    for name in ("cat_file", "pipe_file", "find"):
        monkeypatch.setattr(type(bucket._place._storage.fs), name, refuse)
    assert bucket.get(KEY) is None
    assert put(bucket, 1) is None
    assert bucket.earlier(KEY, 1e12) is None
    (record,) = caplog.records
    assert "no credentials" in record.getMessage()


def test_a_link_and_a_socket_are_named_as_such(store, tmp_path, monkeypatch, caplog):
    put(store, "elsewhere", OTHER)
    file_of(store).symlink_to(file_of(store, OTHER))
    assert store.get(KEY) is None
    assert store.fault_of(KEY) == "is not a regular file"
    file_of(store).unlink()
    monkeypatch.chdir(file_of(store).parent)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(file_of(store).name)
        assert ResultStore(store.url).get(KEY) is None
    assert "are not cached" not in caplog.text


def test_a_pipe_in_place_of_the_clock_stops_no_pruning(store, tmp_path):
    put(store, 1)
    os.mkfifo(tmp_path / "results" / "clock")
    thread = threading.Thread(target=store.prune, kwargs={"limit": 0}, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert store.get(KEY) is None


def test_a_folder_that_others_remove_at_once_is_made_again(tmp_path, monkeypatch, caplog):
    left = []

    def removed_at_once(path):
        make_private(path)
        if left:
            left.pop()
            path.rmdir()

    monkeypatch.setattr(store_module, "make_private", removed_at_once)
    first, second = (ResultStore.open(tmp_path / name) for name in ("first", "second"))
    for write in (lambda: put(first, 1), lambda: second.adopt(KEY, first)):
        left.extend((1, 1))
        write()
        assert not left
    assert first.get(KEY).value() == second.get(KEY).value() == 1
    assert not caplog.records


def test_an_open_file_is_not_stored_as_its_text(store, tmp_path, monkeypatch, caplog):
    (tmp_path / "text").write_text("text")
    with (tmp_path / "text").open() as file:
        assert put(store, [file]) is None
    assert "an open file" in caplog.text
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", sys.__stdout__)  # pytest has put its own in place
        assert put(store, [sys.stdout, lambda: 1], OTHER) is not None
