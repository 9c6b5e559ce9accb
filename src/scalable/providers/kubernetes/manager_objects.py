"""Objects of a cluster's scheduler, and of managers in pods, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scalable.providers.kubernetes.form import Form
from scalable.providers.kubernetes.names import (
    MANAGER,
    MANAGING,
    ROLE,
    SCHEDULER,
    label_value,
    object_name,
)
from scalable.providers.kubernetes.permissions import Rule
from scalable.providers.kubernetes.render import (
    SERVICE_PROGRAM,
    Frame,
    Object,
    owned,
    program_options,
    scheduler_secret_name,
    secret,
    service_job,
)
from scalable.records.packing import key_of

RBAC = "rbac.authorization.k8s.io/v1"
#: Number of times that Kubernetes restarts a manager; the next one takes over the workers.
RESTARTS = 6


def manager_name(frame: Frame) -> str:
    """Return the name of the objects of the frame's manager."""
    return object_name(frame.name, MANAGING, frame.manager)


def marks(frame: Frame) -> dict[str, str]:
    """Return the labels of the frame's manager, in addition to the cluster's."""
    return {ROLE: MANAGING, MANAGER: label_value(frame.manager)}


def _metadata(frame: Frame) -> Object:
    return frame.metadata(manager_name(frame), MANAGING, manager=frame.manager, **owned(frame))


def manager_job(frame: Frame, nonce: str) -> Object:
    """Return the Job whose pod is the manager, with ``nonce`` in its name."""
    metadata = _metadata(frame)
    metadata["name"] = object_name(manager_name(frame), nonce)
    account = frame.options["manager_service_account"] or manager_name(frame)
    program = [SERVICE_PROGRAM, MANAGING, frame.manager, *program_options(frame)]
    job = service_job(frame, metadata, program, manager_name(frame), account)
    job["spec"]["backoffLimit"] = RESTARTS
    return job


def account_objects(frame: Frame, rights: Iterable[Rule]) -> list[Object]:
    """Return a manager's service account, role and binding, or none if the target names one."""
    if frame.options["manager_service_account"] is not None:
        return []
    name = manager_name(frame)
    rules: list[dict[str, Any]] = [
        {"apiGroups": [rule.group], "resources": [rule.resource], "verbs": list(rule.verbs)}
        for rule in rights
    ]
    subject = {"kind": "ServiceAccount", "name": name, "namespace": frame.namespace}
    reference = {"apiGroup": RBAC.partition("/")[0], "kind": "Role", "name": name}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(frame)},
        {"apiVersion": RBAC, "kind": "Role", "metadata": _metadata(frame), "rules": rules},
        {
            "apiVersion": RBAC,
            "kind": "RoleBinding",
            "metadata": _metadata(frame),
            "subjects": [subject],
            "roleRef": reference,
        },
    ]


def scheduler_parts(frame: Frame, form: Form, files: Mapping[str, str]) -> list[Object]:
    """Return the scheduler's objects in creation order, without the root object."""
    return [_files(frame, scheduler_secret_name(frame), SCHEDULER, files), *form.scheduler(frame)]


def manager_parts(
    frame: Frame, form: Form, files: Mapping[str, str], secrets: Iterable[Object], nonce: str
) -> list[Object]:
    """Return the manager's objects in creation order, with its workers' ``secrets``."""
    return [
        *account_objects(frame, form.manager_rules),
        _files(frame, manager_name(frame), MANAGING, files),
        *secrets,
        manager_job(frame, nonce),
    ]


def _files(frame: Frame, name: str, role: str, files: Mapping[str, str]) -> Object:
    return secret(frame, name, role, {key_of(path): text for path, text in files.items()})
