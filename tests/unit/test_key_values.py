"""Pairs of values that a function can tell apart, that are equal, or that have no stable content.

Each kind of value that is easily overlooked has a row.
"""

import collections
import ctypes
import datetime as dt
import decimal
import functools
import inspect
import io
import json
import os
import pathlib
import re
import struct
import sys
import threading
import weakref
from typing import TypeVar

import numpy as np
import pandas as pd
import pydantic
import pytest
import xarray

from scalable.cache import content
from scalable.cache.errors import UnstableValueError
from scalable.cache.key import KeyMaker, KeyOptions
from unit.programs import printed_by


def key(*args, **kwargs):
    def read(*args, **kwargs):
        return args, kwargs

    return KeyMaker().key(read, args, kwargs, KeyOptions()).digest


class Text(str):
    __slots__ = ("__dict__",)


class Number(float):
    pass


class Rows(list):
    pass


class Names(set):
    pass


class Table(dict):
    pass


class Moment(dt.datetime):
    pass


class Lengths(np.ndarray):
    pass


class Sheet(pd.DataFrame):
    pass


class Scalar(np.float64):
    pass


class Dropping:
    def __getstate__(self):
        return {"a": self.a}


class Slotted:
    __slots__ = ("_a", "b")

    def __reduce__(self):
        return Slotted, ()


class Hidden(dict):
    def __reduce__(self):
        return Hidden, ()


class Renaming:
    def __getstate__(self):
        return (1, {"state": [self.a]})


class Steep:
    def __init__(self, slope=1):
        self.slope = slope

    @functools.cached_property
    def twice(self):
        return self.slope * 2

    def at(self):
        return self.slope


class Model(pydantic.BaseModel):
    x: int = 1
    tags: set[str] = set()
    _seen: list = pydantic.PrivateAttr(default_factory=list)


class Node:
    def __init__(self, name, parent=None):
        self.name, self.parent, self.children = name, parent, set()
        if parent is not None:
            parent.children.add(self)


def with_(value, **attributes):
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


def array(writeable=True, **options):
    made = np.array([[1.0, 2.0], [3.0, 4.0]], **options)
    made.flags.writeable = writeable
    return made


def generator(spawned=0, drawn=0, kind=np.random.default_rng):
    made = kind(1)
    if spawned:
        made.spawn(spawned)
    if drawn:
        made.standard_normal(drawn)
    return made


def legacy(drawn):
    made = np.random.RandomState(1)
    made.standard_normal(drawn)
    state = made.get_state(legacy=False)
    return with_state(np.random.RandomState(1), has_gauss=state["has_gauss"])


def with_state(random, **changed):
    random.set_state({**random.get_state(legacy=False), **changed})
    return random


def levels(unused):
    made = pd.MultiIndex.from_product([["a", "b"], [1]])[:1]
    return made if unused else made.remove_unused_levels()


def tree(order, deep=0):
    root = Node("root")
    for name in order:
        branch = Node(name, root)
        for number in range(3):
            Node(f"{name}{number}", branch)
    at = root
    for _ in range(deep):
        at = Node("deep", at)
    return root


