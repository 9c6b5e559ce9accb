"""Versions in a scheduler's image are compared with the client's; missing packages are named."""

import importlib
import logging
import pickle
from dataclasses import astuple
from importlib.metadata import version

import pytest

from scalable.client.code_upload import compare_versions
from scalable.client.failures import with_package
from scalable.client.own_code import warn_once
from scalable.errors import ClusterError
from scalable.protocol.code import ImageVersions, in_image, locate, own_versions
from scalable.protocol.operations import VERSIONS


@pytest.fixture(autouse=True)
def nothing_told():
    warn_once.cache_clear()


def facts(allows=False, **packages):
    there = ImageVersions("site/image:1", own_versions() | packages, allows)
    return {VERSIONS: astuple(there)}


def test_another_release_of_distributed_is_an_error_that_names_both_and_the_image():
    with pytest.raises(ClusterError) as caught:
        compare_versions(facts(distributed="2020.1.0"))
    told = str(caught.value)
    assert "2020.1.0" in told
    assert version("distributed") in told
    assert "site/image:1" in told
    assert "allow_version_mismatch: true" in told


@pytest.mark.parametrize(("allows", "packages"), [
    (True, {"distributed": "2020.1.0"}),
    (False, {"dask": "2020.1.0"}),
    (False, {"python": "2.7.18"}),
    (False, {"scalable": "0.1"}),
])  # fmt: skip
def test_other_differences_are_warned_of_once(allows, packages, caplog):
    with caplog.at_level(logging.WARNING, "scalable.client"):
        for _ in range(2):
            compare_versions(facts(allows, **packages))
    (told,) = [record.getMessage() for record in caplog.records]
    ((name, there),) = packages.items()
    assert f"{name} {there} (here {own_versions()[name]})" in told
    assert "site/image:1" in told


def test_patches_of_python_unknown_versions_and_schedulers_without_an_image_are_no_difference(
    caplog,
):
    minor = own_versions()["python"].rpartition(".")[0]
    with caplog.at_level(logging.WARNING, "scalable.client"):
        compare_versions(facts(python=f"{minor}.999"))
        compare_versions(facts(distributed="unknown"))
        compare_versions({})
    assert not caplog.records


def test_a_process_in_an_image_knows_its_name(monkeypatch):
    monkeypatch.delenv("SCALABLE_IMAGE", raising=False)
    assert ImageVersions.of_this_process() is None
    assert in_image("worker a") == "worker a"
    monkeypatch.setenv("SCALABLE_IMAGE", "site/image:1")
    there = ImageVersions.of_this_process()
    assert (there.image, there.allows_mismatch) == ("site/image:1", False)
    assert there.packages["distributed"] == version("distributed")
    assert in_image("worker a") == "worker a (image site/image:1)"
    monkeypatch.setenv("SCALABLE_ALLOW_VERSION_MISMATCH", "1")
    assert ImageVersions.of_this_process().allows_mismatch


def missing(name):
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_the_error_of_a_call_names_its_worker_and_the_package_that_is_here():
    error = missing("yaml")
    for _ in range(2):
        locate(error, "worker a (image site/image:1)", "call 'f'")
    told = with_package(pickle.loads(pickle.dumps(error)))
    assert type(told) is ModuleNotFoundError
    assert told.name == "yaml"
    assert str(told).startswith("No module named 'yaml' on worker a (image site/image:1), where c")
    assert str(told).count("on worker a") == 1
    assert f"PyYAML=={version('PyYAML')}" in str(told)
    assert str(with_package(told)).count("PyYAML==") == 1


def test_a_module_that_is_not_here_either_and_other_errors_stay_as_they_are():
    for error in (missing("not_a_module"), missing("yaml.absent"), missing("not.there"), None):
        assert with_package(error) is error
    error = ImportError("yaml", name="yaml")
    assert with_package(error) is error
    locate(error, "worker a", "call 'f'")
    assert str(error) == "yaml"


def test_a_module_of_the_workflow_is_named_with_its_file(tmp_path, monkeypatch):
    (tmp_path / "module_beside.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert str(tmp_path / "module_beside.py") in str(with_package(missing("module_beside")))
