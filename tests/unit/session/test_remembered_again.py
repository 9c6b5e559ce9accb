"""Calls of a run whose remembered results would be found again, with the code of now."""

import types

import pytest

from scalable.caching.decorator import cached
from scalable.caching.key import KeyMaker, KeyOptions
from scalable.caching.store import ResultStore
from scalable.session.remembered_again import RememberedAgain, is_same
from scalable.spec import ComponentSpec, DeploymentSpec, TaskSpec


def simulate(scenario, rate=2):
    return rate * len(scenario)


@cached(version=1)
def versioned(scenario):
    return scenario


def other(scenario, rate=2):
    return rate + len(scenario)


class Project:
    """A project with a task that is remembered and one that is not, and a store of results."""

    def __init__(self, path):
        self.path = path
        self.store = ResultStore.open(path)
        self.rows = []

    def spec(self, **component):
        tasks = {
            name: TaskSpec(name, "model", cache=name == "simulate")
            for name in ("simulate", "total")
        }
        components = {"model": ComponentSpec("model", **component)}
        return DeploymentSpec(
            "p", "t", "local", components, tasks=tasks, local_cache=str(self.path)
        )

    def remember(self, function, *args, kind="missed", task="simulate", stored=True, **made_from):
        key = KeyMaker().key(getattr(function, "__wrapped__", function), args, {}, **made_from)
        if stored:
            self.store.put(key.digest, 1, parts=key.parts, function=key.function, cost_s=1.0)
        self.rows.append({"task_name": task, "tag": "model", "kind": kind, "key": key.digest})

    def compared(self, *functions, **component):
        again = RememberedAgain.of(self.spec(**component), self.rows)
        return again.compared({f"{one.__module__}.{one.__qualname__}": one for one in functions})


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path / "results")


def test_calls_with_the_same_code_and_environment_are_found(project):
    project.remember(simulate, "dry", environment={"environment:A": "1"})
    project.remember(simulate, "dry", environment={"environment:A": "1"}, kind="found")
    project.remember(simulate, "wet", 5, environment={"environment:A": "1"})
    project.remember(simulate, "gone", stored=False)
    project.remember(simulate, "cold", task="total")  # with cache=True of the call itself
    assert project.compared(simulate, env={"A": "1"}).same == {"simulate": 3}
    for changed in ({}, {"A": "2"}, {"A": "1", "B": "1"}):
        found = project.compared(simulate, env=changed)
        assert (dict(found.same), set(found.changed)) == ({}, {"simulate"})


def test_a_changed_function_is_named(project):
    project.remember(simulate, "dry")
    changed = types.FunctionType(other.__code__, globals(), "simulate", other.__defaults__)
    changed.__qualname__ = "simulate"
    found = project.compared(changed)
    assert not found.same
    assert found.changed == {"simulate": {f"{__name__}.simulate"}}
    assert not found.incomparable
    assert project.compared().incomparable == {f"{__name__}.simulate"}


def test_the_version_of_a_decorated_function_counts(project):
    project.remember(versioned, "dry", options=KeyOptions(version=1))
    assert project.compared(versioned).same == {"simulate": 1}
    renewed = cached(version=2)(versioned.__wrapped__)
    assert not project.compared(renewed).same


def test_an_image_counts_by_its_content(project, tmp_path):
    image = tmp_path / "model.sif"
    image.write_text("one")
    again = RememberedAgain.of(project.spec(image=str(image)), [])
    project.remember(simulate, "dry", environment=again._environment("model"))
    assert project.compared(simulate, image=str(image)).same == {"simulate": 1}
    image.write_text("another")
    assert not project.compared(simulate, image=str(image)).same
    # An image of which only the name is known: no call can be found.
    assert not project.compared(simulate, image="registry.org/model:latest").same
    assert not project.compared(simulate).same


def test_calls_without_known_keys_are_told_and_not_counted(project, tmp_path):
    project.remember(simulate, "dry")
    project.rows.append({"task_name": "simulate", "tag": None, "kind": "found", "count": 4})
    again = RememberedAgain.of(project.spec(), project.rows)
    assert again.compared({f"{__name__}.simulate": simulate}).same == {"simulate": 1}
    assert list(again.about_unknown("run-1")) == [
        "simulate: 4 calls expected to run, because the record of run-1 does not have the keys."
    ]


def test_a_store_that_does_not_exist_is_not_made(tmp_path):
    project = Project(tmp_path / "results")
    project.remember(simulate, "dry")
    project.path = tmp_path / "none"
    assert not project.compared(simulate).same
    assert not project.path.exists()


def test_arguments_and_their_code_are_not_compared():
    now = {"function": "1", "python": "3"}
    assert is_same(now, {**now, "argument:x": "2", "code:m.f": "3", "version": "1"})
    assert not is_same({**now, "code:m.g": "1"}, now)
    assert not is_same(now, {**now, "image": "1"})
