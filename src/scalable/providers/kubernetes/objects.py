"""Objects of managers, and objects that a request would create. No cluster is contacted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scalable.errors import ProviderError
from scalable.model import DeploymentSpec, Diagnostic
from scalable.providers.kubernetes import render
from scalable.providers.kubernetes.form import Form, form_of
from scalable.providers.kubernetes.permissions import AccessRule
from scalable.providers.kubernetes.render import (
    MANAGER,
    MANAGING,
    ROLE,
    SCHEDULER,
    SERVICE_PROGRAM,
    WORKER,
    Frame,
    Object,
    fault,
    label_value,
    object_name,
    owned,
    parse_mount,
    program_options,
    root_name,
    scheduler_secret_name,
    secret,
    service_job,
)
from scalable.providers.remote.session_files import FILES
from scalable.records.directory import MANIFEST, SECRETS, SPEC
from scalable.records.packing import PLACE, key_of
from scalable.units import parse_duration

# Objects of managers ------------------------------------------------------------------------------


RBAC = "rbac.authorization.k8s.io/v1"
#: Number of times that Kubernetes restarts a manager; the next one takes over the workers.
RESTARTS = 6


def manager_name(frame: Frame) -> str:
    """Return the name that the objects of the frame's manager share."""
    return object_name(frame.name, MANAGING, frame.manager)


def marks(frame: Frame) -> dict[str, str]:
    """Return the labels that identify the frame's manager, in addition to the cluster's."""
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


def account_objects(frame: Frame, rights: Iterable[AccessRule]) -> list[Object]:
    """Return a manager's service account, role and binding, or none if the target has one."""
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


#: Placeholders for values that exist only with a cluster, such as its id and the root's uid.
CLUSTER_ID = "0000000000"
ROOT_UID = "00000000-0000-0000-0000-000000000000"
DETACHED_ID, OWNER, NONCE = "00000000-0000-0000-0000-0000000000ff", "OWNER", "000000"


