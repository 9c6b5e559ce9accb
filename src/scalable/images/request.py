"""The image of a target or component: what it contains, and what it is called."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scalable.containers import read_versions
from scalable.errors import ProviderError
from scalable.images.package import NAME, wheel_content, wheel_name
from scalable.images.render import BASE, ImageContent, render_dockerfile
from scalable.images.sources import project_requirements
from scalable.spec import DeploymentSpec, Traits
from scalable.storage import SCHEMES, scheme_of

_FILE = (".sif", ".img")


@dataclass(frozen=True)
class ImageDraft:
    """An image before it is built.

    Attributes
    ----------
    content
        Content of the image.
    dockerfile
        Text of the Dockerfile.
    key
        Path in the manifest that names the image, such as ``targets.gke.image``.
    named
        Image that the manifest names there; None if it names none.
    """

    content: ImageContent
    dockerfile: str
    key: tuple[str, ...]
    named: str | None

    def files(self) -> dict[str, bytes]:
        """Return name -> content of the files that the Dockerfile copies."""
        wheel = self.content.wheel
        return {} if wheel is None else {wheel: wheel_content()}

    def tag(self, files: Mapping[str, bytes]) -> str:
        """Return the name of the image if the user gives none.

        It is the manifest's; without one, a name made of the project and the content: equal
        contents have equal names, and no place mistakes an older image for this one.

        Parameters
        ----------
        files
            Result of :meth:`files`.

        Raises
        ------
        ProviderError
            When the manifest names something that cannot be built, such as a file.
        """
        if self.named is None:
            parts = [self.dockerfile.encode(), *files.values()]
            digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]
            slug = re.sub(r"[^a-z0-9]+", "-", self.content.project.lower()).strip("-")
            return f"localhost/scalable-{slug or 'project'}:{digest}"
        name = self.named.removeprefix("docker://")
        if "@" in name or "://" in name or name.startswith(("/", ".")) or name.endswith(_FILE):
            raise ProviderError(
                f"{'.'.join(self.key)} is {self.named!r}, which is no name that a build can give",
                hint="give --tag, such as ghcr.io/site/model:1",
            )
        return name


def draft(
    spec: DeploymentSpec, traits: Traits, *, component: str | None, base: str | None
) -> ImageDraft:
    """Return the image for the workers of a target, or of one component.

    Parameters
    ----------
    spec
        Request of the target.
    traits
        Traits of its provider.
    component
        Name of a component; None for the target's image, or if the target has none, for all
        components.
    base
        Image that it is made from; None for the official image of this Python's minor version.

    Raises
    ------
    ProviderError
        When the component is unknown, or requirements cannot be read.
    """
    if component is not None and component not in spec.components:
        known = ", ".join(map(repr, spec.tags))
        raise ProviderError(f"no component is called {component!r}; known: {known}")
    versions = read_versions()
    releases = {name: text for name, text in versions.packages.items() if text is not None}
    required = project_requirements(Path(spec.workflow_dir or "."), tuple(versions.packages))
    content = ImageContent(
        project=spec.project_name,
        base=base or BASE.format(python=".".join(platform.python_version_tuple()[:2])),
        requirements=required,
        version=releases.pop(NAME, ""),
        releases=releases,
        wheel=wheel_name(),
        extras=(*traits.image_extras, *_storage_extra(spec)),
    )
    key, named = _place(spec, component)
    return ImageDraft(content, render_dockerfile(content), key, named)


def _storage_extra(spec: DeploymentSpec) -> tuple[str, ...]:
    extra = None if spec.storage_url is None else SCHEMES[scheme_of(spec.storage_url)]
    return () if extra is None else (extra,)


def _place(spec: DeploymentSpec, component: str | None) -> tuple[tuple[str, ...], str | None]:
    """Return the path in the manifest that names the image, and the image that it names."""
    if component is None and "image" in spec.options:
        return ("targets", spec.target_name, "image"), spec.options["image"]
    tag = component or next(
        (tag for tag, part in spec.components.items() if part.image is not None), spec.tags[0]
    )
    return ("components", tag, "image"), spec.components[tag].image
