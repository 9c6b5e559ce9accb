"""Packages that load what they export when it is used."""

import importlib

import pytest

from scalable.exports import exported_lazily

LAZY = ("containers", "manifest", "planning", "providers", "scaling", "session")


@pytest.mark.parametrize("room", LAZY)
def test_every_exported_name_resolves_and_is_listed(room):
    package = importlib.import_module(f"scalable.{room}")
    for name in package.__all__:
        value = getattr(package, name)
        assert not isinstance(value, type(importlib)), f"{name} is a module"
    assert {*package.__all__} <= {*dir(package)}


@pytest.mark.parametrize("room", LAZY)
def test_no_module_of_the_package_takes_the_place_of_an_exported_name(room):
    package = importlib.import_module(f"scalable.{room}")
    for name in package.__all__:
        try:
            importlib.import_module(f"scalable.{room}.{name}")
        except ModuleNotFoundError:
            continue
        assert callable(getattr(package, name)), f"module and exported name: {room}.{name}"


def test_a_name_that_is_not_exported_is_an_attribute_error():
    load, names = exported_lazily("scalable.model", {"scalable.model.plan": ("Plan",)})
    with pytest.raises(AttributeError, match=r"'scalable\.model' has no attribute 'nothing'"):
        load("nothing")
    assert load("Plan").__name__ == "Plan"
    assert "Plan" in names()
