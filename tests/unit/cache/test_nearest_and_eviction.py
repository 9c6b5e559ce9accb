"""The nearest earlier entry, the choice of what goes, and the collection of garbage."""

import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalable.cache.store import Candidate, Levels, ResultStore, chosen, value_of


def key_of(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


@pytest.fixture(params=["directory", "objects"])
def store(request, tmp_path):
    if request.param == "directory":
        return ResultStore.open(tmp_path / "results")
    return ResultStore.open(f"memory://{tmp_path.name}-{os.getpid()}")


def put(store, number, function="model.run", value=5, cost_s=0.5, **parts):
    return store.put(key_of(number), value, parts=parts, function=function, cost_s=cost_s)


def test_the_entry_with_most_equal_parts_is_the_nearest(store):
    for number in range(20):
        put(store, number, code="a", scenario=str(number), year="2050")
    put(store, 99, function="other.run", code="a", scenario="7", year="2051")
    other = ResultStore(store.url)  # another process
    for one in (store, other):
        nearest = one.nearest("model.run", {"code": "b", "scenario": "7", "year": "2050"})
        assert nearest == store.entry(key_of(7))
    assert store.nearest("nobody.run", {"code": "a"}) is None


def test_of_equally_near_entries_the_latest_is_taken(tmp_path):
    store = ResultStore.open(tmp_path / "results")
    for number in range(3):
        put(store, number, code=str(number), year="2050")
    assert store.nearest("model.run", {"code": "x", "year": "2050"}).key == key_of(2)
    assert store.nearest("model.run", {"code": "x"}).key == key_of(2)


def test_entries_that_are_gone_are_not_near(store):
    for number in range(5):
        put(store, number, code="a", scenario=str(number))
    wanted = {"code": "b", "scenario": "3"}
    assert store.nearest("model.run", wanted).key == key_of(3)
    store.remove([key_of(3)])
    nearest = store.nearest("model.run", {"code": "a", "scenario": "3"})
    assert nearest.key in {key_of(n) for n in (0, 1, 2, 4)}
    store.remove(key_of(n) for n in range(5))
    assert store.nearest("model.run", wanted) is None
    put(store, 3, code="a", scenario="3")
    assert store.nearest("model.run", wanted).key == key_of(3)


def test_one_of_thousands_is_found_by_its_rare_part(tmp_path):
    store = ResultStore.open(tmp_path / "results")
    for number in range(2000):
        put(store, number, code="a", scenario=str(number), version="1")
    nearest = store.nearest("model.run", {"code": "b", "scenario": "70", "version": "1"})
    assert nearest.key == key_of(70)


def test_torn_lines_and_files_of_others_do_not_stop_the_search(tmp_path):
    store = ResultStore.open(tmp_path / "results")
    put(store, 1, code="a")
    (lines,) = (tmp_path / "results" / "functions").rglob("*.lines")
    for name, text in (("torn", '{"key": "'), ("other", "[]\n5\n{}\n"), ("binary", "\xff\n")):
        (lines.parent / f"{name}.lines").write_text(text, encoding="latin-1")
    (lines.parent / "loop.lines").symlink_to("loop.lines")
    other = ResultStore(store.url)
    assert other.nearest("model.run", {"code": "b"}).key == key_of(1)


def test_a_collection_joins_files_of_processes_that_ended(tmp_path):
    url = ResultStore.open(tmp_path / "results").url
    for number in range(40):
        put(ResultStore(url), number, code="a", scenario=str(number))
    files = list((tmp_path / "results" / "functions").rglob("*.lines"))
    assert len(files) == 40
    for path in files[1:]:
        os.utime(path, (1, 1))
    ResultStore(url).collect()
    assert len(list((tmp_path / "results" / "functions").rglob("*.lines"))) == 2
    for number in (0, 17, 39):
        nearest = ResultStore(url).nearest("model.run", {"scenario": str(number)})
        assert nearest.key == key_of(number)


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        key=st.uuids().map(str),
        size=st.integers(0, 10**9),
        cost_s=st.floats(-1, 1e6),
        used=st.floats(0, 2e9),
    ),
    unique_by=lambda one: one.key,
)


@given(CANDIDATES, st.integers(0, 10**9))
def test_what_stays_is_within_the_limit_and_worth_more(candidates, limit):
    gone, level = chosen(candidates, limit, Levels())
    left = [one for one in candidates if one not in gone]
    assert sum(one.size for one in left) <= limit
    if gone:
        assert sum(one.size for one in left) + gone[-1].size > limit  # no more than needed
        worst = max(value_of(one, Levels()) for one in gone)
        assert all(value_of(one, Levels()) >= worst for one in left)
        assert level >= worst
    assert chosen(list(reversed(candidates)), limit, Levels()) == (gone, level)


def test_cheap_large_and_long_unused_results_go_first():
    size = 1 << 20
    cheap = Candidate("cheap", size, 1, 0)
    dear = Candidate("dear", size, 1000, 0)
    large = Candidate("large", 1000 * size, 1000, 0)
    gone, _ = chosen([dear, large, cheap], size, Levels())
    assert {one.key for one in gone} == {"cheap", "large"}
    assert chosen([dear, cheap], size, Levels())[0] == [cheap]


def test_a_dear_result_that_nobody_uses_goes_in_the_end():
    levels, dear = Levels(), Candidate("dear", 4096, 100, 0)
    for time in range(1, 500):
        fresh = [Candidate(f"{time}-{n}", 4096, 1, time) for n in range(2)]
        gone, level = chosen([dear, *fresh], 8192, levels)
        levels = levels.raised(time, level)
        if dear in gone:
            break
    assert 50 < time < 150


