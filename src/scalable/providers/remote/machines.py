"""Requests that start one cluster's machines. This module does no I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalable.errors import ProviderError
from scalable.model import ComponentSpec
from scalable.providers.remote.cloud import (
    CLUSTER,
    MANAGER,
    MANAGING,
    NAME,
    OWNER,
    ROLE,
    SCHEDULER,
    TAG,
    WORKERS,
    MachineRequest,
)
from scalable.settings import ALLOW_VERSION_MISMATCH, IMAGE

#: Port of the scheduler on its machine.
PORT = 8786
#: Resources of a scheduler and of a manager. A scheduler needs about 10 kB for each task, a manager
#: little more than a Python process with the provider's library.
SCHEDULER_CPUS, SCHEDULER_MEMORY = 1.0, 4 * 1024**3
MANAGER_CPUS, MANAGER_MEMORY = 0.5, 2 * 1024**3
#: Name of the file with the configuration of workers.
CONFIG = "worker.json"


@dataclass(frozen=True)
class MachineFrame:
    """Facts shared by the machines of one cluster."""

    cluster_id: str
    #: Name of the user, as :meth:`.Cloud.owner` returns it.
    owner: str
    #: Options of the target.
    options: Mapping[str, Any]
    #: Address that workers use; empty until it is known.
    scheduler: str = ""

    def marks(self, role: str | None = None, manager: str = "", tag: str = "") -> dict[str, str]:
        """Return the marks (identifying names and values) of a role, or of the whole cluster."""
        own = {CLUSTER: self.cluster_id, OWNER: self.owner, ROLE: role or ""}
        own |= {MANAGER: manager, TAG: tag}
        return {key: text for key, text in own.items() if text}

    def files(self, role: str, manager: str = "", tag: str = "") -> str:
        """Return the name under which the files of a role are stored."""
        return "-".join(part for part in (self.cluster_id, role, manager, tag) if part)

    def image(self, component: ComponentSpec | None) -> str:
        """Return a component's image, or the programs' image for None. May raise ProviderError."""
        image = (component.image if component is not None else None) or self.options.get("image")
        if not image:
            noun = "the scheduler" if component is None else f"component {component.name!r}"
            raise ProviderError(
                f"{noun} has no image",
                hint="give image: in the target; docs/images.md shows how to make one",
            )
        return str(image).removeprefix("docker://")

    def _environment(self, component: ComponentSpec | None) -> dict[str, str]:
        own = {IMAGE: self.image(component)}
        own |= {ALLOW_VERSION_MISMATCH: "1"} if self.options.get("allow_version_mismatch") else {}
        return {"PYTHONUNBUFFERED": "1", **dict(self.options.get("env") or {}), **own}

    # Requests -----------------------------------------------------------------------------------

    def scheduler_request(self) -> MachineRequest:
        name = f"{self.cluster_id}-{SCHEDULER}"
        return MachineRequest(
            name=name,
            marks=self.marks(SCHEDULER) | {NAME: name},
            program=(SCHEDULER,),
            files=self.files(SCHEDULER),
            cpus=SCHEDULER_CPUS,
            memory_bytes=SCHEDULER_MEMORY,
            image=self.image(None),
            environment=self._environment(None),
        )

    def manager_request(self, manager: str, nonce: str) -> MachineRequest:
        """Return the request for a manager's machine, with ``nonce`` in its name."""
        name = f"{self.cluster_id}-{manager}-{nonce}"
        return MachineRequest(
            name=name,
            marks=self.marks(MANAGING, manager) | {NAME: name},
            program=(MANAGING, manager),
            files=self.files(MANAGING, manager),
            cpus=MANAGER_CPUS,
            memory_bytes=MANAGER_MEMORY,
            image=self.image(None),
            environment=self._environment(None),
        )

    def worker_request(
        self, manager: str, component: ComponentSpec, units: Sequence[str], name: str, *, spot: bool
    ) -> MachineRequest:
        """Return the request for a machine that runs ``units``."""
        tag = component.name
        preload = [] if component.preload_script is None else [component.preload_script]
        settings = [f"--preload={script}" for script in preload]
        return MachineRequest(
            name=name,
            marks=self.marks(WORKERS, manager, tag) | {NAME: name},
            program=(WORKERS, f"--scheduler={self.scheduler}", *settings, *units),
            files=self.files(WORKERS, manager, tag),
            cpus=component.cpus,
            memory_bytes=component.memory_bytes or 0,
            gpus=component.gpus or 0,
            units=tuple(units),
            image=self.image(component),
            environment={**self._environment(component), **component.environment(component.slots)},
            spot=spot,
        )


def packed_units(units: Sequence[str], per_machine: int) -> Iterator[tuple[str, ...]]:
    """Yield the units of each machine. All machines but the last one are full."""
    for start in range(0, len(units), per_machine):
        yield tuple(units[start : start + per_machine])


logger = logging.getLogger("scalable.providers.remote")
