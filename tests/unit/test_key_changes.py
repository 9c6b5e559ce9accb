"""Keys of calls after changes in a running process, behind decorators, and of odd arguments."""

import dataclasses
import enum
import functools
import html
import os
import pathlib
import sys
import types

import numpy as np
import pytest

import scalable
from scalable.cache.calls import own_function
from scalable.cache.errors import UnfollowedReferencesError, UnstableArgumentError
from scalable.cache.key import KeyMaker


def changed(function, *args, change):
    """Return whether a change that is made between two calls makes another key."""
    maker = KeyMaker()
    before = maker.key(function, args, {}).digest
    change()
    return maker.key(function, args, {}).digest != before


def test_changed_attribute_of_a_function_makes_another_key():
    def scaled(x):
        return x * scaled.rate

    scaled.rate = 1
    assert changed(scaled, 1, change=lambda: setattr(scaled, "rate", 2))


def test_function_that_is_registered_for_another_type_makes_another_key():
    @functools.singledispatch
    def area(x):
        return 0

    def total(x):
        return area(x)

    assert changed(total, 1, change=lambda: area.register(int, lambda x: 5))


def test_changed_module_that_is_used_as_a_value_makes_another_key(monkeypatch, tmp_path):
    path = tmp_path / "study.py"
    path.write_text("RATE = 1")
    module = types.ModuleType("study")
    module.__file__ = str(path)
    module.__spec__ = types.SimpleNamespace(origin=str(path))
    module.RATE = 1
    monkeypatch.setitem(sys.modules, "study", module)

    def rated():
        return getattr(module, "RA" + "TE")

    assert changed(rated, change=lambda: setattr(module, "RATE", 2))


def test_replaced_function_of_a_package_makes_another_key(monkeypatch):
    def written(x):
        return html.escape(x)

    assert changed(written, "1", change=lambda: monkeypatch.setattr(html, "escape", lambda x: "2"))


def test_names_of_two_spaces_with_one_module_name_are_told_apart():
    def space(rate):
        names = {"__name__": "__main__"}
        exec(f"RATE = {rate}\ndef g(): return RATE", names)
        return names["g"]

    def both(first, second):
        def run():
            return first(), second()

        return KeyMaker().key(run, (), {}).digest

    assert both(space(1), space(2)) != both(space(1), space(3))


def test_changed_file_of_a_remembered_function_within_makes_another_key(tmp_path):
    path = tmp_path / "rates.csv"
    path.write_text("1")

    @scalable.cached(depends_on=[scalable.File(path)], store=tmp_path / "results")
    def inner():
        return path.name

    def outer():
        return inner()

    assert changed(outer, change=lambda: path.write_text("2"))


# Calls and arguments --------------------------------------------------------------------------


def test_decorator_that_sees_names_of_arguments_has_keys_of_its_own():
    def counted(function):
        @functools.wraps(function)
        def run(*args, **kwargs):
            return len(args)

        return run

    @counted
    def at(x):
        return x

    assert KeyMaker().key(at, (1,), {}).digest != KeyMaker().key(at, (), {"x": 1}).digest


def test_default_of_a_decorator_is_not_that_of_its_function():
    def defaulted(function):
        @functools.wraps(function)
        def run(x=5):
            return function(x)

        return run

    @defaulted
    def at(x=1):
        return x

    assert KeyMaker().key(at, (), {}).digest != KeyMaker().key(at, (1,), {}).digest


def test_decorator_around_a_remembered_function_is_part_of_the_key(tmp_path):
    @scalable.cached(store=tmp_path)
    def at(x):
        return x

    def times(factor):
        @functools.wraps(at)
        def run(x):
            return at(x) * factor

        return run

    keys = [KeyMaker().key(times(factor), (1,), {}).digest for factor in (2, 2, 3)]
    assert keys[0] == keys[1] != keys[2]


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


class Measured(np.ndarray):
    """An array with a unit, which its pickle lacks."""


def measured(unit):
    array = np.zeros(2).view(Measured)
    array.unit = unit
    return array


def maker_of_a_package(factor):
    names = {"__name__": "json"}
    exec("def make(k):\n    def inner(x): return x * k\n    return inner", names)
    return names["make"](factor)


@dataclasses.dataclass
class Permissive:
    x: int = 0

    def __getattr__(self, name):
        if name.startswith("__") and name != "__dask_graph__":
            raise AttributeError(name)
        return 1


@pytest.mark.parametrize("values", [
    [Permission(0), Permission.READ, Permission.READ | Permission.WRITE],
    [measured("m"), measured("km")],
    [np.ma.array([1], hard_mask=True), np.ma.array([1])],
    [maker_of_a_package(1), maker_of_a_package(2)],
    [Permissive(1), Permissive(2)],
], ids=["flags", "subclass of an array", "hard mask", "closure of a package", "any attribute"])  # fmt: skip
def test_arguments_are_told_apart(values):
    keys = [KeyMaker().key(repr, (value,), {}).digest for value in values]
    assert len(set(keys)) == len(values)


def test_function_of_numpy_that_has_no_name_in_a_module_is_an_error():
    with pytest.raises(UnstableArgumentError, match="imported by its name"):
        KeyMaker().key(repr, (np.frompyfunc(lambda x: x, 1, 1),), {})


def test_directory_counts_with_the_directories_that_its_links_lead_to(tmp_path):
    shared, study = tmp_path / "shared", tmp_path / "study"
    shared.mkdir()
    study.mkdir()
    (study / "inputs").symlink_to(shared)
    (shared / "back").symlink_to(study)  # around in a circle
    (shared / "rain.csv").write_text("1")
    file = scalable.File(study)
    assert changed(repr, file, change=lambda: (shared / "rain.csv").write_text("2"))


def test_named_pipe_is_an_error_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnstableArgumentError, match="not a regular file"):
        KeyMaker().key(repr, (scalable.File(pathlib.Path(tmp_path, "pipe")),), {})


def test_value_without_content_that_is_put_into_a_global_list_is_named():
    held = []

    def run():
        return held

    maker = KeyMaker()
    maker.key(run, (), {})
    held.append(iter(open, None))
    with open(__file__) as file:
        held.append(file)
        with pytest.raises(UnfollowedReferencesError, match="TextIOWrapper"):
            maker.key(run, (), {})


class Study:
    rate = 2

    @scalable.cached
    def at(self, x):
        return self.rate * x


def test_method_that_is_remembered_is_sent_with_its_object():
    sent = own_function(Study().at)
    assert sent(3) == 6
    assert not hasattr(sent.__func__, "__wrapped__")


def test_changed_attribute_of_a_text_of_its_own_class_makes_another_key():
    class Name(str):
        __slots__ = ("unit",)

    name = Name("rain")
    name.unit = "m"

    def run():
        return name.unit

    assert changed(run, change=lambda: setattr(name, "unit", "km"))
