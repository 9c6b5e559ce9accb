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
from scalable.manifest.check import Checker, OptionModels, overlaid
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
from scalable.manifest.tree import (
    KeyedValue,
    MappingNode,
    Node,
    Path,
    Position,
    Scalar,
    Sequence,
    child,
    nearest,
    resolve_plain,
    text_of,
)
from scalable.manifest.values import UnfitValueError, tree_of
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
    _root: MappingNode = field(repr=False)
    _overlays: Mapping[str, MappingNode] = field(repr=False)
    _models: OptionModels = field(repr=False)
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
            raise failure(faults.source, faults.sorted())
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
            hint = "use maps with text as keys, lists, text, numbers and booleans"
            faults.add(E_BAD_OPTION, error.path, None, str(error), hint)
            raise failure(faults.source, faults.sorted()) from error
        assert isinstance(root, MappingNode)
        where = (None, (directory or pathlib.Path()).absolute())
        return _checked(root, faults, option_models, None, None, where)

    def provider_of(self, target: str) -> str:
        """Return the canonical name of a target's provider.

        Raises
        ------
        ManifestError
            If there is no such target.
        """
        return _provider_of(self._view(target), target)

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
        overlay = _overlay_of(self._root, target)
        unset = [d for d in self._unset if _uses(target, overlay, d.path)]
        if unset:
            raise failure(self._source, unset)
        faults = Faults(self._source)
        checked = Checker(self._models, faults).document(view)
        assert not faults, "every view was checked when the manifest was created"
        return resolved(view, checked, target, source=self._source, directory=self.directory)

    def _view(self, target: str) -> MappingNode:
        if target not in self.target_names:
            raise _unknown_target(target, self.target_names, self._root, self._source)
        overlay = _overlay_of(self._root, target)
        return overlaid(self._root, self._overlays.get(overlay) if overlay else None)