def test_levels_never_fall_and_are_bounded():
    levels = Levels()
    for time, value in [(5, 1.0), (4, 0.5), (9, 3.0), *((10 + n, 4.0) for n in range(2000))]:
        levels = levels.raised(time, value)
        assert list(levels.times) == sorted(levels.times)
        assert list(levels.values) == sorted(levels.values)
    assert len(levels.times) == len(levels.values) == 500


def test_a_collection_keeps_the_store_within_its_limit(store):
    for number in range(10):
        put(store, number, value=b"x" * 10_000, cost_s=number, scenario=str(number))
    one = store.usage().size / 10
    collected = store.collect(limit=int(4.5 * one))
    assert (collected.removed, collected.left.entries) == (6, 4)
    assert collected.left == store.usage()
    assert {entry.key for entry in store.entries()} == {key_of(n) for n in (6, 7, 8, 9)}
    assert store.nearest("model.run", {"scenario": "1"}).key in {key_of(n) for n in (6, 7, 8, 9)}
    assert store.collect(limit=int(4.5 * one)).removed == 0


def test_results_that_were_not_used_for_long_go(tmp_path):
    store = ResultStore.open(tmp_path / "results")
    for number in range(3):
        put(store, number)
    os.utime(store._place._path(key_of(1)), (1, 1))
    assert store.collect(max_age_s=1000).removed == 1
    assert store.get(key_of(1)) is None
    assert store.get(key_of(2)).value() == 5


def test_an_unreadable_entry_is_the_first_to_go(tmp_path):
    store = ResultStore.open(tmp_path / "results")
    for number in range(3):
        put(store, number, value=b"x" * 5000, cost_s=1)
    path = store._place._path(key_of(1))
    path.write_bytes(b"x" * path.stat().st_size)
    # Entries differ by some bytes: the time at which they were stored is text in them.
    store.collect(limit=2 * path.stat().st_size + 100)
    assert {entry.key for entry in store.entries()} == {key_of(0), key_of(2)}


def test_only_old_temporary_files_are_collected(tmp_path):
    store = ResultStore.open(tmp_path / "results")
    put(store, 1)
    directory = store._place._path(key_of(1)).parent
    for name in (".old", ".new"):
        (directory / name).write_text("part")
    os.utime(directory / ".old", (1, 1))
    assert store.collect().leftovers == 1
    assert (directory / ".new").exists()
    assert store.get(key_of(1)).value() == 5


@pytest.mark.parametrize("text", ["", "[]", "{", '{"times": [2, 1], "values": [1, 2]}', "\xff"])
def test_levels_that_cannot_be_read_are_begun_anew(tmp_path, text):
    store = ResultStore.open(tmp_path / "results")
    for number in range(3):
        put(store, number, value=b"x" * 5000)
    (tmp_path / "results" / "levels.json").write_bytes(text.encode("latin-1"))
    assert store.collect(limit=6000).left.entries == 1


def test_objects_hold_results_of_all_kinds(tmp_path, caplog):
    store = ResultStore.open(f"memory://{tmp_path.name}-{os.getpid()}")
    assert store.get(key_of(1)) is None
    entry = put(store, 1, value={"a": bytearray(100_000)}, code="a")
    assert store.get(key_of(1)).value() == {"a": bytearray(100_000)}
    assert store.entry(key_of(1)) == entry
    assert list(store.entries()) == [entry]
    assert store.verify().faults == ()
    with store._place._storage.open(f"entries/{key_of(1)[:2]}/{key_of(1)}", "wb") as file:
        file.write(b"torn")
    assert store.get(key_of(1)) is None
    assert [fault.kind for fault in store.verify().faults] == ["torn"]
    assert not store.lease(key_of(1), "me").excludes
    assert store.wait_for(key_of(1), lambda: False).value == "stored"
    assert store.remove([key_of(1), key_of(2)]) == 1
    assert store.wait_for(key_of(1), lambda: False).value == "free"


def test_a_large_object_is_written_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("scalable.cache.objects.LARGE", 1000)
    store = ResultStore.open(f"memory://{tmp_path.name}-{os.getpid()}")
    put(store, 1, value=bytearray(300_000))
    assert store.get(key_of(1)).value() == bytearray(300_000)


def test_what_a_library_of_objects_raises_is_a_miss_and_no_error(tmp_path, monkeypatch, caplog):
    store = ResultStore.open(f"memory://{tmp_path.name}-{os.getpid()}")

    def refuse(*_, **__):
        raise RuntimeError("no credentials")

    monkeypatch.setattr(type(store._place._storage.fs), "cat_file", refuse)
    monkeypatch.setattr(type(store._place._storage.fs), "pipe_file", refuse)
    assert store.get(key_of(1)) is None
    assert put(store, 1) is None
    assert all("no credentials" in record.getMessage() for record in caplog.records)
    assert len(caplog.records) == 2


def test_threads_share_a_store(tmp_path, at_once):
    store = ResultStore.open(tmp_path / "results")

    def wrong(start):
        found = []
        for number in (n % 80 for n in range(start, start + 60)):
            put(store, number, value=number, scenario=str(number))
            near = store.nearest("model.run", {"scenario": str(number)})
            if store.get(key_of(number)).value() != number or near.key != key_of(number):
                found.append(number)
        return found

    assert at_once(wrong, [20 * n for n in range(4)]) == [[]] * 4
