"""When a worker's versions do not fit."""

import platform
from dataclasses import replace

import distributed

from scalable.containers import PackageVersions, describe_mismatch, read_versions

HERE = PackageVersions(
    "3.12.4", {"distributed": "2026.6.0", "dask": "2026.6.0", "msgpack": "1.1.0"}
)


def with_packages(**packages):
    return replace(HERE, packages={**HERE.packages, **packages})


def test_patches_do_not_matter():
    assert describe_mismatch(HERE, HERE) is None
    assert describe_mismatch(HERE, replace(HERE, python="3.12.9")) is None
    assert describe_mismatch(HERE, with_packages(dask="2026.6.1")) is None


def test_each_difference_is_named_with_both_sides():
    said = describe_mismatch(HERE, replace(with_packages(dask="2025.1.0"), python="3.11.4"))
    assert "Python 3.11.4 (here 3.12.4)" in said
    assert "dask 2025.1.0 (here 2026.6.0)" in said
    assert "distributed" not in said


def test_a_missing_package_is_a_difference_and_an_unknown_one_is_not():
    assert "msgpack is missing (here 1.1.0)" in describe_mismatch(HERE, with_packages(msgpack=None))
    assert "msgpack 1.1.0 (not here)" in describe_mismatch(with_packages(msgpack=None), HERE)
    assert describe_mismatch(HERE, PackageVersions("3.12.0", {})) is None


def test_the_versions_here_are_those_that_are_imported():
    here = read_versions()
    assert here.python == platform.python_version()
    assert here.packages["distributed"] == distributed.__version__
    assert None not in here.packages.values()
