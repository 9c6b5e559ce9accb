"""The store of remembered results: reads, writes, and what is wrong with files."""

import hashlib
import json
import logging
import os
import pickle
import stat
import struct
import sys
import threading

import numpy as np
import pytest

from scalable.cache.entries import VERSION
from scalable.cache.store import ResultStore
from scalable.errors import ClusterError, ManifestError
from unit.programs import printed_by

KEY = hashlib.sha256(b"a call").hexdigest()
OTHER = hashlib.sha256(b"another task").hexdigest()
FACTS = {"parts": {"argument:year": "2050"}, "function": "model.run", "cost_s": 2.0}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def path_of(store, key=KEY):
    return store._place._path(key)


def other_names(store):
    """Return the names of all files beside the entries."""
    found = (store._place.path / "entries").rglob("*")
    return [path.name for path in found if path.is_file() and len(path.name) != 64]


def test_a_result_comes_back_with_its_description(store):
    put = store.put(KEY, {"a": [1, 2]}, **FACTS, task="run", tag="small", run="r1")
    found = store.get(KEY)
    assert found.value() == {"a": [1, 2]}
    assert found.entry == put == store.entry(KEY)
    assert (put.key, put.function, put.cost_s, put.task, put.tag, put.run) == (
        KEY, "model.run", 2.0, "run", "small", "r1",
    )  # fmt: skip
    assert put.parts == {"argument:year": "2050"}
    assert put.host
    assert list(store.entries()) == [put]
    assert store.usage().entries == 1
    assert store.usage().size == path_of(store).stat().st_size


def test_a_key_without_a_result_is_a_miss_and_no_report(store):
    assert store.get(KEY) is None
    assert store.entry(KEY) is None
    assert dict(store.reports.counts) == {"misses": 1}


@pytest.mark.parametrize("key", ["", "../" * 21 + "x", "A" * 64, KEY + "0", "é" * 64])
def test_what_is_no_key_is_an_error(store, key):
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        store.get(key)
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        store.put(key, 1, **FACTS)
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        store.remove([key])


@pytest.mark.parametrize("size", [0, 10, 100_000, 3_000_000])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_all_sizes_come_back_writable(store, size, order):
    array = np.asarray(np.arange(size, dtype="f4").reshape(-1, 2), order=order)
    store.put(KEY, {"one": array, "view": array[::2], "other": array + 1}, **FACTS)
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
    store.put(KEY, array, **FACTS)
    assert not store.get(KEY).value().flags.writeable


def test_a_large_array_is_written_without_a_copy_of_it(store):
    import tracemalloc

    array = np.ones(20_000_000, dtype="u1")
    tracemalloc.start()
    try:
        store.put(KEY, array, **FACTS)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_an_object_of_the_script_is_read_only_where_its_class_is_known(store, monkeypatch):
    script = (
        "import sys; from scalable.cache.store import ResultStore\n"
        "class Local:\n    x = 7\n"
        "assert ResultStore.open(sys.argv[1]).put(sys.argv[2], [Local(), lambda: 3], parts={},"
        " function='f', cost_s=0)\n"
    )
    printed_by(script, store.url, KEY)
    assert store.get(KEY) is None
    assert (
        "the class Local of the script is not defined in this process"
        in store.reports.latest[-1].reason
    )

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


def test_the_store_pickles_as_its_url_and_is_one_object_in_a_process(store):
    store.put(KEY, 5, **FACTS)
    text = pickle.dumps(store)
    assert len(text) < 200
    one, other = pickle.loads(text), pickle.loads(text)
    assert one is other
    assert one.url == store.url
    assert one.get(KEY).value() == 5


