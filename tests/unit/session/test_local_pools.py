"""A session without a manifest: the same request as a manifest of its pools makes."""

import dataclasses
import sys

import pytest

from scalable import ClusterError, ManifestError, ScalableSession
from scalable.manifest import Manifest
from scalable.providers.local.options import LocalOptions
from scalable.providers.local.traits import DEFAULTS
from scalable.providers.registry import option_models
from scalable.session.request import Request


def manifest_of(pools, **given):
    target = {"provider": "local", "processes": False, "threads_per_worker": 1}
    data = {
        "version": 1,
        "project": {"name": given.pop("project", "local")},
        "targets": {"local": target | given},
        "components": {tag: {"workers": n} for tag, n in pools.items()},
    }
    return Manifest.from_mapping(data, option_models()).resolve("local")


@pytest.mark.parametrize(("pools", "given"), [
    ({"a": 2}, {}),
    ({"a": 0, "b.c-d": 7}, {"processes": True}),
    ({"a": 1}, {"threads_per_worker": 3, "project": "two words"}),
    ({"a": 1}, {"project": "42"}),
    ({"a": 1}, {"dashboard_address": ":8787"}),
])  # fmt: skip
def test_counts_make_the_request_that_their_manifest_makes(pools, given):
    made = ScalableSession.local(pools, **given)._request
    expected = manifest_of(pools, **given)
    assert dataclasses.asdict(made.spec) == dataclasses.asdict(expected.spec)
    assert made.spec == expected.spec
    assert made.resolved.data == expected.data
    assert made.resolved.lock == expected.lock
    assert made.resolved.to_yaml() == expected.to_yaml()
    assert made.validate() == Request(expected).validate()
    assert made.manifest.resolve("local").lock == expected.lock


def test_the_defaults_are_those_of_the_option_model():
    assert dict(DEFAULTS) == LocalOptions().model_dump()


@pytest.mark.parametrize(("pools", "given"), [
    ({}, {}),
    ({"a": -1}, {}),
    ({"a": 200_000}, {}),
    ({"a": True}, {}),
    ({"a": 1.5}, {}),
    ({"a b": 1}, {}),
    ({"a": 1}, {"threads_per_worker": 0}),
    ({"a": 1}, {"threads_per_worker": True}),
    ({"a": 1}, {"processes": 1}),
    ({"a": 1}, {"project": ""}),
    ({"a": 1}, {"dashboard_address": "nowhere"}),
    ({"a": {"memory": "much"}}, {}),
])  # fmt: skip
def test_whatever_a_manifest_refuses_is_refused(pools, given):
    with pytest.raises(ManifestError):
        ScalableSession.local(pools, **given)


def test_components_are_read_as_in_a_manifest():
    spec = ScalableSession.local({"a": {"workers": 2, "cpus": 3}, "b": 1}).spec
    assert (spec.components["a"].cpus, spec.components["a"].workers.fixed) == (3, 2)
    assert spec.components["b"].workers.fixed == 1


def test_the_directory_is_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ScalableSession.local({"a": 1}).spec.workflow_dir == str(tmp_path)
    assert "scalable.session.session" in sys.modules


def test_a_time_limit_that_is_not_a_duration_starts_nothing():
    session = ScalableSession.local({"a": 1})
    with pytest.raises(ValueError, match="timeout_s='soon' is not a duration"):
        session.start(timeout_s="soon")
    with pytest.raises(ClusterError, match="not running"):
        session.client  # noqa: B018
