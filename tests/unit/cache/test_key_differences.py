"""Differences between keys, in words, on keys as they are made."""

import importlib
import sys

import pytest

from scalable.cache.differences import differences, parts_by_group, summary, why_missed
from scalable.cache.key import KeyMaker, KeyOptions

SOURCE = """\
import functools
from climate_helper import weigh
SCALE = 2
def run(scenario, year=1):
    return weigh(scenario) * SCALE * year
"""
HELPER = "def weigh(x):\n    return x + 1\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a function that writes the two modules, and returns the parts of a call's key."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def parts(*args, source=SOURCE, helper=HELPER, environment=None, **given):
        options = given.pop("options", KeyOptions())
        (tmp_path / "climate_study.py").write_text(source)
        (tmp_path / "climate_helper.py").write_text(helper)
        importlib.invalidate_caches()
        for name in ("climate_helper", "climate_study"):
            sys.modules.pop(name, None)
        module = importlib.import_module("climate_study")
        return KeyMaker().key(module.run, args, given, options, environment).parts

    yield parts
    for name in ("climate_helper", "climate_study"):
        sys.modules.pop(name, None)


def sentences(now, before):
    return [one.sentence for one in differences("climate_study.run", now, before)]


def test_equal_keys_have_no_difference(project):
    assert sentences(project("low"), project("low", 1)) == []


@pytest.mark.parametrize(("change", "sentence"), [
    ({"source": SOURCE.replace("* year", "+ year")}, "the function climate_study.run changed"),
    ({"helper": HELPER.replace("1", "3")}, "the code of climate_helper.weigh changed"),
    ({"source": SOURCE.replace("= 2", "= 5")}, "the constant climate_study.SCALE changed"),
    ({"year": 7}, "argument year changed"),
    (
        {"environment": {"image": "model:2", "environment:TOKEN": "secret"}},
        "the environment variable TOKEN is set now, was not before",
    ),
    ({"options": KeyOptions(version=3)}, "version= of climate_study.run is given now, was not before"),
])  # fmt: skip
def test_each_change_of_a_call_has_its_sentence(project, change, sentence):
    before = project("low", environment={"image": "model:2"})
    now = project("low", **{"environment": {"image": "model:2"}} | change)
    assert sentences(now, before) == [sentence]


def test_code_is_told_before_arguments_and_packages(project):
    before = {**project("low"), "package:numpy": "numpy 2.3.1", "image": "model:1"}
    now = {
        **project("high", helper=HELPER.replace("1", "3")),
        "package:numpy": "numpy 2.3.5",
        "image": "model:2",
    }
    assert sentences(now, before) == [
        "the code of climate_helper.weigh changed",
        "argument scenario changed",
        "numpy is 2.3.5, was 2.3.1",
        "the image is model:2, was model:1",
    ]
    assert why_missed("climate_study.run", now, before) == (
        "the code of climate_helper.weigh changed; argument scenario changed; "
        "numpy is 2.3.5, was 2.3.1; 1 more part of the key differs"
    )


@pytest.mark.parametrize(("part", "now", "before", "sentence"), [
    ("image", None, "model:1", "the image is not given now, was model:1"),
    ("image", "model:1", None, "the image is model:1, was not given"),
    ("package:xarray", "xarray 1", None, "the package xarray is used now, was not before"),
    ("package:old", "files 00", "old 1", "the module old changed"),
    ("package:one", "files 00", "files 11", "the module one changed"),
    ("package:cv2", "opencv 2", "opencv 1", "cv2 is opencv 2, was opencv 1"),
    ("python", "CPython 3.13", "CPython 3.12", "Python is CPython 3.13, was CPython 3.12"),
    ("key", "2", "1", "the version of keys is 2, was 1"),
    ("environment:TOKEN", "a", "b", "the environment variable TOKEN changed"),
    ("code:a.b", None, "b", "the code of a.b is no longer used"),
    ("code:a.b of an argument", "a", "b", "the code of a.b, which is an argument, changed"),
    ("module:a", "a", "b", "the module a changed"),
    ("function", "a", "b", "f is bound to other values, or is another object"),
    ("argument:x", "a", None, "argument x is given now, was not before"),
    ("argument:x", None, "a", "argument x is no longer given"),
    ("depends_on:0", "a", "b", "depends_on[0] changed"),
    ("later:x", "a", "b", "the part later:x changed"),
])  # fmt: skip
def test_each_kind_of_part_has_its_sentence(part, now, before, sentence):
    sides = ({} if text is None else {part: text} for text in (now, before))
    (found,) = differences("f", *sides)
    assert (found.sentence, found.now, found.before) == (sentence, now, before)
    assert summary([found]) == sentence


def test_a_miss_without_an_earlier_result_or_without_a_difference_has_its_reason():
    assert why_missed("f", {"function": "a"}, None) == "no result of f is stored"
    assert why_missed("f", {"function": "a"}, {"function": "a"}) == (
        "the result of an equal task is no longer stored, or cannot be read"
    )


def test_parts_are_grouped_with_the_texts_that_people_can_read():
    parts = {
        "python": "CPython 3.12", "argument:b": "00", "argument:a": "11",
        "package:numpy": "numpy 2.3.5", "environment:TOKEN": "secret", "code:f": "22",
    }  # fmt: skip
    assert parts_by_group(parts) == {
        "code": ["f"],
        "argument": ["a", "b"],
        "package": ["numpy 2.3.5"],
        "environment": ["TOKEN"],
        "python": ["CPython 3.12"],
    }
