"""Errors of tasks that lack a module which this process has."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from scalable.protocol.code import is_own


def with_package(error: BaseException | None) -> BaseException | None:
    """Add this process's package of a missing module to the error. Others are unchanged."""
    if type(error) is not ModuleNotFoundError or not error.name:
        return error
    words = _words(error.name)
    if not words or words in str(error):
        return error
    told = ModuleNotFoundError(f"{error} {words}", name=error.name, path=error.path)
    told.__cause__, told.__context__ = error.__cause__, error.__context__
    told.__suppress_context__ = error.__suppress_context__
    return told.with_traceback(error.__traceback__)


@lru_cache(maxsize=256)  # finding a package reads the metadata of all, and many tasks may fail
def _words(name: str) -> str:
    """Return where this process has a module from, or nothing if it does not have the module."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return ""
    if spec is None:
        return ""
    if is_own(name, spec.origin):
        return f"This process has it in {spec.origin}, which does not reach the worker."
    packages = []
    for package in packages_distributions().get(name.partition(".")[0], ()):
        try:
            packages.append(f"{package}=={version(package)}")
        except PackageNotFoundError:
            continue
    if not packages:
        return ""
    return f"This process has it from {' or '.join(sorted(set(packages)))}."
