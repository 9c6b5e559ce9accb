"""The objects that stand for the scheduler and for the units of a cluster. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from scalable.providers.kubernetes import render
from scalable.providers.kubernetes.permissions import RULES, Rule
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
    rules
        Permissions that the creator of a cluster needs.
    """

    unit_kind: Kind
    deletion: Mapping[str, Any]
    ends_with_pod: bool
    rules: tuple[Rule, ...]

    def root(self, frame: render.Frame, deadline_s: int) -> render.Object:
        """Return the root object, which ends after ``deadline_s`` seconds."""
        ...

    def scheduler(self, frame: render.Frame) -> list[render.Object]:
        """Return the objects that, beside the root and the Secret, make the scheduler."""
        ...

    def unit(self, frame: render.Frame, component: ComponentSpec, unit: str) -> render.Object:
        """Return the object that brings one worker."""
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

    unit_kind = Kind("pods")
    deletion: Mapping[str, Any] = {"gracePeriodSeconds": render.GRACE_S}
    ends_with_pod = True
    rules: tuple[Rule, ...] = RULES

    def root(self, frame: render.Frame, deadline_s: int) -> render.Object:
        """Return the Job whose pod is the scheduler."""
        return render.root_job(frame, deadline_s)

    def scheduler(self, frame: render.Frame) -> list[render.Object]:
        """Return the Service of the scheduler."""
        return [render.service(frame)]

    def unit(self, frame: render.Frame, component: ComponentSpec, unit: str) -> render.Object:
        """Return the pod of one worker."""
        return render.worker_pod(frame, component, unit)

    def object_of(self, pod: Pod) -> str:
        """Return the name of the pod."""
        return str(pod["metadata"]["name"])

    def first_life(self, before: Pod | None, pod: Pod) -> Pod:  # noqa: ARG002 - of the protocol
        """Return the pod: it is never started again."""
        return pod


def form_of(options: Mapping[str, Any]) -> Form:
    """Return the form of the clusters of a target with these options."""
    del options
    return PodForm()


def kind_of(thing: Mapping[str, Any]) -> Kind:
    """Return the kind of an object that is to be created."""
    group = str(thing["apiVersion"])
    return Kind(f"{thing['kind'].lower()}s", "" if group == "v1" else group)