def test_the_directory_and_its_files_are_for_their_owner_alone(store):
    old = os.umask(0)
    try:
        store.put(KEY, 5, **FACTS)
    finally:
        os.umask(old)
    for path in [store._place.path, *store._place.path.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_every_changed_byte_of_a_header_is_a_miss(store):
    store.put(KEY, "value", **FACTS)
    path = path_of(store)
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
                assert store.entry(KEY) is None, position
    path.write_bytes(whole)
    assert store.get(KEY).value() == "value"
    assert store.reports.counts["corrupt"] > 3 * 40


def test_a_shorter_or_longer_file_is_a_miss_at_every_length(store):
    store.put(KEY, "value", **FACTS)
    path = path_of(store)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert store.get(KEY) is None, length
        assert store.entry(KEY) is None, length
    for more in (b"\0", b"more", whole):
        path.write_bytes(whole + more)
        assert store.get(KEY) is None
    assert set(store.reports.counts) == {"stored", "misses", "torn"}


def test_a_large_file_that_is_cut_or_changed_is_a_miss(store):
    store.put(KEY, np.arange(500_000), **FACTS)
    path = path_of(store)
    whole = path.read_bytes()
    for changed in (whole[:-1], whole[:2_000_000], whole[:-1] + b"\1", whole + b"\0"):
        path.write_bytes(changed)
        assert store.get(KEY) is None
    path.write_bytes(whole)
    assert store.get(KEY).value().sum() == np.arange(500_000).sum()


def test_the_entry_of_another_key_is_a_miss(store):
    store.put(OTHER, 5, **FACTS)
    path_of(store).parent.mkdir(exist_ok=True)
    path_of(store, OTHER).rename(path_of(store))
    assert store.get(KEY) is None
    assert store.reports.latest[-1].kind == "foreign"


def sealed(header, payload=b"", version=VERSION):
    """Return an entry whose digests are right."""
    text = json.dumps(header).encode()
    fixed = struct.pack(">8sII", b"\x93scaRES\n", version, len(text))
    return fixed + hashlib.sha256(fixed + text).digest() + text + payload


def sound_header(payload):
    return {
        "key": KEY, "parts": {}, "function": "f", "created": 1.0, "cost_s": 1.0,
        "size": len(payload), "task": "", "tag": "", "run": "", "host": "",
        "digest": hashlib.sha256(payload).hexdigest(), "sizes": [len(payload)], "read_only": [],
    }  # fmt: skip


@pytest.mark.parametrize("version", [0, VERSION + 1, 2**32 - 1])
def test_an_entry_of_another_version_is_a_miss_and_is_replaced(store, version):
    payload = pickle.dumps("other")
    path_of(store).parent.mkdir(parents=True)
    path_of(store).write_bytes(sealed(sound_header(payload), payload))
    assert store.get(KEY).value() == "other"
    path_of(store).write_bytes(sealed(sound_header(payload), payload, version))
    assert store.get(KEY) is None
    assert store.entry(KEY) is None
    assert f"version {version}" in store.reports.latest[-1].reason
    store.put(KEY, "mine", **FACTS)
    assert store.get(KEY).value() == "mine"


@pytest.mark.parametrize("change", [
    {"key": 5}, {"parts": []}, {"parts": {"a": 1}}, {"function": None}, {"created": "now"},
    {"size": 10**15}, {"sizes": []}, {"sizes": [-1]}, {"sizes": ["1"]}, {"sizes": 5},
    {"sizes": [10**30]}, {"digest": 5}, {"read_only": ["0"]}, {"host": 5},
])  # fmt: skip
def test_a_sealed_header_with_other_values_is_a_miss(store, change):
    payload = pickle.dumps("other")
    path_of(store).parent.mkdir(parents=True)
    path_of(store).write_bytes(sealed(sound_header(payload) | change, payload))
    assert store.get(KEY) is None
    assert store.entry(KEY) is None


@pytest.mark.parametrize("header", [[], 5, "text", None, {}])
def test_a_sealed_header_that_is_no_entry_is_a_miss(store, header):
    path_of(store).parent.mkdir(parents=True)
    path_of(store).write_bytes(sealed(header))
    assert store.get(KEY) is None
    assert store.reports.latest[-1].kind == "foreign"


class Refuses:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise RuntimeError("the class has gone")


def test_a_result_that_cannot_be_unpickled_is_a_miss(store):
    assert store.put(KEY, Refuses(), **FACTS)
    assert store.get(KEY) is None
    assert "the class has gone" in store.reports.latest[-1].reason
    assert store.entry(KEY) is not None


def test_a_result_that_cannot_be_pickled_is_named_once(store, caplog):
    for _ in range(3):
        assert store.put(KEY, threading.Lock(), **FACTS) is None
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "results of model.run are not cached: a result of type _thread.lock" in (
        record.getMessage()
    )
    assert store.reports.counts["unpicklable"] == 3
    assert store.get(KEY) is None


def test_each_unreadable_entry_is_logged_once(store, caplog):
    store.put(KEY, 1, **FACTS)
    path_of(store).write_bytes(b"nothing")
    for _ in range(3):
        store.get(KEY)
    (record,) = caplog.records
    assert KEY[:12] in record.getMessage()
    assert "has only 7 bytes, too few for an entry" in record.getMessage()
    assert store.reports.counts["torn"] == 3


def test_thousands_of_unreadable_entries_do_not_fill_the_log(store, caplog):
    for number in range(50):
        key = hashlib.sha256(str(number).encode()).hexdigest()
        store.put(key, 1, **FACTS)
        path_of(store, key).write_bytes(b"")
        store.get(key)
    assert len(caplog.records) == 5
    assert "counted, not logged" in caplog.records[-1].getMessage()


@needs_root
def test_an_entry_of_another_user_is_refused(store):
    store.put(KEY, "planted", **FACTS)
    os.chown(path_of(store), 65534, 65534)
    assert store.get(KEY) is None
    assert store.entry(KEY) is None
    assert "belongs to another user (uid 65534)" in store.reports.latest[-1].reason
    store.put(KEY, "mine", **FACTS)
    assert store.get(KEY).value() == "mine"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_that_others_can_change_is_refused(store, mode):
    store.put(KEY, "planted", **FACTS)
    path_of(store).chmod(mode)
    assert store.get(KEY) is None
    assert store.reports.latest[-1].kind == "owner"


def test_links_pipes_and_directories_are_refused_without_waiting(store, tmp_path):
    store.put(OTHER, "elsewhere", **FACTS)
    path = path_of(store)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(path_of(store, OTHER))
    assert store.get(KEY) is None
    path.unlink()
    os.mkfifo(path)
    assert store.get(KEY) is None
    path.unlink()
    path.mkdir()
    assert store.get(KEY) is None
    assert store.put(KEY, 1, **FACTS) is None
    assert other_names(store) == []


@needs_root
def test_a_directory_of_another_user_is_an_error_that_names_it(tmp_path):
    place = tmp_path / "theirs"
    place.mkdir()
    os.chown(place, 65534, 65534)
    with pytest.raises(ClusterError, match="belongs to another user"):
        ResultStore.open(place)
    store = ResultStore(place)  # as in a worker: calls go on
    assert store.put(KEY, 1, **FACTS) is None
    assert store.get(KEY) is None


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError):
        ResultStore.open(tmp_path / "file")
    store = ResultStore(tmp_path / "file")
    assert store.get(KEY) is None
    assert store.put(KEY, 1, **FACTS) is None


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://", "s3://user:pass@bucket/x"])
def test_a_url_that_is_none_of_ours_is_an_error_without_its_secrets(url):
    with pytest.raises(ManifestError) as caught:
        ResultStore.open(url)
    assert "pass@" not in str(caught.value)


