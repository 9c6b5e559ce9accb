"""The manifest: read, checked, and resolved for one target."""

from __future__ import annotations

import logging
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scalable import settings
from scalable.errors import ManifestError
from scalable.manifest.check import Checked, Checker, OptionModels
from scalable.manifest.document import Node, Path, UnfitValueError, resolve_plain, tree_of
from scalable.manifest.faults import (
    E_BAD_OPTION,
    E_UNKNOWN_TARGET,
    Faults,
    SourceLines,
    failure,
    in_order,
    suggest,
)
from scalable.manifest.reader import read_document
from scalable.manifest.resolved import ResolvedManifest, resolved
from scalable.model import Diagnostic


@dataclass(frozen=True)
class Manifest:
    """A manifest without errors.

    :meth:`load` and :meth:`from_mapping` create it.

    Attributes
    ----------
    path
        Path of the file, or None if the manifest is not a file.
    directory
        Absolute directory of the file, or the current one. Relative paths start there.
    project_name
        Name of the project.
    target_names
        Names of the targets, in the order of the file.
    warnings
        Errors in parts that the selected target does not use.
    """

    path: pathlib.Path | None
    directory: pathlib.Path
    project_name: str
    target_names: tuple[str, ...]
    warnings: tuple[Diagnostic, ...]
    #: The checked document with each overlay (by name), and with none.
    _views: Mapping[str | None, Checked] = field(repr=False)
    _source: SourceLines = field(repr=False)
    _unset: tuple[Diagnostic, ...] = field(repr=False)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        option_models: OptionModels,
        *,
        environ: Mapping[str, str] | None = None,
        target: str | None = None,
    ) -> Manifest:
        """Read and check a file.

        Parameters
        ----------
        path
            Path of a YAML file, or of a TOML file if its name ends in ``.toml``.
        option_models
            Model of each provider's options, by lower-case name. None for a provider that accepts
            any option.
        environ
            Values of variables, by default the process's environment.
        target
            Name of the target that will be used. An unset variable is then an error only if this
            target uses it, otherwise a warning. Without a target it is always an error.

        Raises
        ------
        ManifestError
            If the file has errors. The exception lists all of them with their positions.
        """
        root, faults = read_document(path)
        file = pathlib.Path(path)
        if root is None:
            raise failure(faults.source, faults)
        directory = pathlib.Path(os.path.abspath(file)).parent  # noqa: PTH100 - links stay
        return _checked(root, faults, option_models, environ, target, (file, directory))

    @classmethod
    def from_mapping(
        cls,
        data: Mapping[str, Any],
        option_models: OptionModels,
        *,
        directory: pathlib.Path | None = None,
    ) -> Manifest:
        """Check a manifest given as plain values.

        Parameters
        ----------
        data
            Content of the manifest.
        option_models
            As for :meth:`load`.
        directory
            Directory where relative paths start, by default the current one.

        Raises
        ------
        ManifestError
            If the manifest has errors. The exception lists all of them.
        """
        faults = Faults(SourceLines())
        try:
            root = tree_of(data)
        except UnfitValueError as error:
            hint = "use maps with strings as keys, lists, strings, numbers and booleans"
            faults.add(E_BAD_OPTION, error.path, None, str(error), hint)
            raise failure(faults.source, faults) from error
        where = (None, (directory or pathlib.Path()).absolute())
        return _checked(root, faults, option_models, None, None, where)

    def provider_of(self, target: str) -> str:
        """Return the canonical name of a target's provider.

        Raises
        ------
        ManifestError
            If there is no such target.
        """
        return _provider_of(self._view(target).root, target)

    def resolve(self, target: str) -> ResolvedManifest:
        """Resolve the manifest for one target, with the target's overlay merged in.

        Maps are merged at every level. Lists and scalars of the overlay replace those of the
        manifest.

        Raises
        ------
        ManifestError
            If there is no such target, or one of its variables is not set.
        """
        view = self._view(target)
        overlay = _written(self._views[None].root, target, "overlay")
        unset = [d for d in self._unset if _uses(target, overlay, d.path)]
        if unset:
            raise failure(self._source, unset)
        return resolved(view, target, source=self._source, directory=self.directory)

    def _view(self, target: str) -> Checked:
        root = self._views[None].root
        if target not in self.target_names:
            raise _unknown_target(target, root, self._source)
        overlay = _written(root, target, "overlay")
        return self._views.get(overlay, self._views[None])