def nan(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


def ring(*names):
    made = [with_(Steep(), name=name) for name in names]
    for one, other in zip(made, made[1:] + made[:1], strict=True):
        one.next = other
    return made[0]


def raised(cause):
    error = ValueError(1)
    error.__cause__ = cause
    return error


BASE = np.arange(6.0)
DAY = pd.DatetimeIndex(["2026-01-01", "2026-01-02"])
SHARED = [1]
BOTH = Node("both")
#: Name -> two values that a function can tell apart.
DIFFERENT = {
    "order of a dict": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "order of attributes": (with_(Steep(), p=1, q=2), with_(Steep(), q=2, p=1)),
    "attribute of a str": (with_(Text("a"), unit=1), with_(Text("a"), unit=2)),
    "attribute of a float": (with_(Number(1), unit=1), Number(1)),
    "attribute of a list": (with_(Rows([1]), unit=1), with_(Rows([1]), unit=2)),
    "attribute of a set": (with_(Names("ab"), unit=1), with_(Names("ab"), unit=2)),
    "attribute of a dict": (with_(Table(a=1), unit=1), with_(Table(a=1), unit=2)),
    "attribute of a datetime": (with_(Moment(1, 1, 1), unit=1), with_(Moment(1, 1, 1), unit=2)),
    "attribute of an array": (
        with_(np.zeros(2).view(Lengths), unit=1),
        with_(np.zeros(2).view(Lengths), unit=2),
    ),
    "attribute of a scalar": (with_(Scalar(1), unit=1), with_(Scalar(1), unit=2)),
    "attribute of a frame": (with_(Sheet({"a": [1]}), unit=1), with_(Sheet({"a": [1]}), unit=2)),
    "frame of another class": (Sheet({"a": [1]}), pd.DataFrame({"a": [1]})),
    "state that __getstate__ drops": (with_(Dropping(), a=1, b=1), with_(Dropping(), a=1, b=2)),
    "items that __reduce__ drops": (Hidden(a=1), Hidden(a=2)),
    "slot that __reduce__ drops": (with_(Slotted(), b=1), with_(Slotted(), b=2)),
    "assigned cached property": (with_(Steep(), twice=3), with_(Steep(), twice=4)),
    "attribute before a method": (with_(Steep(), at=1), Steep()),
    "cause of an exception": (raised(ValueError(1)), raised(ValueError(2))),
    "signs of zeros": (complex(0.0, -0.0), complex(0.0, 0.0)),
    "sign of NaN": (nan(0x7FF8 << 48), nan(0xFFF8 << 48)),
    "bits of NaN": (nan(0x7FF8 << 48), nan((0x7FF8 << 48) + 1)),
    "fold": (dt.time(2), dt.time(2, fold=1)),
    "fold of a Timestamp": (
        pd.Timestamp(2026, 10, 25, 2, 30, fold=0), pd.Timestamp(2026, 10, 25, 2, 30, fold=1)),
    "exponent": (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    "scalar of another type": (np.longlong(1), np.int64(1)),
    "read-only array": (array(), array(writeable=False)),
    "order of an array": (array(order="C"), array(order="F")),
    "order of objects": (array(dtype=object, order="C"), array(dtype=object, order="F")),
    "strides": (np.arange(4)[::2], np.arange(4)[::2].copy()),
    "metadata of a dtype": (
        np.zeros(1, np.dtype("f8", metadata={"unit": 1})),
        np.zeros(1, np.dtype("f8", metadata={"unit": 2})),
    ),
    "layout of a dtype": (
        np.zeros(1, np.dtype([("a", "i1"), ("b", "i4")])),
        np.zeros(1, np.dtype([("a", "i1"), ("b", "i4")], align=True)),
    ),
    "records": (np.zeros(1, [("a", "i4")]), np.zeros(1, [("a", "i4")]).view(np.recarray)),
    "views of one memory": ([BASE, BASE[1:]], [BASE, BASE[1:].copy()]),
    "places in one memory": ([BASE, BASE[1:3]], [BASE, BASE.copy()[1:3]]),
    "fill value": (np.ma.array([1], fill_value=2), np.ma.array([1], fill_value=3)),
    "data under a mask": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 3], mask=[0, 1])),
    "spawned generators": (generator(), generator(spawned=1)),
    "number kept by a RandomState": (legacy(0), legacy(1)),
    "unused levels": (levels(unused=True), levels(unused=False)),
    "unused categories": (pd.Categorical(["a"], ["a", "b"]), pd.Categorical(["a"], ["a"])),
    "order of categories": (pd.Categorical(["a"], ["a", "b"]), pd.Categorical(["a"], ["b", "a"])),
    "names of levels": (levels(True), levels(True).set_names(["x", "y"])),
    "frequency": (DAY, pd.date_range("2026-01-01", periods=2, freq="D")),
    "holidays of a frequency": (
        pd.offsets.CustomBusinessDay(holidays=["2026-01-01"]),
        pd.offsets.CustomBusinessDay(holidays=["2026-01-02"]),
    ),
    "kind of strings": (pd.Series(["a"], dtype="string[python]"), pd.Series(["a"], dtype="str")),
    "backend of a column": (pd.Series([1], dtype="Int64"), pd.Series([1], dtype="int64[pyarrow]")),
    "attributes of a table": (with_(pd.DataFrame({"a": [1]}), attrs={"u": 1}), pd.DataFrame({"a": [1]})),
    "flags of a table": (
        pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [1]}).set_flags(allows_duplicate_labels=False)),
    "missing values": (pd.Series([None], dtype=object), pd.Series([np.nan], dtype=object)),
    "missing value of a sparse array": (
        pd.arrays.SparseArray([0, 1]), pd.arrays.SparseArray([0, 1], fill_value=1)),
    "bound of a type variable": (TypeVar("T", bound=int), TypeVar("T", bound=str)),
    "one list twice": ([SHARED, SHARED], [[1], [1]]),
    "one list in two elements": ({(1, BOTH), (2, BOTH)}, {(1, Node("both")), (2, Node("both"))}),
    "object in a set and after it": ([{BOTH}, BOTH], [{BOTH}, Node("both")]),
    "trees": (tree("ab"), tree("ac")),
    "rings": (ring("a", "b"), ring("a", "b", "a", "b")),
    "private attribute of a model": (with_(Model(), _seen=[1]), with_(Model(), _seen=[2])),
    "given fields of a model": (Model(x=1), Model()),
    "types in an alias": (list[int], list[float]),
    "flags of a pattern": (re.compile("a"), re.compile("a", re.IGNORECASE)),
    "length of a deque": (collections.deque([1], 1), collections.deque([1], 2)),
    "factory of a dict": (collections.defaultdict(int), collections.defaultdict(float)),
    "prefixes": ([["a"], "b"], [["a", "b"]]),
}  # fmt: skip


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_values_that_a_function_can_tell_apart_have_different_keys(pair):
    assert key(pair[0]) != key(pair[1])
    assert key(x=pair[0]) != key(x=pair[1])
    assert key([pair[0]]) == key([pair[0]])