def test_verify_names_each_entry_that_is_not_whole(store):
    for number in range(5):
        store.put(hashlib.sha256(str(number).encode()).hexdigest(), np.ones(50_000), **FACTS)
    store.put(KEY, np.ones(50_000), **FACTS)
    assert store.verify().faults == ()
    whole = path_of(store).read_bytes()
    path_of(store).write_bytes(whole[:-1] + b"\1")
    outcome = store.verify()
    assert outcome.entries == 6
    assert [(fault.subject, fault.kind) for fault in outcome.faults] == [(KEY, "corrupt")]


def test_removed_results_are_gone_and_counted(store):
    store.put(KEY, 1, **FACTS)
    assert store.remove([KEY, OTHER]) == 1
    assert store.get(KEY) is None


def test_a_reader_that_has_an_entry_open_survives_its_removal(store):
    store.put(KEY, np.arange(500_000), **FACTS)
    from scalable.cache.entries import read_header, read_payload

    with store._place.opened(KEY) as opened:
        header, begun = read_header(opened.source, opened.size, KEY)
        store.remove([KEY])
        assert read_payload(opened.source, header, begun).size == header.entry.size


def test_a_use_is_noted_by_the_time_of_the_file_at_most_once_a_minute(store):
    store.put(KEY, 1, **FACTS)
    old = path_of(store).stat().st_mtime - 500
    os.utime(path_of(store), (old, old))
    store.get(KEY)
    assert path_of(store).stat().st_mtime > old + 400
    os.utime(path_of(store), (old, old))
    store.get(KEY)
    assert path_of(store).stat().st_mtime == pytest.approx(old)