def read_targets(
    path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Map a file's targets to their providers, without checking the file.
    Providers are in lower case, or "" if unknown. Raises ManifestError for an unreadable file.
    """
    root, faults = read_document(path)
    if root is None:
        raise failure(faults.source, faults.sorted())
    expanded = expand(root, os.environ if environ is None else environ, lambda *_: None)
    assert isinstance(expanded, MappingNode)
    names = _names(expanded)
    return {name: _provider_of(expanded, name) for name in names}


def _checked(
    root: MappingNode,
    faults: Faults,
    models: OptionModels,
    environ: Mapping[str, str] | None,
    target: str | None,
    where: tuple[pathlib.Path | None, pathlib.Path],
) -> Manifest:
    unset = Faults(faults.source)

    def report(path: Path, place: Position | None, message: str, hint: str, is_unset: bool) -> None:
        (unset if is_unset else faults).add(E_BAD_OPTION, path, place, message, hint)

    expanded = expand(root, os.environ if environ is None else environ, report)
    assert isinstance(expanded, MappingNode)
    checker = Checker(models, faults)
    overlays = checker.overlays(expanded)
    checked = checker.document(expanded)
    for overlaying in overlays.values():
        checker.document(overlaid(expanded, overlaying))
    names = _names(expanded)
    if target is not None and target not in names:
        found = _unknown_target(target, names, expanded, faults.source).diagnostics
        raise failure(faults.source, [*faults.sorted(), *unset.sorted(), *found])
    overlay = None if target is None else _overlay_of(expanded, target)
    warnings, errors = [], faults.sorted()
    for diagnostic in unset.sorted():
        if target is None or _uses(target, overlay, diagnostic.path):
            errors.append(diagnostic)
        else:
            warnings.append(replace(diagnostic, severity="warning"))
    if errors:
        raise failure(faults.source, [*errors, *warnings])
    assert checked.project is not None
    return Manifest(
        path=where[0],
        directory=where[1],
        project_name=checked.project.name,
        target_names=names,
        warnings=tuple(in_order(warnings)),
        _root=expanded,
        _overlays=overlays,
        _models=models,
        _source=faults.source,
        _unset=tuple(unset.sorted()),
    )


def _names(root: MappingNode) -> tuple[str, ...]:
    targets = root.get("targets")
    return tuple(targets.node.entries) if targets and isinstance(targets.node, MappingNode) else ()


def _provider_of(view: MappingNode, target: str) -> str:
    entry, depth = nearest(KeyedValue(None, view), ("targets", target, "provider"))
    return (text_of(entry) or "").strip().lower() if depth == 3 else ""


def _overlay_of(root: MappingNode, target: str) -> str | None:
    entry, depth = nearest(KeyedValue(None, root), ("targets", target, "overlay"))
    return text_of(entry) if depth == 3 else None


def _uses(target: str, overlay: str | None, path: Path) -> bool:
    """Return whether a target depends on the value at a path."""
    if len(path) > 1 and path[0] == "targets":
        return path[1] == target
    if len(path) > 1 and path[0] == "overlays":
        return path[1] == overlay
    return True


def _unknown_target(
    target: str, names: tuple[str, ...], root: MappingNode, source: SourceLines
) -> ManifestError:
    place = targets.place if (targets := child(root, "targets")) else None
    hint = f"{suggest(target, names)} (targets: {', '.join(names) or 'none'})"
    message = f"no target is called {target!r}"
    found = source.locate(Diagnostic(E_UNKNOWN_TARGET, ("targets",), message, hint), place)
    return ManifestError(message, diagnostics=[found], hint=hint)


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
    asked = _asked_target(target)
    if target is not None and asked != target:
        logger.warning("--target %s wins over target=%r of the workflow", asked, target)
    if asked is not None:
        return asked
    for name, provider in targets.items():
        if inside_job_of(provider):
            return name
    if "local" in targets:
        return "local"
    return next(iter(targets)) if len(targets) == 1 else None


def _asked_target(target: str | None) -> str | None:
    return os.environ.get(settings.RUN_TARGET) or target or os.environ.get(settings.TARGET) or None


# Expansion of ``${NAME}`` and ``${NAME:-default}`` in values --------------------------------------


_VARIABLE = re.compile(r"\$(\$\{)|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\})?")
_HOW = "write ${NAME} or ${NAME:-default}; $${...} is not expanded"

#: Arguments: path, position, message, hint, and True for a variable that is not set.
Report = Callable[[Path, Position | None, str, str, bool], None]


@dataclass(frozen=True)
class _Expansion:
    environ: Mapping[str, str]
    report: Report

    def node(self, node: Node, path: Path) -> Node:
        if isinstance(node, Scalar):
            return self._scalar(node, path) if "${" in node.written else node
        if isinstance(node, Sequence):
            items = tuple(self.node(item, (*path, i)) for i, item in enumerate(node.items))
            unchanged = all(new is old for new, old in zip(items, node.items, strict=True))
            return node if unchanged else Sequence(items, node.place)
        changed = {}
        for key, entry in node.entries.items():
            new = self.node(entry.node, (*path, key))
            if new is not entry.node:
                changed[key] = KeyedValue(entry.key_place, new)
        return MappingNode({**node.entries, **changed}, node.place) if changed else node

    def _scalar(self, node: Scalar, path: Path) -> Scalar:
        failed = False

        def replace(match: re.Match[str]) -> str:
            nonlocal failed
            escaped, name, default = match.groups()
            if escaped:
                return "${"
            value = self.environ.get(name) if name else None
            if name and (value or (value is not None and default is None)):
                if _is_text(value or ""):
                    return value or ""
                message = f"the environment variable {name} is not valid text"
                self.report(path, node.place, message, "set it to UTF-8 text", False)
            elif default is not None:
                return default
            elif name:
                message = f"the environment variable {name} is not set"
                hint = f"set {name}, or give a default: ${{{name}:-...}}"
                self.report(path, node.place, message, hint, True)
            else:
                shown = node.written[match.start() : match.start() + 40].split("\n")[0]
                self.report(path, node.place, f"{shown!r} is not a variable", _HOW, False)
            failed = True
            return ""

        whole = _VARIABLE.fullmatch(node.written)
        text = _VARIABLE.sub(replace, node.written)
        if failed:
            return Scalar(None, node.written, node.place, broken=True)
        retyped = node.plain and whole is not None and whole.group(2) is not None
        return Scalar(resolve_plain(text) if retyped else text, text, node.place, node.plain)


def _is_text(value: str) -> bool:
    """Return whether an environment variable is valid UTF-8."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def expand(node: Node, environ: Mapping[str, str], report: Report) -> Node:
    """Replace a tree's variables by their values. Report failures, and mark the scalars broken."""
    return _Expansion(environ, report).node(node, ())
