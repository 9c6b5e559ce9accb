"""The available providers: built in, registered at run time, or installed by other packages."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scalable.errors import ProviderError, UnknownProviderError
from scalable.model import Traits

logger = logging.getLogger("scalable.providers")

ENTRY_POINT_GROUP = "scalable.providers"
_registered: dict[str, type[Any]] = {}


def _is_built_in(key: str) -> bool:
    """Return whether a provider is built in, that is, whether it has a folder."""
    found = find_spec(f"{__package__}.{key}") if key.isidentifier() else None
    return found is not None and found.submodule_search_locations is not None


def _built_in() -> list[str]:
    return sorted(file.parent.name for file in Path(__file__).parent.glob("*/provider.py"))


def _installed() -> dict[str, EntryPoint]:
    return {point.name.lower(): point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _is_known(key: str) -> bool:
    # Installed packages come last: searching them takes longest.
    return key in _registered or _is_built_in(key) or key in _installed()


def provider_names() -> tuple[str, ...]:
    """Return the names of all providers, in alphabetical order."""
    return tuple(sorted({*_built_in(), *_registered, *_installed()}))


def register_provider(name: str, cls: type[Any]) -> None:
    """Register a provider under a name, in this process only.

    Parameters
    ----------
    name
        Name of the provider, in any case.
    cls
        Class with the methods of :class:`scalable.providers.base.DeploymentProvider`.

    Raises
    ------
    ValueError
        If another provider has the name.
    """
    key = name.lower()
    if _is_known(key):
        raise ValueError(f"a provider {key!r} already exists")
    _registered[key] = cls


def unregister_provider(name: str) -> None:
    """Remove a provider that was registered with :func:`register_provider`."""
    del _registered[name.lower()]


def provider_class(name: str) -> type[Any]:
    """Return the class of a provider.

    Raises
    ------
    UnknownProviderError
        If no provider has the name. It is a KeyError with a hint that lists the known providers.
    ProviderError
        If an installed provider cannot be imported.
    """
    key = name.lower()
    if key in _registered:
        return _registered[key]
    if _is_built_in(key):
        return importlib.import_module(f"scalable.providers.{key}").PROVIDER  # type: ignore[no-any-return]
    point = _installed().get(key)
    if point is None:
        known = ", ".join(provider_names())
        raise UnknownProviderError(f"unknown provider {name!r}", hint=f"known providers: {known}")
    try:
        return point.load()  # type: ignore[no-any-return]
    except Exception as error:
        raise ProviderError(
            f"provider {name!r} ({point.value}) cannot be loaded: {error}"
        ) from error


def get_provider(name: str) -> Any:
    """Return an instance of a provider. Raises the errors of :func:`provider_class`."""
    return provider_class(name)()


def provider_traits(name: str) -> Traits:
    """Return the traits of a provider, without importing a built-in provider.

    Raises the errors of :func:`provider_class`.
    """
    key = name.lower()
    if key not in _registered and _is_built_in(key):
        return importlib.import_module(f"scalable.providers.{key}.traits").TRAITS  # type: ignore[no-any-return]
    return getattr(provider_class(key), "traits", Traits())


def machine_providers() -> tuple[str, ...]:
    """Return the names of the built-in providers with workers on this machine."""
    return tuple(name for name in sorted(_built_in()) if provider_traits(name).on_this_machine)


def inside_job_of(name: str) -> bool:
    """Return whether this process runs in a provider's job. False for an unknown provider."""
    try:
        variable = provider_traits(name).job_variable
    except ProviderError:
        return False  # the error is raised when the provider is used
    return variable is not None and variable in os.environ


class _OptionModels(Mapping[str, Any]):
    """Option models of all providers. Each provider is loaded when its model is looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            if name not in self:
                raise KeyError(name)
            self._loaded[name] = _option_model(name)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name == name.lower() and _is_known(name)

    def __iter__(self) -> Iterator[str]:
        return iter(provider_names())

    def __len__(self) -> int:
        return len(provider_names())


def _option_model(name: str) -> Any:
    try:
        return getattr(provider_class(name), "options_model", None)
    except ProviderError as error:
        logger.warning("%s", error)
        return None


def option_models() -> Mapping[str, Any]:
    """Return the pydantic models of providers' options, by lower-case provider name.

    A provider is loaded when its model is looked up. The model is None if the provider accepts any
    option, or cannot be imported. Using a provider that cannot be imported raises the import error.
    """
    return _OptionModels()
