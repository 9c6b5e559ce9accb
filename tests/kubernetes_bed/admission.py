"""What the API server adds to, or holds against, an object that is created: defaults, quotas."""

import base64
import copy

from .errors import ApiError
from .quantities import amount, total

#: Where containers find the token of their service account.
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def admit(store, kinds, kind, namespace, obj):
    """Return the object with defaults; raise an `ApiError` if its namespace does not take it."""
    obj = copy.deepcopy(obj)
    if kind.namespaced:
        space = store.find("namespaces", "", namespace)
        if space is None:
            raise ApiError(404, f'namespaces "{namespace}" not found')
        if "deletionTimestamp" in space["metadata"]:
            text = f"{kind.qualified} is forbidden: unable to create new content in namespace {namespace} because it is being terminated"
            raise ApiError(403, text)
    if kind.kind == "Secret":
        strings = obj.pop("stringData", None) or {}
        if strings:
            encoded = {k: base64.b64encode(v.encode()).decode() for k, v in strings.items()}
            obj["data"] = (obj.get("data") or {}) | encoded
        obj.setdefault("type", "Opaque")
    if kind.kind == "Pod":
        pod_defaults(store, namespace, obj)
        secure(store, namespace, obj)
    if kind.kind == "Namespace":
        obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
        obj["status"] = {"phase": "Active"}
    if kind.kind == "Service":
        obj["spec"].setdefault("type", "ClusterIP")
        for port in obj["spec"].get("ports") or ():
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port["port"])
        obj["status"] = {"loadBalancer": {}}
    elif kind.kind == "CustomResourceDefinition":
        conditions = [{"type": word, "status": "True"} for word in ("NamesAccepted", "Established")]
        obj["status"] = {"conditions": conditions, "acceptedNames": obj["spec"]["names"]}
    elif kind.kind == "PersistentVolumeClaim":
        obj["status"] = {"phase": "Pending"}
    charge(store, kind, namespace, obj)
    return obj


def pod_defaults(store, namespace, pod):
    spec = pod["spec"]
    account = spec.setdefault("serviceAccountName", "default")
    if store.find("serviceaccounts", namespace, account) is None:
        text = f'pods "{pod["metadata"].get("name", "")}" is forbidden: error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
        raise ApiError(403, text)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("priority", priority(store, pod, spec))
    spec.setdefault("tolerations", [])
    for container in spec["containers"]:
        container.setdefault("imagePullPolicy", "IfNotPresent")
        resources = container.setdefault("resources", {})
        if resources.get("limits"):
            resources["requests"] = resources["limits"] | (resources.get("requests") or {})
    pod["status"] = {"phase": "Pending", "qosClass": quality(spec)}


def secure(store, namespace, pod):
    """Refuse a pod that the Pod Security Standard `restricted` forbids, where it is enforced."""
    labels = store.find("namespaces", "", namespace)["metadata"].get("labels") or {}
    if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
        return
    spec = pod["spec"]
    faults = []
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        given = (spec.get("securityContext") or {}) | (container.get("securityContext") or {})
        title = f'container "{container["name"]}" must set securityContext'
        if given.get("allowPrivilegeEscalation") is not False:
            faults.append(
                f"allowPrivilegeEscalation != false ({title}.allowPrivilegeEscalation=false)"
            )
        if "ALL" not in (given.get("capabilities") or {}).get("drop", ()):
            faults.append(f'unrestricted capabilities ({title}.capabilities.drop=["ALL"])')
        if given.get("runAsNonRoot") is not True:
            faults.append(f"runAsNonRoot != true ({title}.runAsNonRoot=true)")
        if (given.get("seccompProfile") or {}).get("type") not in {"RuntimeDefault", "Localhost"}:
            faults.append(f'seccompProfile ({title}.seccompProfile.type to "RuntimeDefault")')
    if any("hostPath" in volume for volume in spec.get("volumes") or ()):
        faults.append("restricted volume types (hostPath)")
    if faults:
        name = pod["metadata"].get("name") or pod["metadata"].get("generateName", "")
        text = f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": {", ".join(faults)}'
        raise ApiError(403, text)