def padded(noise):
    made = np.empty(2, np.dtype([("a", "i1"), ("b", "f8")], align=True))
    made.view("u1")[:] = noise
    made["a"], made["b"] = 1, 2
    return made


def long_double(noise):
    made = np.full(2, np.longdouble(1) / 3)
    if np.finfo(np.longdouble).nmant == 63:
        made.view("u1").reshape(2, -1)[:, 10:] = noise
    return made


def joined(*parts):
    return "".join(parts)  # a string of its own


def library(used):
    made = ctypes.CDLL("libm.so.6")
    return made.cos and made if used else made


#: Name -> two equal values.
EQUAL = {
    "shared strings": ([joined("a", "b")] * 2, [joined("a", "b"), joined("a", "b")]),
    "shared tuples": ([(1, joined("a", "b"))] * 2, [(1, "ab"), (1, joined("a", "b"))]),
    "shared times": ([pd.Timestamp(1), dt.date(1, 1, 1)] * 2, [
        *(pd.Timestamp(1), dt.date(1, 1, 1)), *(pd.Timestamp(1), dt.date(1, 1, 1))]),
    "parts of one array": (np.array_split(np.arange(6), 3), [np.arange(n, n + 2) for n in (0, 2, 4)]),
    "padding": (padded(1), padded(2)),
    "padding of long doubles": (long_double(1), long_double(2)),
    "layout of a table": (
        pd.DataFrame(np.ones((2, 2))), pd.concat([pd.DataFrame(np.ones((1, 2)))] * 2,
                                                ignore_index=True)),
    "order of a set": ({"b", "a", 1, (2, "c")}, {(2, "c"), 1, "a", "b"}),
    "elements of a set": ({Text("a"), Text("b")}, {Text("b"), Text("a")}),
    "order of a tree": (tree("abc"), tree("cab")),
    "equal leaves": (tree("aaa"), tree("aaa")),
    "library": (library(used=False), library(used=True)),
    "renamed state": (with_(Renaming(), a="x"), with_(Renaming(), a="x")),
    "dropped lock": (with_(Dropping(), a=1, lock=threading.Lock()),
                     with_(Dropping(), a=1, lock=threading.Lock())),
    "models": (Model(tags={"a", "b"}), Model(tags={"b", "a"})),
}  # fmt: skip


