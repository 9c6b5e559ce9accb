"""Connections between processes of one machine: what is shared, for how long, and what is not."""

import asyncio
import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from distributed.comm.core import CommClosedError
from distributed.protocol import Serialize, to_serialize
from distributed.protocol.serialize import Serialized

from scalable import settings
from scalable.dask_compat import comm
from scalable.dask_compat.worker import in_shared_memory
from scalable.protocol.shared_memory import is_shared
from shared_pairs import pair, sent

LARGE = np.arange(300_000, dtype="f8")


@pytest.fixture(autouse=True)
def not_stopped(monkeypatch):
    monkeypatch.setattr(comm, "_stopped", threading.Event())


def run(main):
    return asyncio.run(asyncio.wait_for(main(), 60))


def segments():
    """Return the numbers of the files of segments that this process holds."""
    gc.collect()
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if "scalable-segment" in os.readlink(entry):
                found.add(entry.stat().st_ino)
        except FileNotFoundError:
            continue
    return found


def data_of(array):
    return memoryview(array).cast("B")


def test_a_large_buffer_is_shared_and_a_small_one_is_sent():
    async def main():
        async with pair() as ends:
            assert ends.one.sharer is not None
            assert ends.other.sharer is not None
            got = await sent(ends, {"large": to_serialize(LARGE), "small": to_serialize(LARGE[:9])})
            assert is_shared(data_of(got["large"]))
            assert not is_shared(data_of(got["small"]))
            np.testing.assert_array_equal(got["large"], LARGE)
            np.testing.assert_array_equal(got["small"], LARGE[:9])
            assert got["large"].flags.writeable, "as if it had been sent"

    run(main)


def test_one_segment_is_passed_on_and_ends_with_its_last_reader():
    async def main():
        before = segments()
        async with pair() as ends:
            first = await sent(ends, [to_serialize(LARGE)])
            made = segments() - before
            assert len(made) == 1
            second = await sent(ends, [to_serialize(first[0])])
            assert segments() - before == made
            del first
            assert segments() - before == made
            np.testing.assert_array_equal(second[0], LARGE)
            del second
            assert segments() == before

    run(main)


def test_a_scheduler_passes_on_what_it_does_not_read():
    async def main():
        async with pair(deserialize=False) as in_, pair() as out:
            before = segments()
            got = await sent(in_, {"data": to_serialize(LARGE)})
            assert type(got["data"]) is Serialized
            made = segments() - before
            passed = await sent(out, got)
            assert segments() - before == made
            np.testing.assert_array_equal(passed["data"], LARGE)

    run(main)


def test_a_segment_waits_for_its_reader_and_no_longer_than_the_connection():
    async def main():
        before = segments()
        async with pair() as ends:
            await ends.one.write([to_serialize(LARGE)])
            assert len(segments() - before) == 1
            ends.one.abort()
            assert segments() == before
        async with pair() as ends:
            await ends.one.write([to_serialize(LARGE)])
            await ends.one.close()
            (got,) = await ends.other.read()
            np.testing.assert_array_equal(got, LARGE)

    run(main)


def test_nothing_is_shared_with_a_process_that_does_not_share(monkeypatch):
    async def main():
        before = segments()
        async with pair() as ends:
            assert ends.one.sharer is None
            got = await sent(ends, [to_serialize(LARGE)])
            assert segments() == before
            np.testing.assert_array_equal(got[0], LARGE)

    monkeypatch.setenv(settings.SHARED_MEMORY, "0")
    run(main)


@pytest.mark.parametrize("place", ["process", "system", "word"])
def test_nothing_is_shared_with_another_machine(place, monkeypatch):
    own = comm._introduction
    wrong = {"process": 1, "system": ["another"], "word": b"another"}

    def told():
        return {**own(), place: wrong[place]}

    async def main():
        before = segments()
        async with pair() as ends:
            got = await sent(ends, [to_serialize(LARGE)])
            assert segments() == before
            np.testing.assert_array_equal(got[0], LARGE)

    monkeypatch.setattr(comm, "_introduction", told)
    run(main)


@pytest.mark.parametrize(
    "parts",
    [
        [[1, 0, 0, 1, 1, 0, 1]],
        [[1, 0, "../../etc/passwd", 1, 1, 0, 1]],
        [3],
        None,
    ],
    ids=str,
)
def test_a_wrong_part_ends_the_connection_and_later_ones_share_nothing(parts, caplog):
    async def main():
        async with pair() as ends:
            header = {"serializer": comm._SHARING, "parts": parts, "opened": []}
            ends.one._queue(list(comm.dumps(Serialized(header, [b"x"]))))
            with pytest.raises(CommClosedError, match="shared memory"):
                await ends.other.read()
            assert ends.other.closed()
        async with pair() as ends:
            assert ends.one.sharer is None
            got = await sent(ends, [to_serialize(LARGE)])
            np.testing.assert_array_equal(got[0], LARGE)

    run(main)
    assert "through sockets" in caplog.text


@pytest.mark.own_process  # in which nothing else takes the number of the descriptor
def test_a_process_that_ends_before_its_segment_is_opened_stops_nothing():
    async def main():
        async with pair() as ends:
            await ends.one.write([to_serialize(LARGE)])
            ends.one._lent.clear()
            gc.collect()
            with pytest.raises(CommClosedError):
                await ends.other.read()
        async with pair() as ends:
            assert ends.one.sharer is not None

    run(main)


def test_deserializers_that_are_given_hold_for_shared_frames_too():
    async def main():
        async with pair() as ends:
            await ends.one.write({"x": to_serialize(LARGE)}, serializers=["pickle"])
            got = await ends.other.read(deserializers=["pickle"])
            np.testing.assert_array_equal(got["x"], LARGE)
            await ends.one.write({"x": to_serialize(LARGE)}, serializers=["dask"])
            with pytest.raises(TypeError, match="dask"):
                await ends.other.read(deserializers=["pickle"])

    run(main)


def test_what_cannot_be_shared_now_is_sent(monkeypatch):
    async def main():
        async with pair() as ends:
            got = await sent(ends, [to_serialize(LARGE), to_serialize(LARGE + 1)])
            np.testing.assert_array_equal(got[0], LARGE)
            np.testing.assert_array_equal(got[1], LARGE + 1)
            assert [is_shared(data_of(each)) for each in got] == [False, True]

    known, first = comm.shared_memory.shared, data_of(LARGE)[8:16]

    def all_but_one(data):
        return None if data[8:16] == first else known(data)

    monkeypatch.setattr(comm.shared_memory, "shared", all_but_one)
    run(main)


def test_a_result_is_moved_once():
    moved = in_shared_memory(LARGE)
    assert is_shared(data_of(moved))
    np.testing.assert_array_equal(moved, LARGE)
    assert in_shared_memory(moved) is None
    assert in_shared_memory(LARGE[:10]) is None
    fortran = np.asfortranarray(LARGE.reshape(3, -1))
    moved = in_shared_memory(fortran)
    assert moved.flags.f_contiguous
    np.testing.assert_array_equal(moved, fortran)


def test_the_frames_of_a_message_keep_their_order():
    values = [LARGE + n if n % 2 else np.full(5, n) for n in range(7)]

    async def main():
        async with pair() as ends:
            got = await sent(ends, [Serialize(value) for value in values])
            for value, one in zip(values, got, strict=True):
                np.testing.assert_array_equal(one, value)

    run(main)
