"""The objects that stand for the scheduler and for the units of a cluster. No I/O.

A form says which objects are created and deleted. Nothing else knows of the difference.
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
    """A kind of object, as paths name it.

    Attributes
    ----------
    plural
        Plural name, such as ``pods``.
    group
        API group and version, such as ``batch/v1``; empty for ``v1`` of the core group.
    """

    plural: str
    group: str = ""


JOBS, PODS = Kind("jobs", "batch/v1"), Kind("pods")


class Form(Protocol):
    """The objects that are created for the scheduler and for each unit, and that are deleted.

    Attributes
    ----------
    unit_kind
        Kind of the object that is created and deleted for a unit.
    deletion
        Fields of ``DeleteOptions`` for that object.
    ends_with_pod
        Whether the object of a unit is gone as soon as its pod is.
    starts_again
        Whether Kubernetes starts a program again that has ended.
    unmade
        State of a pod that does not exist yet, in words.
    custom_kinds, installation
        Kinds that not every cluster knows; advice where they are missing.
    rules
        Permissions that the creator of a cluster needs.
    manager_rules
        Permissions that a manager in a pod needs.
    """

    unit_kind: Kind
    deletion: Mapping[str, Any]
    ends_with_pod: bool
    starts_again: bool
    unmade: str
    custom_kinds: tuple[Kind, ...]
    installation: str
    rules: tuple[Rule, ...]
    manager_rules: tuple[Rule, ...]

    def root(self, frame: render.Frame, deadline_s: int) -> render.Object:
        """Return the root object, which ends after ``deadline_s`` seconds."""
        ...

    def scheduler(self, frame: render.Frame) -> list[render.Object]:
        """Return the objects that, beside the root and the Secret, make the scheduler."""
        ...

    def unit(self, frame: render.Frame, component: ComponentSpec, unit: str) -> render.Object:
        """Return the object that brings one worker."""
        ...

    def awaited(self, frame: render.Frame) -> list[tuple[Kind, str]]:
        """Return kind and name of the objects whose end is awaited after the root's deletion."""
        ...

    def object_of(self, pod: Pod) -> str:
        """Return the name of the object that was created for a worker's pod."""
        ...

    def first_life(self, before: Pod | None, pod: Pod) -> Pod:
        """Return the pod in which a program ran for the first time, as it was or is.

        Parameters
        ----------
        before
            Last result for the same object; None if there is none.
        pod
            A pod of the object, as the API server has it.
        """
        ...


class PodForm:
    """The scheduler is the pod of the root object, and a unit is a pod."""

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
        """Return the Job whose pod is the scheduler."""
        return render.root_job(frame, deadline_s)

    def scheduler(self, frame: render.Frame) -> list[render.Object]:
        """Return the Service of the scheduler."""
        return [render.service(frame)]

    def unit(self, frame: render.Frame, component: ComponentSpec, unit: str) -> render.Object:
        """Return the pod of one worker."""
        return render.worker_pod(frame, component, unit)

    def awaited(self, frame: render.Frame) -> list[tuple[Kind, str]]:
        """Return the Job."""
        return [(JOBS, frame.root)]

    def object_of(self, pod: Pod) -> str:
        """Return the name of the pod."""
        return str(pod["metadata"]["name"])

    def first_life(self, before: Pod | None, pod: Pod) -> Pod:  # noqa: ARG002 - of the protocol
        """Return the pod: it is never started again."""
        return pod


def kind_of(thing: Mapping[str, Any]) -> Kind:
    """Return the kind of an object that is to be created."""
    group = str(thing["apiVersion"])
    return Kind(f"{thing['kind'].lower()}s", "" if group == "v1" else group)
