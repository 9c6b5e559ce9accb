"""Arguments of failed tasks are shown shortly, and no code of the user's classes is run."""

import collections
import dataclasses
import datetime as dt
import enum
import pathlib
import subprocess
import threading
import typing

import numpy as np
import pandas as pd
import pytest

from scalable.frames import own_frame, own_frame_in
from scalable.protocol.failures import (
    MOST_CHARACTERS,
    MOST_OF_VALUE,
    described,
    last_lines,
    shown,
    shown_arguments,
)
from scalable.settings import RECORD_ARGUMENTS


@dataclasses.dataclass
class Region:
    name: str
    cells: int


class Slotted:
    __slots__ = ("x", "y")


class Hostile:
    """Raises, hangs and prints wherever Python lets a class do that."""

    ran: list[str] = []  # noqa: RUF012

    def __init__(self):
        self.kept = 7

    def __repr__(self):
        self.ran.append("repr")
        threading.Event().wait()

    __str__ = __format__ = __len__ = __iter__ = __hash__ = __eq__ = __bool__ = __repr__

    def __getattr__(self, name):
        self.ran.append(name)
        raise SystemExit(name)

    @property
    def shape(self):
        return self.ran.append("shape")

    @property
    def __class__(self):
        self.ran.append("class")
        return int


class HostileList(list):
    def __iter__(self):
        raise SystemExit

    __len__ = __repr__ = __getitem__ = __iter__


class Colour(enum.Enum):
    RED = 1


class Point(typing.NamedTuple):
    x: int
    y: int


def slotted():
    value = Slotted()
    value.x = 3
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2050, "2050"),
        ("north", "'north'"),
        (1.5, "1.5"),
        (None, "None"),
        ([1, [2, [3, [4]]]], "[1, [2, [3, [...]]]]"),
        ((1,), "(1,)"),
        ({"a": {1}}, "{'a': {1}}"),
        (list(range(100)), "[0, 1, 2, 3, 4, 5, ... (100 entries)]"),
        (Region("north", 3), "Region(name='north', cells=3)"),
        (slotted(), "Slotted(x=3)"),
        (Point(1, 2), "Point(x=1, y=2)"),
        (Colour.RED, "Colour.RED"),
        (HostileList([1, 2]), "HostileList([1, 2])"),
        (collections.OrderedDict(a=1), "OrderedDict({'a': 1})"),
        (pathlib.Path("/data/a.nc"), "PosixPath('/data/a.nc')"),
        (dt.datetime(2050, 1, 2), "datetime(2050-01-02 00:00:00)"),  # noqa: DTZ001
        (np.zeros((1000, 20), "f4"), "<ndarray float32 shape 1000 x 20>"),
        (np.float64(2.5), "np.float64(2.5)"),
        (pd.DataFrame({"a": [1, 2]}), "<DataFrame shape 2 x 1>"),
        (len, "<function len>"),
        (dict, "<class dict>"),
        (object(), "<object>"),
    ],
)
def test_values_are_shown_shortly(value, text):
    assert shown(value) == text


def test_a_huge_integer_is_not_written_out():
    assert shown(10**5000) == "<int of 16610 bits>"


def test_no_code_of_a_hostile_class_runs():
    Hostile.ran.clear()
    value = Hostile()
    assert shown(value) == "Hostile(kept=7)"
    assert shown_arguments([value], {"more": [value]}) == (
        "(Hostile(kept=7), more=[Hostile(kept=7)])"
    )
    assert Hostile.ran == []


def test_texts_are_bounded_in_length_and_in_depth():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    huge = ["x" * 10**6] * 10**5
    endless = []
    endless.append(endless)
    for value in (deep, huge, endless, "x" * 10**6, {str(n): huge for n in range(100)}):
        assert len(shown(value)) <= MOST_OF_VALUE
    assert len(shown_arguments([huge] * 1000, {"y" * 10**5: huge})) <= MOST_CHARACTERS + 10


def test_a_value_that_another_thread_changes_does_not_raise(monkeypatch):
    def changed(value, depth):
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr("scalable.protocol.failures._safe_repr", changed)
    assert shown({}) == "<dict, not shown: RuntimeError>"


def test_the_frame_is_the_users_own_and_not_that_of_a_library():
    def fit():
        subprocess.run(["sh", "-c", "exit 3"], check=True)

    with pytest.raises(subprocess.CalledProcessError) as caught:
        fit()
    line = fit.__code__.co_firstlineno + 1
    assert own_frame(caught.value) == f"{__file__}:{line} in fit"


@pytest.mark.parametrize("text", [True, False])
def test_standard_error_of_a_child_is_kept_to_its_end(text):
    script = "for i in $(seq 1000); do echo line $i; echo no $i >&2; done; exit 3"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        subprocess.run(["sh", "-c", script], check=True, capture_output=True, text=text)
    error = ValueError("the model failed")
    error.__cause__ = caught.value
    facts = described(error, lambda: ((1,), {}))
    assert facts["stderr"].splitlines() == [f"no {n}" for n in range(981, 1001)]
    assert facts["stdout"].splitlines()[-1] == "line 1000"
    assert facts["arguments"] == "(1)"


def test_arguments_are_left_out_on_request(monkeypatch):
    monkeypatch.setenv(RECORD_ARGUMENTS, "no")
    assert "arguments" not in described(ValueError(), lambda: (("secret",), {}))


def test_arguments_that_cannot_be_read_do_not_hide_the_error():
    def unreadable():
        raise TypeError

    assert described(ValueError(), unreadable)["frame"] is None


def test_the_last_lines_of_an_output_are_bounded():
    assert len(last_lines("x" * 10**6)) == 4000
    assert last_lines("a\n" * 100 + "end\n\n").splitlines()[-1] == "end"


def test_the_users_frame_in_the_text_of_a_traceback_of_another_machine():
    text = "Traceback (most recent call last):\n" + "".join(
        f'  File "{file}", line {line}, in {name}\n    x\n'
        for line, (file, name) in enumerate(
            [
                ("/env/lib/python3.12/site-packages/distributed/worker.py", "apply"),
                ("/home/ada/flow.py", "simulate"),
                ("/env/lib/python3.12/site-packages/numpy/linalg.py", "solve"),
                ("/usr/lib/python3.12/concurrent/futures/thread.py", "run"),
                ("/env/lib/python3.12/site-packages/scalable/worker/bundles.py", "run_bundle"),
            ]
        )
    )
    assert own_frame_in(text) == "/home/ada/flow.py:1 in simulate"
    without = text.replace("/home/ada/", "/env/lib/python3.12/site-packages/pandas/")
    assert own_frame_in(without) == "/env/lib/python3.12/site-packages/numpy/linalg.py:2 in solve"
    assert own_frame_in('  File "/usr/lib/python3.12/json.py", line 3, in loads') is not None
    assert own_frame_in("no frames") is None