@pytest.mark.parametrize("pair", EQUAL.values(), ids=EQUAL)
def test_equal_values_have_one_key(pair):
    assert key(pair[0]) == key(pair[1])


ELSEWHERE = """
import json, sys
from unit.test_key_values import DIFFERENT, EQUAL, key
pairs = {**DIFFERENT, **EQUAL}
print(json.dumps([[name, key(one)] for name, (one, _) in pairs.items()]))
"""


def test_keys_of_values_are_equal_in_every_process():
    tests = str(pathlib.Path(__file__).parents[1])
    path = os.pathsep.join([tests, *sys.path])
    found = [
        printed_by(ELSEWHERE, cwd=tests, env={"PYTHONHASHSEED": seed, "PYTHONPATH": path})
        for seed in "12"
    ]
    assert json.loads(found[0]) == json.loads(found[1])


def test_one_object_as_two_arguments_differs_from_two_equal_ones():
    one = np.zeros(2)
    assert key(one, one) != key(one, one.copy())
    assert key(one, one[:]) != key(one, one.copy())
    assert key(one[:1], one[1:]) == key(np.zeros(1), np.zeros(1))


def test_order_of_named_arguments_counts_where_a_function_can_see_it():
    def named(a, b=0, **others):
        return a, b, others

    def wrapped(**others):
        return list(others)

    maker = KeyMaker()
    ways = [{"a": 1, "b": 2, "c": 3}, {"c": 3, "b": 2, "a": 1}, {"a": 1, "c": 3, "d": 4}]
    first, other_way, _ = (maker.key(named, (), way).digest for way in ways)
    assert first == other_way
    swapped = dict(reversed(ways[2].items()))
    assert maker.key(named, (), ways[2]).digest != maker.key(named, (), swapped).digest
    shown = functools.wraps(named)(wrapped)
    assert maker.key(shown, (), ways[0]).digest != maker.key(shown, (), ways[1]).digest
    assert maker.key(dict, (), ways[0]).digest != maker.key(dict, (), ways[1]).digest


def test_change_of_an_arguments_class_is_noticed():
    class Rated:
        rate = [1]  # noqa: RUF012 - that is the trap

    def read(x):
        return x

    maker = KeyMaker()
    before = maker.key(read, (Rated(),), {})
    assert maker.key(read, (Rated(),), {}) == before
    Rated.rate.append(2)
    changed = maker.key(read, (Rated(),), {})
    Rated.at = lambda _: 1
    assert len({before.digest, changed.digest, maker.key(read, (Rated(),), {}).digest}) == 3


def test_default_of_a_signature_is_not_taken_for_that_of_the_code():
    def read(x=1):
        return x

    read.__signature__ = inspect.Signature([inspect.Parameter("x", 1, default=2)])

    class Both:
        def __new__(cls, x=1):
            return super().__new__(cls)

        def __init__(self, x=2):
            self.x = x

    for called in (read, Both):
        assert KeyMaker().key(called, (), {}) != KeyMaker().key(called, (2,), {})
        assert KeyMaker().key(called, (), {}) != KeyMaker().key(called, (1,), {})


def pandas_option():
    pd.set_option("display.precision", 3)
    return lambda: pd.reset_option("display.precision")


def changed_decimal():
    context = decimal.getcontext()
    kept = context.copy()
    context.prec = 5
    return lambda: decimal.setcontext(kept)


def changed_traps():
    context = decimal.getcontext()
    kept = context.copy()
    context.traps[decimal.Inexact] = True
    return lambda: decimal.setcontext(kept)


def numpy_errors():
    kept = np.seterr(divide="raise")
    return lambda: np.seterr(**kept)


