"""Objects for the scheduler and the units of a cluster, without I/O.

A form determines which objects are created and deleted. Other modules do not depend on the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from scalable.providers.kubernetes import render
from scalable.providers.kubernetes.permissions import MANAGER_RULES, RULES, Rule
from scalable.spec import ComponentSpec

Pod = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of object, as in API paths."""

    #: Plural name, such as ``pods``.
    plural: str
    #: API group and version, such as ``batch/v1``; empty for ``v1`` of the core group.
    group: str = ""


JOBS, PODS = Kind("jobs", "batch/v1"), Kind("pods")


class Form(Protocol):
    """The objects that are created and deleted for the scheduler and for each unit."""

    #: Kind of the object of a unit.
    unit_kind: Kind
    #: Fields of ``DeleteOptions`` for that object.
    deletion: Mapping[str, Any]
    #: The object of a unit is gone as soon as its pod is.
    ends_with_pod: bool
    #: Kubernetes restarts a program that has ended.
    starts_again: bool
    #: State of a pod that does not exist yet, in words.
    unmade: str
    #: Kinds that not every cluster has.
    custom_kinds: tuple[Kind, ...]
    #: Hint for clusters without them.
    installation: str
    #: Permissions that the creator of a cluster needs.
    rules: tuple[Rule, ...]
    #: Permissions that a manager in a pod needs.
    manager_rules: tuple[Rule, ...]

    def root(self, frame: render.Frame, deadline_s: int) -> render.Object:
        """Return the root object, which Kubernetes stops after ``deadline_s`` seconds."""
        ...

    def scheduler(self, frame: render.Frame) -> list[render.Object]:
        """Return the scheduler's objects, without the root and the Secret."""
        ...

    def unit(self, frame: render.Frame, component: ComponentSpec, unit: str) -> render.Object:
        """Return the object that creates one worker's pod."""
        ...

    def awaited(self, frame: render.Frame) -> list[tuple[Kind, str]]:
        """Return kind and name of the objects that have to be gone after the root's deletion."""
        ...

    def object_of(self, pod: Pod) -> str:
        """Return the name of the object that was created for a worker's pod."""
        ...

    def first_life(self, before: Pod | None, pod: Pod) -> Pod:
        """Return the pod of a program's first run.

        ``before`` is the last result for the same object, and ``pod`` one of its pods.
        """
        ...


class PodForm:
    """Layout with the root object's pod as scheduler, and one pod per unit."""

    unit_kind = PODS
    deletion: Mapping[str, Any] = {"gracePeriodSeconds": render.GRACE_S}
    ends_with_pod = True
    starts_again = False
    unmade = "it was requested"
    custom_kinds: tuple[Kind, ...] = ()
    installation = ""
    rules: tuple[Rule, ...] = RULES
    manager_rules: tuple[Rule, ...] = MANAGER_RULES

    def root(self, frame: render.Frame, deadline_s: int) -> render.Object:
        return render.root_job(frame, deadline_s)

    def scheduler(self, frame: render.Frame) -> list[render.Object]:
        return [render.service(frame)]

    def unit(self, frame: render.Frame, component: ComponentSpec, unit: str) -> render.Object:
        return render.worker_pod(frame, component, unit)

    def awaited(self, frame: render.Frame) -> list[tuple[Kind, str]]:
        return [(JOBS, frame.root)]

    def object_of(self, pod: Pod) -> str:
        return str(pod["metadata"]["name"])

    def first_life(self, before: Pod | None, pod: Pod) -> Pod:  # noqa: ARG002 - of the protocol
        """Return the pod, which is never restarted."""
        return pod


def kind_of(thing: Mapping[str, Any]) -> Kind:
    """Return the kind of an object that will be created."""
    group = str(thing["apiVersion"])
    return Kind(f"{thing['kind'].lower()}s", "" if group == "v1" else group)