def priority(store, pod, spec):
    name = spec.get("priorityClassName")
    if not name:
        return 0
    found = store.find("priorityclasses", "", name, "scheduling.k8s.io")
    if found is None:
        text = f'pods "{pod["metadata"].get("name", "")}" is forbidden: no PriorityClass with name {name} was found'
        raise ApiError(403, text)
    return found["value"]


def quality(spec):
    resources = [container.get("resources") or {} for container in spec["containers"]]
    if not any(r.get("limits") or r.get("requests") for r in resources):
        return "BestEffort"
    same = all(
        r.get("limits", {}).keys() >= {"cpu", "memory"} and r["limits"] == r.get("requests")
        for r in resources
    )
    return "Guaranteed" if same else "Burstable"


# Quotas -------------------------------------------------------------------------------------------


def used(store, namespace, hard, extra=None):
    """Return how much of each resource of a quota a namespace uses, `extra` being one more pod."""
    pods = [
        pod
        for pod in store.all("pods", "", namespace)
        if pod["status"].get("phase") not in {"Succeeded", "Failed"}
    ]
    pods += [extra] if extra else []
    result = {}
    for key in hard:
        if key.startswith("limits."):
            name = key.removeprefix("limits.")
            result[key] = total([name], pods, "limits")[name]
        elif key in {"pods", "count/pods"}:
            result[key] = len(pods)
        elif key.startswith("requests.") or key in {"cpu", "memory"}:
            name = key.removeprefix("requests.")
            result[key] = total([name], pods)[name]
        else:
            plural, _, group = key.removeprefix("count/").partition(".")
            result[key] = len(store.all(plural, group, namespace))
    return result


def charge(store, kind, namespace, obj):
    """Refuse an object that would exceed a quota of its namespace."""
    for quota in store.all("resourcequotas", "", namespace) if kind.namespaced else ():
        hard = quota["spec"].get("hard") or {}
        if kind.kind == "Pod":
            must_say(quota, hard, obj)
            hard = {key: value for key, value in hard.items() if of_pods(key)}
            before, after = used(store, namespace, hard), used(store, namespace, hard, obj)
        else:
            names = {kind.plural, f"count/{kind.qualified}"}
            hard = {key: value for key, value in hard.items() if key in names}
            before = used(store, namespace, hard)
            after = {key: value + 1 for key, value in before.items()}
        over = [key for key in hard if after[key] > amount(hard[key]) and after[key] > before[key]]
        if over:
            requested = {key: after[key] - before[key] for key in over}
            said = [
                ",".join(f"{key}={number(values[key])}" for key in over)
                for values in (requested, before, hard)
            ]
            name = obj["metadata"].get("name", "")
            text = (
                f'{kind.qualified} "{name}" is forbidden: exceeded quota: {quota["metadata"]["name"]}'
                f", requested: {said[0]}, used: {said[1]}, limited: {said[2]}"
            )
            raise ApiError(403, text, details={"name": name, "kind": kind.plural})


def of_pods(key):
    """Whether a quota's key concerns pods."""
    return key in {"pods", "count/pods", "cpu", "memory"} or key.startswith(
        ("limits.", "requests.")
    )


def number(value):
    return value if isinstance(value, str) else f"{value:g}"


def must_say(quota, hard, pod):
    """Refuse a pod that does not say how much it needs of something that is limited."""
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        said = {f"limits.{key}" for key in resources.get("limits") or {}}
        for key in resources.get("requests") or {}:
            said |= {key, f"requests.{key}"}
        wanted = {key for key in hard if key.split(".")[-1] in {"cpu", "memory"}}
        if missing := sorted(wanted - said):
            text = f'pods "{pod["metadata"].get("name", "")}" is forbidden: failed quota: {quota["metadata"]["name"]}: must specify {",".join(missing)} for: {container["name"]}'
            raise ApiError(403, text)


def describe_quotas(store, kinds):
    """Write into each quota how much of it is used."""
    kind = kinds.of("resourcequotas")
    for quota in store.all("resourcequotas"):
        hard = quota["spec"].get("hard") or {}
        sums = used(store, quota["metadata"]["namespace"], hard)
        status = {"hard": hard, "used": {key: number(value) for key, value in sums.items()}}

        def put(obj, status=status):
            obj["status"] = status

        store.change(kind, quota, put)
