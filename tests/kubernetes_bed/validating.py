"""Checks of request bodies: the JSON Schemas of two Kubernetes versions, then what they do not say."""

import base64
import binascii
import json
import re
from functools import cache

import jsonschema
from kubernetes_validate import utils
from referencing import Registry, Resource

from .errors import invalid
from .quantities import amount

#: The oldest and the newest version whose schemas every body must satisfy.
VERSIONS = ("1.31.0", "1.37.0")
FOLDER = "kubernetes-json-schema/v{}-local-strict/{}.json"
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
LABEL_NAME = re.compile(r"[a-z0-9A-Z]([-a-z0-9A-Z_.]{0,61}[a-z0-9A-Z])?")
LABEL_VALUE = re.compile(r"([a-z0-9A-Z]([-a-z0-9A-Z_.]{0,61}[a-z0-9A-Z])?)?")
#: Kinds whose names are labels of the DNS (63 characters, no dot).
DNS_LABELS = {"Service", "Namespace"}
#: What may change in the spec of a pod that exists.
CHANGEABLE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")


@cache
def definitions(version):
    path = FOLDER.format(version, "_definitions")
    return Resource.from_contents(utils.schema_contents(path, version))


@cache
def validator(version, kind, api_version):
    """Return the validator of a kind, None if that version of Kubernetes does not have it."""
    name = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    try:
        schema = utils.schema_contents(FOLDER.format(version, f"{kind.lower()}-{name}"), version)
    except FileNotFoundError:
        return None
    registry = Resource.from_contents(schema) @ (definitions(version) @ Registry())
    return jsonschema.validators.Draft202012Validator(schema, registry=registry)


@cache
def custom_validator(text):
    return jsonschema.validators.Draft7Validator(json.loads(text))


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def check_schema(kind, obj):
    """Raise a 422 if an object does not satisfy the schemas of its kind."""
    name = obj["metadata"].get("name", "")
    if kind.schema is not None:
        checks = [custom_validator(json.dumps(kind.schema))]
        obj = without_nulls(obj)
    else:
        checks = [validator(version, kind.kind, kind.api_version) for version in VERSIONS]
    for version, check in zip(VERSIONS, checks, strict=False):
        error = next(check.iter_errors(obj), None) if check else None
        if error is not None:
            field = ".".join(str(part) for part in error.absolute_path)
            label = "" if kind.schema is not None else f" (schema of Kubernetes {version})"
            raise invalid(kind, name, (field, f"{error.message}{label}"))


def check_metadata(kind, obj):
    metadata = obj["metadata"]
    name = metadata.get("name") or metadata.get("generateName", "") + "x"
    limit = 63 if kind.kind in DNS_LABELS else 253
    causes = []
    good = NAME.fullmatch(name) and not (limit == 63 and "." in name)
    rbac = kind.group.startswith("rbac.")
    if len(name) > limit or not (good or rbac):
        text = f"{name!r} is no name: at most {limit} lower case letters, digits, '-'"
        causes.append(("metadata.name", text))
    for where in ("labels", "annotations"):
        for key, value in (metadata.get(where) or {}).items():
            prefix, _, last = key.rpartition("/")
            if not LABEL_NAME.fullmatch(last) or len(prefix) > 253:
                causes.append((f"metadata.{where}", f"{key!r} is no qualified name"))
            if where == "labels" and not LABEL_VALUE.fullmatch(value):
                text = f"{value!r} is no label value: at most 63 letters, digits, '-', '_', '.'"
                causes.append((f"metadata.labels[{key}]", text))
    if causes:
        raise invalid(kind, name, *causes)


