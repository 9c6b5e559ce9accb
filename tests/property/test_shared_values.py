"""Shared values are what they would be if they had been sent, whatever they are made of."""

import asyncio
import pickle
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from distributed.protocol import Serialize
from distributed.protocol.serialize import ToPickle
from hypothesis import given, settings
from hypothesis import strategies as st

from scalable.dask_compat import comm, worker
from scalable.protocol.messages import Pickled
from shared_pairs import pair, sent

#: Size above which buffers are shared here, so that small values are shared too.
LEAST = 64


@dataclass
class Holder:
    """An object with a value within."""

    held: Any


def arrays(kind, rows, form):
    base = np.arange(rows * 4).reshape(rows, 4)
    if kind == "O":
        made = base.astype("O")
    elif kind == "fields":
        made = np.zeros((rows, 4), dtype=[("a", "i4"), ("b", "f8")])
        made["a"] = base
    else:
        made = base.astype(kind)
    return {
        "plain": lambda: made,
        "fortran": lambda: np.asfortranarray(made),
        "strided": lambda: made[::2, ::-1],
        "transposed": lambda: made.T,
        "broadcast": lambda: np.broadcast_to(made[:1], made.shape),
        "flat": lambda: made[0, :1].reshape(()),
        "fixed": lambda: fixed(made.copy()),
        "masked": lambda: np.ma.masked_array(made, mask=base % 3 == 0),
    }[form]()


def fixed(array):
    array.flags.writeable = False
    return array


def frames(rows):
    return pd.DataFrame(
        {
            "x": np.arange(rows) / 3,
            "n": np.arange(rows),
            "text": [f"row {n}" for n in range(rows)],
            "when": pd.date_range("2026-01-01", periods=rows, tz="UTC"),
            "kind": pd.Categorical([["a", "b"][n % 2] for n in range(rows)]),
        }
    )


ROWS = st.integers(0, 40)
KINDS = ["f8", "i2", "?", "c16", "M8[s]", "S3", "U2", "O", "fields"]
FORMS = ["plain", "fortran", "strided", "transposed", "broadcast", "fixed", "masked", "flat"]
LEAVES = st.one_of(
    st.builds(arrays, st.sampled_from(KINDS), st.integers(1, 40), st.sampled_from(FORMS)),
    st.builds(frames, ROWS),
    st.builds(lambda rows: frames(rows)["x"], ROWS),
    st.builds(lambda rows: frames(rows)["text"], ROWS),
    st.binary(max_size=300),
    st.binary(max_size=300).map(bytearray),
    st.text(max_size=300),
    st.integers(),
    st.none(),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.builds(Holder, inner),
        st.builds(lambda value: {0: Pickled(value)}, inner),
    ),
    max_leaves=6,
)


def shown(value):
    """Return all that can be seen of a value, whether its memory may be written to included."""
    if isinstance(value, Pickled):
        return "pickled", shown(value.load())
    if isinstance(value, Holder):
        return "holder", shown(value.held)
    if isinstance(value, np.ndarray):
        masks = value.mask.tolist() if isinstance(value, np.ma.MaskedArray) else None
        order = value.flags.f_contiguous, value.flags.c_contiguous
        return (
            type(value), value.dtype, value.shape, order, value.flags.writeable, masks,
            listed(value),
        )  # fmt: skip
    if isinstance(value, pd.DataFrame):
        return type(value), [shown(value[name]) for name in value], shown(value.index)
    if isinstance(value, (pd.Series, pd.Index)):
        return type(value), value.dtype, [str(each) for each in value]
    if isinstance(value, dict):
        return dict, {key: shown(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [shown(each) for each in value]
    return type(value), value


def listed(array):
    return np.ma.getdata(array).astype("O").tolist()


async def read(value, wrap, *, share):
    told = comm._introduction if share else lambda: None
    with patch.object(comm, "_introduction", told):
        async with pair() as ends:
            assert (ends.one.sharer is not None) is share
            return (await sent(ends, {"value": wrap(value)}))["value"]


@settings(max_examples=30)
@given(VALUES, st.sampled_from([Serialize, ToPickle]))
def test_a_shared_value_is_as_if_it_had_been_sent(value, wrap):
    with patch.object(comm, "LEAST", LEAST):
        got = asyncio.run(read(value, wrap, share=True))
    expected = asyncio.run(read(value, wrap, share=False))
    assert shown(got) == shown(expected)
    assert shown(pickle.loads(pickle.dumps(got))) == shown(pickle.loads(pickle.dumps(expected)))


@settings(max_examples=30)
@given(VALUES)
def test_a_moved_result_is_what_it_was(value):
    with patch.object(worker, "LEAST", LEAST):
        if not worker._is_plain(value):
            return
        moved = worker.in_shared_memory(value)
    if moved is not None:
        assert shown(moved) == shown(value)
        assert worker.in_shared_memory(moved) is None


@settings(max_examples=25)
@given(st.data())
def test_what_calls_write_into_shared_arrays_goes_where_they_send_it(data):
    """Arrays are read, changed or not, and sent on, as calls do; a model beside holds copies."""
    seen = data.draw(st.lists(st.integers(0, 2047), min_size=1, max_size=8))

    async def main():
        async with pair() as ends:
            array, model = np.arange(2048, dtype="i8"), np.arange(2048, dtype="i8")
            for place in seen:
                kept, expected = array, model.copy()
                (array,) = await sent(ends, [Serialize(array)])
                if place % 2:
                    array[place], model[place] = -place, -place
                np.testing.assert_array_equal(array, model)
                np.testing.assert_array_equal(kept, expected)

    with patch.object(comm, "LEAST", LEAST):
        asyncio.run(main())
