"""Which providers there are: built in, registered at run time, or installed by others."""

from __future__ import annotations

import logging
import os
import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from scalable.errors import ProviderError, UnknownProviderError
from scalable.spec import Traits

logger = logging.getLogger("scalable.providers")

ENTRY_POINT_GROUP = "scalable.providers"
_registered: dict[str, type[Any]] = {}


def _built_in() -> frozenset[str]:
    """Names of the folders beside this file: each is a provider and exports ``PROVIDER``."""
    return frozenset(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.ispkg)


def _installed() -> dict[str, EntryPoint]:
    return {point.name.lower(): point for point in entry_points(group=ENTRY_POINT_GROUP)}


def provider_names() -> tuple[str, ...]:
    """Names of all providers, in alphabetical order."""
    return tuple(sorted({*_built_in(), *_registered, *_installed()}))


def register_provider(name: str, cls: type[Any]) -> None:
    """Make a provider known under a name, in this process.

    Parameters
    ----------
    name
        Case does not matter.
    cls
        A class with the methods of :class:`scalable.providers.base.DeploymentProvider`.

    Raises
    ------
    ValueError
        When the name is taken.
    """
    key = name.lower()
    if key in _built_in() or key in _registered or key in _installed():
        raise ValueError(f"there is a provider {key!r} already")
    _registered[key] = cls


def unregister_provider(name: str) -> None:
    """Forget a provider that :func:`register_provider` made known."""
    del _registered[name.lower()]


def provider_class(name: str) -> type[Any]:
    """Class of a provider.

    Raises
    ------
    UnknownProviderError
        A KeyError that lists what exists.
    ProviderError
        When an installed provider cannot be imported.
    """
    key = name.lower()
    if key in _registered:
        return _registered[key]
    if key in _built_in():
        return import_module(f"scalable.providers.{key}").PROVIDER  # type: ignore[no-any-return]
    point = _installed().get(key)
    if point is None:
        known = ", ".join(provider_names())
        raise UnknownProviderError(f"unknown provider {name!r}", hint=f"there are: {known}")
    try:
        return point.load()  # type: ignore[no-any-return]
    except Exception as error:
        raise ProviderError(
            f"provider {name!r} ({point.value}) cannot be loaded: {error}"
        ) from error


def get_provider(name: str) -> Any:
    """An instance of a provider. Errors as in :func:`provider_class`."""
    return provider_class(name)()


def provider_traits(name: str) -> Traits:
    """Return the traits of a provider, without loading it where it is built in.

    Errors are those of :func:`provider_class`.
    """
    key = name.lower()
    if key in _built_in() and key not in _registered:
        return import_module(f"scalable.providers.{key}.traits").TRAITS  # type: ignore[no-any-return]
    return getattr(provider_class(key), "traits", Traits())


def machine_providers() -> tuple[str, ...]:
    """Return the names of the built-in providers whose workers are processes of this machine."""
    return tuple(name for name in sorted(_built_in()) if provider_traits(name).on_this_machine)


def inside_job_of(name: str) -> bool:
    """Return whether this process runs in a job of a provider; False for an unknown provider."""
    try:
        variable = provider_traits(name).job_variable
    except ProviderError:
        return False  # who uses the provider gets the error
    return variable is not None and variable in os.environ


class OptionModels(Mapping[str, Any]):
    """Name of a provider -> pydantic model of its options, imported when it is read.

    The value is None for a provider that accepts any option. A plug-in that cannot be loaded counts
    as one that accepts any option: the error comes when it is used.
    """

    def __init__(self) -> None:
        self._names = provider_names()
        self._models: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._models:
            self._models[name] = self._load(name)
        return self._models[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _load(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        try:
            return getattr(provider_class(name), "options_model", None)
        except ProviderError as error:
            logger.warning("%s", error)
            return None


def option_models() -> OptionModels:
    """Return the option models of all providers."""
    return OptionModels()