def read_template(spec: DeploymentSpec) -> dict[str, Any]:
    """Return the target's pod template, or an empty dict. Raises ProviderError if it is invalid."""
    written = spec.options["pod_template"]
    if written is None:
        return {}
    import yaml

    file = Path(spec.workflow_dir or ".") / written
    try:
        template = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ProviderError(f"pod_template {file} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ProviderError(f"pod_template {file} is not YAML: {error}") from error
    template = {} if template is None else template
    problem = fault(template)
    if problem is not None:
        raise ProviderError(f"pod_template {file} does not describe a pod: {problem}")
    return dict(template)


def findings(spec: DeploymentSpec) -> list[Diagnostic]:
    """Return the errors and warnings about a request that are found without Kubernetes."""
    target = ("targets", spec.target_name)
    found = []
    mounts = [((*target, "mounts"), spec.options["mounts"])]
    mounts += [(("components", tag, "mounts"), c.mounts) for tag, c in spec.components.items()]
    for place, written in mounts:
        for source, path in written.items():
            try:
                parse_mount(source, path)
            except ProviderError as error:
                found.append(_bad((*place, source), error))
    for tag, component in spec.components.items():
        script = component.preload_script
        if script is not None and not script.startswith("/"):
            local = ProviderError(
                f"preload_script {script!r} is a file on this machine, which pods cannot read",
                hint="put it into the image or a mount, and write its absolute path there",
            )
            found.append(_bad(("components", tag, "preload_script"), local))
    if not found:
        try:
            template = read_template(spec)
            for component in spec.components.values():
                pod = render.Frame(CLUSTER_ID, spec.target_name, _imaged(spec), template)
                form_of(spec.options).unit(pod, component, component.name)
        except ProviderError as error:
            found.append(_bad((*target, "pod_template"), error))
    return [*found, *_warnings(spec)]


def _warnings(spec: DeploymentSpec) -> list[Diagnostic]:
    target = ("targets", spec.target_name)
    bare = [tag for tag, component in spec.components.items() if component.image is None]
    found = []
    if spec.options["image"] is None:
        who = "the scheduler" + (f" and component {bare[0]!r}" if bare else "")
        message = f"{who} cannot start: no image is set"
        hint = "add `image:`; docs/images.md shows how to make one"
        found.append(Diagnostic("E_MISSING_KEY", (*target, "image"), message, hint, "warning"))
    return found


def objects(
    spec: DeploymentSpec, counts: Mapping[str, int], name: str | None = None
) -> dict[str, bytes]:
    """Map file names to the objects of a cluster, in sending order.
    Ids are zeros, the owner is ``OWNER``, and the Secrets' files are empty. Everything else is as
    sent. ``counts`` are workers by tag. ``name`` is None for a session's cluster. Raises
    ProviderError without an image, or if the pod template contradicts the request.
    """
    things = _of_session(spec, counts) if name is None else _detached(spec, counts, name)
    width = len(str(len(things)))
    return {
        f"{number:0{width}d}-{thing['kind'].lower()}-{thing['metadata']['name']}.json": (
            render.to_body(thing)
        )
        for number, thing in enumerate(things, 1)
    }


def planned_pods(spec: DeploymentSpec) -> dict[tuple[str, ...], Object]:
    """Map option paths to the pods of the scheduler and of one worker per component."""
    frame = Frame(CLUSTER_ID, spec.target_name, _imaged(spec), read_template(spec), ROOT_UID)
    pods: dict[tuple[str, ...], Object] = {
        ("components", tag): render.worker_pod(frame, component, tag)
        for tag, component in spec.components.items()
    }
    job = render.root_job(frame, _deadline(spec))
    return {("targets", spec.target_name): render.pod_of(job), **pods}


def _deadline(spec: DeploymentSpec) -> int:
    return int(parse_duration(spec.options["start_timeout"]) + render.MARGIN_S)


def _of_session(spec: DeploymentSpec, counts: Mapping[str, int]) -> list[render.Object]:
    frame = render.Frame(CLUSTER_ID, spec.target_name, spec.options, read_template(spec), ROOT_UID)
    form = form_of(spec.options)
    nothing = {render.CONFIG: ""}
    files = dict.fromkeys(map(key_of, FILES), "")
    things = [
        form.root(frame, _deadline(spec)),
        render.secret(frame, render.scheduler_secret_name(frame), SCHEDULER, files),
        *form.scheduler(frame),
    ]
    for tag in spec.components:
        name = render.worker_secret_name(frame, tag)
        things.append(render.secret(frame, name, WORKER, nothing))
    if spec.options["manager"] == "there":
        told = dict.fromkeys((*FILES, PLACE, *_manager_paths(frame.manager)), "")
        things += manager_parts(frame, form, told, (), NONCE)
    for tag, count in counts.items():
        units = [f"{tag}-{CLUSTER_ID}-{number}" for number in range(count)]
        things += [form.unit(frame, spec.components[tag], unit) for unit in units]
    return things


def _detached(spec: DeploymentSpec, counts: Mapping[str, int], name: str) -> list[render.Object]:
    manager = spec.target_name
    frame = render.Frame(
        DETACHED_ID,
        manager,
        spec.options,
        read_template(spec),
        ROOT_UID,
        root_name=root_name(OWNER, name),
        owner=OWNER,
    )
    form = form_of(spec.options)
    files = dict.fromkeys((*FILES, PLACE), "")
    own = dict.fromkeys((*_manager_paths(manager), f"managers/{manager}/{SECRETS}"), "")
    workers = [
        render.secret(frame, render.worker_secret_name(frame, tag), WORKER, {render.CONFIG: ""})
        for tag in spec.components
    ]
    things = [
        form.root(frame, _deadline(spec)),
        *scheduler_parts(frame, form, files),
        *manager_parts(frame, form, files | own, workers, NONCE),
    ]
    for tag, count in counts.items():
        units = [f"{tag}-{manager}-{NONCE}-{number}" for number in range(count)]
        things += [form.unit(frame, spec.components[tag], unit) for unit in units]
    return things


def _manager_paths(manager: str) -> list[str]:
    return [f"managers/{manager}/{file}" for file in (MANIFEST, SPEC)]


def _imaged(spec: DeploymentSpec) -> dict[str, Any]:
    return {**spec.options, "image": spec.options["image"] or "image"}


def _bad(path: tuple[str, ...], error: ProviderError) -> Diagnostic:
    return Diagnostic("E_BAD_OPTION", path, error.message, error.hint)
