"""Keys of calls: equal for equal calls, different for all others; each known trap has its test."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import importlib
import io
import json
import math
import os
import pathlib
import pickle
import random
import sys
import textwrap
import threading

import numpy as np
import pandas as pd
import pytest

import scalable
from scalable.cache.errors import UnfollowedReferencesError, UnstableValueError
from scalable.cache.key import KeyMaker, KeyOptions
from unit.programs import printed_by


def identity(x):
    return x


def key(function, *args, options=None, **kwargs):
    return KeyMaker().key(function, args, kwargs, options or KeyOptions()).digest


def key_of(value):
    return key(identity, value)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Code(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


@dataclasses.dataclass
class Place:
    x: float
    y: float = 0.0


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a):
        self.a = a


class Curve:
    def __init__(self, slope):
        self.slope = slope

    def at(self, x):
        return self.slope * x

    def __call__(self, x):
        return self.at(x)


ARRAY = np.arange(6.0).reshape(2, 3)
TABLE = pd.DataFrame({"a": [1, 2], "b": ["x", None]})
DIFFERENT = [
    [None, False, 0, 0.0, -0.0, 0j, "", b"", (), [], {}, set(), frozenset(), ..., NotImplemented],
    [True, 1, 1.0, 1 + 0j, "1", b"1", bytearray(b"1"), Code.ONE, np.float64(1), np.int64(1)],
    [np.float32(1), np.array(1), np.array([1]), decimal.Decimal(1), decimal.Decimal("1.0")],
    [math.nan, math.inf, -math.inf, "nan"],
    [("ab", "c"), ("a", "bc"), ["ab", "c"], [["ab"], "c"], ("ab", ("c",)), "abc"],
    [{1: 2}, {2: 1}, {1: 2.0}, [(1, 2)], {"1": 2}, collections.OrderedDict({1: 2})],
    [{1, 2}, {1, 2, 3}, frozenset({1, 2}), [1, 2], {True, 2}],
    [Colour.RED, Colour.BLUE, "RED", 1],
    [Point(1.0), Point(1), Point(1.0, 1.0), Place(1.0), {"x": 1.0, "y": 0.0}],
    [Slotted(1), Slotted(2)],
    [Curve(1), Curve(2), Curve(1).at, Curve(2).at],
    [1 << 64, -(1 << 64), 1 << 65, float(1 << 64)],
    [dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "2026-01-01"],
    [pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("a"), "a"],
    [range(3), range(0, 3, 2), [0, 1, 2], slice(3), slice(0, 3)],
    [ARRAY, ARRAY.astype("f4"), ARRAY.T, ARRAY.reshape(3, 2), ARRAY.astype(">f8"), ARRAY + 1],
    [ARRAY, np.asfortranarray(ARRAY), ARRAY.tolist(), ARRAY[:1], ARRAY.astype("i8")],
    [np.array(["a", "b"]), np.array(["a", "b"], object), np.array([b"a", b"b"])],
    [np.zeros(0), np.zeros((0, 3)), np.zeros((3, 0)), np.zeros(0, "i8")],
    [np.array([1], "M8[s]"), np.array([1], "M8[ms]"), np.array([1], "m8[s]"), np.array([1])],
    [np.zeros(2, [("a", "i4"), ("b", "i4")]), np.zeros(2, [("a", "i4"), ("c", "i4")])],
    [TABLE, TABLE.rename(columns={"a": "c"}), TABLE.iloc[::-1], TABLE.assign(a=[1.0, 2.0])],
    [TABLE, TABLE.set_index("a"), TABLE["a"], TABLE[["a"]], TABLE["a"].rename("z"), TABLE[["b", "a"]]],
    [pd.Categorical(["a", "b"]), pd.Categorical(["a", "b"], ordered=True), pd.Series(["a", "b"])],
    [pd.Categorical(["a"]), pd.Categorical(["a"], categories=["a", "b"])],
    [pd.Series([1, None], dtype="Int64"), pd.Series([1, None]), pd.Series([1, 0], dtype="Int64")],
    [pd.to_datetime(["2026-01-01"]), pd.to_datetime(["2026-01-01"]).tz_localize("UTC")],
    [pd.RangeIndex(2), pd.Index([0, 1]), pd.Index([0.0, 1.0])],
    [functools.partial(identity, 1), functools.partial(identity, 2), functools.partial(identity, x=1)],
    [int, float, str, Point, Place, identity, key, math.sin, np.sin, np.cos],
    [np.random.default_rng(1), np.random.default_rng(2), np.random.RandomState(1), random.Random(1)],
]  # fmt: skip


@pytest.mark.parametrize("values", DIFFERENT, ids=lambda v: type(v[0]).__name__)
def test_different_values_have_different_keys(values):
    keys = [key_of(value) for value in values]
    doubled = [
        (a, b) for n, a in enumerate(values) for m, b in enumerate(values[:n]) if keys[n] == keys[m]
    ]
    assert not doubled


def equal_pairs():
    yield [1, "ab"], [1, "ba"[::-1]]
    yield {"c", "a", "b"}, {"b", "c", "a"}
    yield Point(1.0), Point(1.0)
    yield ARRAY, ARRAY.copy()
    yield np.array([1, "a", None], object), np.array([1, "a", None], object)
    yield pd.DataFrame({"a": [1, 2], "b": ["x", None]}), TABLE
    yield pd.concat([TABLE.iloc[:1], TABLE.iloc[1:]]), TABLE
    yield pd.DataFrame({"a": [1, 2, 3], "b": [1, 2, 3]})[["a"]], pd.DataFrame({"a": [1, 2, 3]})
    yield pd.Series(["a", "b", "c"]).iloc[1:].reset_index(drop=True), pd.Series(["b", "c"])
    yield np.random.default_rng(7), np.random.default_rng(7)


@pytest.mark.parametrize("pair", list(equal_pairs()), ids=lambda p: type(p[0]).__name__)
def test_equal_values_have_equal_keys(pair):
    assert key_of(pair[0]) == key_of(pair[1])


def test_value_that_stands_twice_differs_from_two_equal_values():
    shared = [1]
    assert key_of([shared, shared]) != key_of([[1], [1]])
    assert key(pow, shared, shared) != key(pow, [1], [1])
    assert key_of([1.5, "a", (1,)] * 2) == key_of([1.5, "a", (1,), 1.5, "a", (1,)])


def test_value_that_contains_itself_has_a_key():
    ring = [1]
    ring.append(ring)
    assert key_of(ring) != key_of([1, [1]])


@pytest.mark.parametrize("value", [
    threading.Lock(), io.StringIO(), (n for n in range(3)), [threading.Event()],
    {"deep": {"er": threading.Lock()}}, np.random.default_rng(), sys._getframe(),
], ids=lambda v: type(v).__name__)  # fmt: skip
def test_value_without_stable_content_is_an_error_that_names_the_argument(value):
    with pytest.raises(UnstableValueError, match=r"argument x of .*identity"):
        key_of(value)


def test_open_file_is_an_error_that_names_the_argument(tmp_path):
    with (tmp_path / "f").open("w") as file, pytest.raises(UnstableValueError, match="argument x"):
        key_of(file)


# Functions --------------------------------------------------------------------------------------


def test_ways_to_write_one_call_have_one_key():
    def fit(x, y=2, *, z=3):
        return x, y, z

    assert key(fit, 1) == key(fit, x=1) == key(fit, 1, 2) == key(fit, 1, z=3) != key(fit, 1, 3)


def test_variable_arguments_are_told_apart():
    def fit(*xs, **named):
        return xs, named

    keys = {key(fit), key(fit, 1), key(fit, 1, 2), key(fit, (1, 2)), key(fit, a=1), key(fit, b=1)}
    assert len(keys) == 6


def test_mutable_default_that_has_changed_changes_the_key():
    def fit(x, seen=[]):  # noqa: B006
        return x, seen

    maker = KeyMaker()
    before = maker.key(fit, (1,), {})
    fit.__defaults__[0].append(1)
    assert maker.key(fit, (1,), {}) != before


def test_list_in_a_tuple_of_a_closure_that_has_changed_changes_the_key():
    kept = (1, ([2], "x"))

    def fit(x):
        return x, kept

    maker = KeyMaker()
    before = maker.key(fit, (1,), {}).digest
    assert maker.key(fit, (1,), {}).digest == before
    kept[1][0].append(3)
    assert maker.key(fit, (1,), {}).digest != before


def test_late_bound_closures_are_told_apart():
    maker = KeyMaker()
    made = [lambda x, n=n: x + n for n in range(3)]
    late = [lambda x: x + n for n in range(3)]  # noqa: B023 - that is the trap
    assert len({maker.key(f, (1,), {}).digest for f in made}) == 3
    assert len({maker.key(f, (1,), {}).digest for f in late}) == 1  # all add 2

    def adder(n):
        return lambda x: x + n

    assert key(adder(1), 5) == key(adder(1), 5) != key(adder(2), 5)


def test_closure_that_changed_since_changes_the_key():
    n = 1

    def add(x):
        return x + n

    maker = KeyMaker()
    before = maker.key(add, (1,), {})
    n = 2
    assert maker.key(add, (1,), {}) != before


def test_lambdas_on_one_line_are_told_apart():
    first, second, again = (lambda x: x + 1), (lambda x: x + 2), (lambda x: x + 1)
    assert key(first, 1) != key(second, 1)
    assert key(first, 1) == key(again, 1)
    assert key_of([first, second]) != key_of([second, first])


def test_methods_and_callable_objects_depend_on_their_object():
    assert key(Curve(1).at, 2) == key(Curve(1).at, 2) != key(Curve(2).at, 2)
    assert key(Curve(1), 2) == key(Curve(1), 2) != key(Curve(2), 2)
    assert key(Curve(1), 2) != key(Curve(1).at, 2)


def test_partials_depend_on_what_they_hold():
    def fit(x, y):
        return x, y

    assert key(functools.partial(fit, 1), 2) != key(functools.partial(fit, 2), 2)
    assert key(functools.partial(fit, y=1), 2) != key(functools.partial(fit, y=2), 2)


def test_constants_of_equal_value_and_other_type_are_told_apart():
    assert len({key(f, 0) for f in (lambda x: 1, lambda x: True, lambda x: 1.0)}) == 3
    assert key(lambda x: 0.0, 0) != key(lambda x: -0.0, 0)


def test_version_ignore_and_depends_on_are_parts_of_the_key():
    def fit(x, label=""):
        return x, label

    assert key(fit, 1, options=KeyOptions(version=1)) != key(fit, 1, options=KeyOptions(version=2))
    ignoring = KeyOptions(ignore=("label",))
    assert key(fit, 1, "a", options=ignoring) == key(fit, 1, "b", options=ignoring)
    assert key(fit, 1, "a", options=ignoring) != key(fit, 2, "a", options=ignoring)
    on = [key(fit, 1, options=KeyOptions(depends_on=(value,))) for value in (1, 2)]
    assert on[0] != on[1]


# Modules of the project -------------------------------------------------------------------------


class Project:
    """A directory of modules, whose functions' keys are made by new processes."""

    def __init__(self, directory):
        self.directory = directory

    def write(self, **modules):
        for name, text in modules.items():
            path = self.directory / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def parts(self):
        """Return the parts of the key of ``main.run(1)``, with the modules as they are now."""
        importlib.invalidate_caches()
        for name in ("main", "middle", "far"):
            sys.modules.pop(name, None)
        return dict(KeyMaker().key(importlib.import_module("main").run, (1,), {}).parts)

    def parts_elsewhere(self, hash_seed):
        program = (
            "import json, main\n"
            "from scalable.cache.key import KeyMaker\n"
            "print(json.dumps(dict(KeyMaker().key(main.run, (1,), {}).parts)))"
        )
        path = os.pathsep.join([".", *sys.path])
        environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        return json.loads(printed_by(program, cwd=self.directory, env=environment))


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = Project(tmp_path)
    made.write(
        main="""
            import numpy as np
            import middle
            from far import FACTOR as f

            LIMITS = {"low": 1, "high": {2, 3}}

            class Model:
                order = 2

                def run(self, x):
                    return middle.scale(x) * self.order

            def run(x):
                return np.float64(Model().run(x) + f + LIMITS["low"])
            """,
        middle="""
            import far

            def scale(x):
                return far.base(x) * 2

            def unused(x):
                return x
            """,
        far="""
            FACTOR = 3
            TABLE = [1, 2]

            def base(x):
                return x + TABLE[0]
            """,
    )
    return made