def check_data(kind, obj):
    """Check a Secret: base64, and not more than 1 MiB as for a ConfigMap."""
    name = obj["metadata"].get("name", "")
    data = obj.get("data") or {}
    size = sum(len(value) for value in data.values())
    if size > 2**20 * (4 / 3 if kind.kind == "Secret" else 1):
        raise invalid(kind, name, ("data", "Too long: must have at most 1048576 bytes"))
    for key, value in data.items():
        if not re.fullmatch(r"[-._a-zA-Z0-9]+", key):
            raise invalid(kind, name, (f"data[{key}]", "a key has letters, digits, '-', '_', '.'"))
        if kind.kind == "Secret":
            try:
                base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                raise invalid(kind, name, (f"data[{key}]", "illegal base64 data")) from None


def check_pod_spec(kind, name, spec, path="spec"):
    """Check what the schema of a pod cannot say."""
    volumes = {volume["name"] for volume in spec.get("volumes") or ()}
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    names = [container["name"] for container in containers]
    twice = {name for name in names if names.count(name) > 1}
    causes = [(f"{path}.containers", f"Duplicate value: {name!r}") for name in sorted(twice)]
    for container in containers:
        where = f"{path}.containers[{container['name']}]"
        if not container.get("image"):
            causes.append((f"{where}.image", "Required value"))
        for mount in container.get("volumeMounts") or ():
            if mount["name"] not in volumes:
                causes.append((f"{where}.volumeMounts", f"Not found: {mount['name']!r}"))
            if ":" in mount["mountPath"]:
                causes.append((f"{where}.volumeMounts", "mountPath must not contain ':'"))
        causes += unserved(container, where)
        causes += resource_causes(container.get("resources") or {}, f"{where}.resources")
    affinity = spec.get("affinity") or {}
    for key in affinity.keys() - {"nodeAffinity"}:
        causes.append((f"{path}.affinity.{key}", "the test bed does not serve it"))
    if causes:
        raise invalid(kind, name, *causes)


def unserved(container, where):
    """Yield what the test bed cannot do for a container: it refuses rather than ignores."""
    if container.get("lifecycle"):
        yield f"{where}.lifecycle", "the test bed does not serve it"
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        if container.get(name) and not container[name].keys() & {"httpGet", "tcpSocket"}:
            yield f"{where}.{name}", "the test bed serves httpGet and tcpSocket only"


def resource_causes(resources, where):
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for key, text in [*limits.items(), *requests.items()]:
        try:
            amount(text)
        except ValueError as error:
            yield f"{where}.{key}", str(error)
            return
    for key, text in requests.items():
        if key in limits and amount(text) > amount(limits[key]):
            yield f"{where}.requests.{key}", f"must be less than or equal to {key} limit"
        if "/" in key and limits.get(key) != text:
            yield f"{where}.limits.{key}", "Limit must be set and equal to the request"


def check_pod_change(kind, before, after):
    """Refuse a change of a pod's spec beyond what Kubernetes allows."""

    def fixed(spec):
        kept = {key: value for key, value in spec.items() if key not in CHANGEABLE}
        for part in ("containers", "initContainers"):
            if part in kept:
                kept[part] = [{**entry, "image": ""} for entry in kept[part]]
        return kept

    if fixed(before["spec"]) != fixed(after["spec"]):
        text = "Forbidden: pod updates may not change fields other than the image of a container"
        raise invalid(kind, after["metadata"]["name"], ("spec", text))


def check(kind, obj, before=None):
    """Raise an `ApiError` if the API server of Kubernetes would refuse this object."""
    check_metadata(kind, obj)
    check_schema(kind, obj)
    name = obj["metadata"].get("name", "")
    if kind.kind in {"Secret", "ConfigMap"}:
        check_data(kind, obj)
    fixed = kind.kind in {"Secret", "ConfigMap"} and before and before.get("immutable")
    if fixed and (before.get("data"), True) != (obj.get("data"), obj.get("immutable")):
        raise invalid(kind, name, ("data", "Forbidden: field is immutable"))
    if kind.kind == "Pod":
        check_pod_spec(kind, name, obj["spec"])
        if before:
            check_pod_change(kind, before, obj)
    template = (obj.get("spec") or {}).get("template") if kind.group in {"apps", "batch"} else None
    if template:
        check_pod_spec(kind, name, template["spec"], "spec.template.spec")