def numpy_printing():
    kept = np.get_printoptions()
    np.set_printoptions(precision=2)
    return lambda: np.set_printoptions(**kept)


def numpy_formatter():
    kept = np.get_printoptions()
    np.set_printoptions(formatter={"float": lambda x: f"{x:.1f}"})
    return lambda: np.set_printoptions(**{**kept, "formatter": None})


SETTINGS = [pandas_option, changed_decimal, changed_traps, numpy_errors, numpy_printing,
            numpy_formatter]  # fmt: skip


@pytest.mark.parametrize("change", SETTINGS)
def test_setting_that_changes_results_is_a_part_of_the_key(change):
    before = key()
    restore = change()
    try:
        assert key() == key() != before
    finally:
        restore()
    assert key() == before


def test_importing_dask_dataframe_changes_no_key():
    before = key()
    kept = pd.get_option("compute.use_numexpr")
    import dask.dataframe  # noqa: F401

    pd.set_option("compute.use_numexpr", False)  # as the first import does
    try:
        assert key() == before
    finally:
        pd.set_option("compute.use_numexpr", kept)


def test_locale_is_a_part_of_the_key_but_not_the_encoding(monkeypatch):
    before = key()
    names = "LC_CTYPE=de_DE.UTF-8;LC_NUMERIC={};LC_TIME=C"
    monkeypatch.setattr("locale.setlocale", lambda _: names.format("C"))
    assert key() == before
    monkeypatch.setattr("locale.setlocale", lambda _: names.format("de_DE.UTF-8"))
    assert key() != before


class Endless:
    def __reduce__(self):
        return Endless, (Endless(),)


class Handing:
    """Drops a file when it is pickled."""

    def __init__(self):
        self.file = io.StringIO()

    def __getstate__(self):
        return {}


REFUSED = {
    "weak reference": lambda: weakref.ref(SHARED_BY_WEAK),
    "dropped file": Handing,
    "library without a file": lambda: ctypes.CDLL(None),
    "pure object": object,
    "memory": lambda: memoryview(b"1"),
    "lock in a slot": lambda: with_(Slotted(), b=[threading.Lock()]),
    "generator": np.random.default_rng,
    "endless pickle": Endless,
    "equal elements that are told apart": lambda: [{one := Node("a"), Node("a")}, one],
}
SHARED_BY_WEAK = Node("weak")


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_value_without_a_stable_content_is_refused(make, monkeypatch):
    monkeypatch.setattr(content, "LARGEST", 1000)
    with pytest.raises(UnstableValueError):
        key(make())


def test_default_that_is_a_pure_object_is_accepted():
    missing = object()

    def read(x=missing):
        return x is missing

    assert KeyMaker().key(read, (), {}) == KeyMaker().key(read, (), {})
    with pytest.raises(UnstableValueError, match="identity"):
        KeyMaker().key(read, (object(),), {})


def test_nesting_of_values_has_no_limit():
    def nested(depth, kind):
        made = kind(())
        for _ in range(depth):
            made = kind((made,))
        return made

    for kind in (list, tuple, frozenset):
        assert key(nested(20_000, kind)) != key(nested(20_001, kind))
    assert key(tree("", deep=2000)) != key(tree("", deep=2001))


def test_whatever_shows_in_an_xarray_object_is_a_part_of_its_key():
    def made():
        coordinates = {"x": [10, 20]}
        return xarray.Dataset({"a": ("x", [1.0, 2.0]), "b": ("x", [3.0, 4.0])}, coordinates)

    def encoded():
        changed = made()
        changed["a"].encoding["dtype"] = "i2"
        return changed

    values = [
        made(), encoded(), made()[["b", "a"]], made().drop_indexes("x"), made().set_coords("b"),
        made()["a"], made()["a"].rename("z"), made()["a"].drop_vars("x"), made()["a"].variable,
        made().assign_attrs(p=1, q=2), made().assign_attrs(q=2, p=1),
    ]  # fmt: skip
    assert len({key(value) for value in values}) == len(values)
    assert key(made()) == key(made())