def changed(before, after):
    return sorted(n for n in {*before, *after} if before.get(n) != after.get(n))


def test_keys_are_equal_in_every_process(project):
    assert project.parts_elsewhere("1") == project.parts_elsewhere("2") == project.parts()


EDITS = {
    "helper two modules away": ({}, "far", ("x + TABLE", "x - TABLE"), "code:far.base"),
    "constant two modules away": ({}, "far", ("[1, 2]", "[1, 5]"), "constant:far.TABLE"),
    "attribute of a class": ({}, "main", ("order = 2", "order = 3"), "code:main.Model"),
    "import inside a function": (
        {"main": "def run(x):\n    from far import base\n    return base(x)\n"},
        *("far", ("x + TABLE", "x - TABLE"), "code:far.base"),
    ),
    "module that is used as a value": (
        {"main": "import far\ndef run(x):\n    return getattr(far, 'ba' + 'se')(x)\n"},
        *("far", ("x + TABLE", "x - TABLE"), "module:far"),
    ),
}


@pytest.mark.parametrize(("modules", "edited", "edit", "part"), EDITS.values(), ids=EDITS)
def test_an_edit_of_what_is_reached_changes_its_part_of_the_key(
    project, modules, edited, edit, part
):
    project.write(**modules)
    before = project.parts()
    assert part in before
    text = (project.directory / f"{edited}.py").read_text()
    assert edit[0] in text
    project.write(**{edited: text.replace(*edit)})
    assert changed(before, project.parts()) == [part]