def read_targets(
    path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Map a file's targets to their providers, without checking the file.
    Providers are in lower case, or "" if unknown. Raises ManifestError for an unreadable file.
    """
    root, faults = read_document(path)
    if root is None:
        raise failure(faults.source, faults)
    root = expand(root, environ, faults, faults)
    return {name: _provider_of(root, name) for name in _names(root)}


def _checked(
    root: Node,
    faults: Faults,
    models: OptionModels,
    environ: Mapping[str, str] | None,
    target: str | None,
    where: tuple[pathlib.Path | None, pathlib.Path],
) -> Manifest:
    unset = Faults(faults.source)
    root = expand(root, environ, faults, unset)
    views = Checker(models, faults).document(root)
    if target is not None and target not in _names(root):
        found = _unknown_target(target, root, faults.source).diagnostics
        raise failure(faults.source, [*faults, *unset, *found])
    overlay = None if target is None else _written(root, target, "overlay")
    warnings, errors = [], list(faults)
    for diagnostic in unset:
        if target is None or _uses(target, overlay, diagnostic.path):
            errors.append(diagnostic)
        else:
            warnings.append(replace(diagnostic, severity="warning"))
    if errors:
        raise failure(faults.source, [*errors, *warnings])
    project = views[None].project
    assert project is not None
    return Manifest(
        path=where[0],
        directory=where[1],
        project_name=project.name,
        target_names=_names(root),
        warnings=tuple(in_order(warnings)),
        _views=views,
        _source=faults.source,
        _unset=tuple(unset),
    )


def _names(root: Node) -> tuple[str, ...]:
    targets = root.at("targets")
    return tuple(targets.entries) if targets else ()


def _provider_of(root: Node, target: str) -> str:
    return (_written(root, target, "provider") or "").strip().lower()


def _written(root: Node, target: str, key: str) -> str | None:
    node = root.at("targets", target, key)
    return node.text if node else None


def _uses(target: str, overlay: str | None, path: Path) -> bool:
    """Return whether a target depends on the value at a path."""
    if len(path) > 1 and path[0] == "targets":
        return path[1] == target
    if len(path) > 1 and path[0] == "overlays":
        return path[1] == overlay
    return True


def _unknown_target(target: object, root: Node, source: SourceLines) -> ManifestError:
    names = _names(root)
    hint = f"targets: {', '.join(names) or 'none'}"
    message = f"a target must be given by its name, not {target!r}"
    if isinstance(target, str):
        message, hint = f"no target is called {target!r}", f"{suggest(target, names)} ({hint})"
    section = root.at("targets")
    found = Diagnostic(E_UNKNOWN_TARGET, ("targets",), message, hint)
    located = source.locate(found, section.place if section else None)
    return ManifestError(message, diagnostics=[located], hint=hint)


# Choice of the target to run on -------------------------------------------------------------------


logger = logging.getLogger("scalable.manifest")


def choose_target(
    targets: Mapping[str, str],
    target: str | None = None,
    inside_job_of: Callable[[str], bool] = lambda _: False,
) -> str | None:
    """Return the target to run on, or None if no rule selects one.
    The rules, in order: --target of ``scalable run``, the ``target`` argument, SCALABLE_TARGET, the
    target whose batch system runs this process as a job, ``local``, the only target.
    """
    asked = os.environ.get(settings.RUN_TARGET) or target or os.environ.get(settings.TARGET)
    if target and asked != target:
        logger.warning("--target %s overrides target=%r of the workflow", asked, target)
    if asked:
        return asked
    for name, provider in targets.items():
        if inside_job_of(provider):
            return name
    if "local" in targets:
        return "local"
    return next(iter(targets)) if len(targets) == 1 else None


# Expansion of ``${NAME}`` and ``${NAME:-default}`` in values --------------------------------------


_VARIABLE = re.compile(r"\$(\$\{)|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\})?")
_HOW = "write ${NAME} or ${NAME:-default}; $${...} is not expanded"


def expand(root: Node, environ: Mapping[str, str] | None, faults: Faults, unset: Faults) -> Node:
    """Replace a tree's variables by their values, by default from the process's environment.
    A scalar with a variable that is not set, or with another error, becomes broken.
    """
    environ = os.environ if environ is None else environ

    def expanded(node: Node, path: Path) -> Node:
        if isinstance(node.value, dict):
            entries = {key: expanded(child, (*path, key)) for key, child in node.value.items()}
            return replace(node, value=entries)
        if isinstance(node.value, tuple):
            items = tuple(expanded(item, (*path, i)) for i, item in enumerate(node.value))
            return replace(node, value=items)
        return _scalar(node, path, environ, faults, unset) if "${" in node.written else node

    return expanded(root, ())


def _scalar(
    node: Node, path: Path, environ: Mapping[str, str], faults: Faults, unset: Faults
) -> Node:
    failed = False

    def value_of(match: re.Match[str]) -> str:
        nonlocal failed
        escaped, name, default = match.groups()
        if escaped:
            return "${"
        value = environ.get(name or "")
        if value is not None and (value or default is None):
            if value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value):
                return value
            message = f"the environment variable {name} is not valid UTF-8"
            faults.add(E_BAD_OPTION, path, node.start, message, "set it to a UTF-8 string")
        elif default is not None:
            return default
        elif name:
            message = f"the environment variable {name} is not set"
            hint = f"set {name}, or give a default: ${{{name}:-...}}"
            unset.add(E_BAD_OPTION, path, node.start, message, hint)
        else:
            shown = node.written[match.start() : match.start() + 40].split("\n")[0]
            faults.add(E_BAD_OPTION, path, node.start, f"{shown!r} is not a variable", _HOW)
        failed = True
        return ""

    whole = _VARIABLE.fullmatch(node.written)
    text = _VARIABLE.sub(value_of, node.written)
    if failed:
        return replace(node, value=None, plain=True, broken=True)
    retyped = node.plain and whole is not None and whole.group(2) is not None
    return replace(node, value=resolve_plain(text) if retyped else text, written=text)