def test_comments_blank_lines_and_unused_functions_do_not_change_the_key(project):
    before = project.parts()
    for path in project.directory.glob("*.py"):
        lines = path.read_text().splitlines()
        path.write_text("# Opens.\n\n\n" + "\n\n# Says.\n".join(lines) + "  # Ends.\n")
    text = (project.directory / "middle.py").read_text()
    (project.directory / "middle.py").write_text(text.replace("return x\n", "return x + 1\n"))
    assert changed(before, project.parts()) == []


def test_packages_that_the_reached_modules_import_are_in_the_key_with_their_versions(project):
    assert project.parts()["package:numpy"].startswith(f"numpy {np.__version__} ")


def test_constant_that_this_process_alone_has_changed_does_not_get_the_key_of_an_edited_file(
    project,
):
    project.write(main="import far\ndef run(x):\n    return far.FACTOR\nfar.FACTOR = 9\n")
    patched = project.parts()
    project.write(main="import far\ndef run(x):\n    return far.FACTOR\n", far="FACTOR = 9\n")
    # Workers import the module themselves: they had 3 then, and have 9 now.
    assert patched["constant:far.FACTOR"] != project.parts()["constant:far.FACTOR"]


LOCK = threading.Lock()


def locked(x):
    with LOCK:
        return x


def evaluating(x):
    return eval(x)


def importing(x):
    return importlib.import_module(x)


def undefined(x):
    return nowhere(x)  # noqa: F821


@pytest.mark.parametrize(("function", "named"), [
    (locked, "LOCK"),
    (evaluating, r"eval\(\)"),
    (importing, r"importlib.import_module\(\)"),
    (undefined, "nowhere"),
])  # fmt: skip
def test_reference_that_cannot_be_followed_is_named_unless_depends_on_is_given(function, named):
    with pytest.raises(UnfollowedReferencesError, match=named):
        key(function, 1)
    accepted = [key(function, 1, options=KeyOptions(depends_on=(v,))) for v in (1, 1, 2)]
    assert accepted[0] == accepted[1] != accepted[2]


RATE = 1


def rated(x):
    return x * RATE


def test_changed_global_changes_the_key(monkeypatch):
    maker = KeyMaker()
    before = maker.key(rated, (1,), {})
    monkeypatch.setattr(sys.modules[__name__], "RATE", 2)
    assert maker.key(rated, (1,), {}) != before


SETTINGS = {"deep": [1]}


def configured(x):
    return x, SETTINGS


def test_global_that_was_changed_in_place_changes_the_key():
    maker = KeyMaker()
    before = maker.key(configured, (1,), {})
    SETTINGS["deep"].append(2)
    try:
        assert maker.key(configured, (1,), {}) != before
    finally:
        SETTINGS["deep"].pop()
    assert maker.key(configured, (1,), {}) == before


def test_functions_that_call_each_other_have_keys():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert key(even, 3) == key(even, 3) != key(odd, 3)


def test_decorated_and_wrapped_functions_are_followed():
    def twice(function):
        @functools.wraps(function)
        def run(x):
            return function(function(x))

        return run

    def kept(n):
        return functools.lru_cache(lambda x: x + n)

    assert key(twice(lambda x: x + 1), 1) != key(twice(lambda x: x + 2), 1)
    assert key(kept(1), 1) == key(kept(1), 1) != key(kept(2), 1)


def read_only(array):
    array.flags.writeable = False
    return array


GRID = np.arange(24.0).reshape(4, 6)
SENT = {
    "read-only": read_only(np.arange(3)),
    "strided": GRID[::2, ::2],
    "transposed": GRID.T,
    "overlapping": [GRID[:2], GRID[1:]],
    "buffer": np.frombuffer(b"12345678"),
    "masked": np.ma.masked_less(GRID, 3)[1:],
    "table": pd.DataFrame(GRID[::2]),
    "column": pd.DataFrame(GRID)[1],
}


@pytest.mark.parametrize("value", SENT.values(), ids=SENT)
def test_a_value_has_the_same_key_before_and_after_it_was_sent(value):
    maker = KeyMaker(as_sent=True)
    buffers = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    sent = pickle.loads(data, buffers=[bytes(one.raw()) for one in buffers])
    keys = {
        maker.key(identity, (one,), {}).digest
        for one in (value, sent, pickle.loads(pickle.dumps(value)))
    }
    assert len(keys) == 1


class Counted(enum.Enum):
    A = 1


def count_up():
    Counted.A.times = getattr(Counted.A, "times", 0) + 1
    return Counted.A.times


def test_attributes_that_a_function_sets_on_an_enumeration_are_noticed():
    maker, found = KeyMaker(), set()
    for _ in range(3):
        found.add(maker.key(count_up, (), {}).digest)
        count_up()
    assert len(found) == 3


def read_text(path):
    return pathlib.Path(path).read_text()


class OwnFile(scalable.File):
    pass


@pytest.mark.parametrize(
    "kind", [scalable.File, OwnFile, lambda path: {"in": [scalable.File(path)]}]
)
def test_a_function_that_reads_files_needs_one_as_an_argument(kind, tmp_path):
    path = tmp_path / "data"
    path.write_text("1")
    found = [key(read_text, kind(path))]
    path.write_text("22")
    assert key(read_text, kind(path)) not in found
    with pytest.raises(UnfollowedReferencesError, match="read_text"):
        key(read_text, str(path))


def test_a_future_stands_for_its_result():
    class Future:
        def __init__(self, result):
            self.result = result

    maker = KeyMaker(lambda value: value.result if isinstance(value, Future) else value)
    keys = [maker.key(identity, ([Future(k)],), {}).digest for k in ("a", "a", "b")]
    assert keys[0] == keys[1] != keys[2]
    assert keys[0] == maker.key(identity, (["a"],), {}).digest


class NeverPickled:
    x = 1


def test_pickling_an_object_changes_no_key_that_its_class_is_part_of():
    def make():
        return NeverPickled()

    before = key(make)
    pickle.dumps(NeverPickled())
    assert "__slotnames__" in vars(NeverPickled)
    assert key(make) == before
