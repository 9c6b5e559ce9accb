"""Nodes with a capacity, and the scheduler that gives pods to them or says why not."""

from collections import Counter

from .quantities import amount, total
from .selecting import matches_labels
from .store import now

RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "ephemeral-storage")


def node(name, cpu="8", memory="32Gi", gpus=0, labels=None, taints=None):
    """Return the body of a node."""
    capacity = {"cpu": str(cpu), "memory": memory, "pods": "110", "ephemeral-storage": "100Gi"}
    if gpus:
        capacity["nvidia.com/gpu"] = str(gpus)
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": taints} if taints else {},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "lastTransitionTime": now(),
                }
            ],
            "nodeInfo": {"kubeletVersion": "v1.37.0", "architecture": "amd64"},
        },
    }


def tolerated(taint, tolerations):
    for entry in tolerations or ():
        if entry.get("effect") not in {None, "", taint["effect"]}:
            continue
        if entry.get("operator") == "Exists":
            if entry.get("key") in {None, "", taint["key"]}:
                return True
        elif entry.get("key") == taint["key"] and entry.get("value", "") == taint.get("value", ""):
            return True
    return False


def ready(node):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])


class Scheduler:
    """Assigns each pod without a node to one that has room."""

    def __init__(self, store, kinds):
        self.store = store
        self.pods = kinds.of("pods")

    def on(self, name):
        """Return the pods that use resources of a node."""
        return [
            pod
            for pod in self.store.all("pods")
            if pod["spec"].get("nodeName") == name
            and pod["status"].get("phase") not in {"Succeeded", "Failed"}
        ]

    def obstacle(self, pod, node):
        """Return why a pod cannot run on a node, "" if it can."""
        spec = pod["spec"]
        labels = node["metadata"].get("labels") or {}
        if not ready(node):
            return "node(s) were not ready"
        if node["spec"].get("unschedulable"):
            return "node(s) were unschedulable"
        for taint in node["spec"].get("taints") or ():
            if taint["effect"] != "PreferNoSchedule" and not tolerated(
                taint, spec.get("tolerations")
            ):
                return (
                    f"node(s) had untolerated taint(s) {{{taint['key']}: {taint.get('value', '')}}}"
                )
        if any(labels.get(k) != v for k, v in (spec.get("nodeSelector") or {}).items()):
            return "node(s) didn't match Pod's node affinity/selector"
        wanted = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        terms = wanted.get("requiredDuringSchedulingIgnoredDuringExecution")
        if terms and not any(matches_labels(t, labels) for t in terms["nodeSelectorTerms"]):
            return "node(s) didn't match Pod's node affinity/selector"
        present = self.on(node["metadata"]["name"])
        room = node["status"]["allocatable"]
        if len(present) >= amount(room["pods"]):
            return "Too many pods"
        used, asked = total(RESOURCES, present), total(RESOURCES, [pod])
        for key in RESOURCES:
            if asked[key] and used[key] + asked[key] > amount(room.get(key, 0)):
                return f"Insufficient {key}"
        return ""

    def unbound(self, pod):
        """Return why the claims of a pod do not let it run, "" if they do."""
        for volume in pod["spec"].get("volumes") or ():
            if "persistentVolumeClaim" in volume:
                name = volume["persistentVolumeClaim"]["claimName"]
                claim = self.store.find(
                    "persistentvolumeclaims", pod["metadata"]["namespace"], name
                )
                if claim is None:
                    return f'persistentvolumeclaim "{name}" not found'
                if claim["status"].get("phase") != "Bound":
                    return "pod has unbound immediate PersistentVolumeClaims"
        return ""

    def schedule(self):
        """Give each waiting pod to a node, or say in its status why not."""
        waiting = [
            pod
            for pod in self.store.all("pods")
            if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        ]
        waiting.sort(
            key=lambda pod: (
                -pod["spec"].get("priority", 0),
                int(pod["metadata"]["resourceVersion"]),
            )
        )
        for pod in waiting:
            self.place(pod)

    def place(self, pod):
        nodes = self.store.all("nodes")
        trouble = self.unbound(pod)
        reasons = Counter(trouble or self.obstacle(pod, node) for node in nodes)
        if not reasons[""]:
            found = ", ".join(
                f"{count} {reason}" for reason, count in sorted(reasons.items()) if reason
            )
            message = f"0/{len(nodes)} nodes are available: {trouble or found}."
            self.refuse(pod, message)
            return
        best = min(
            (node for node in nodes if not self.obstacle(pod, node)),
            key=lambda node: len(self.on(node["metadata"]["name"])),
        )

        def bind(obj):
            obj["spec"]["nodeName"] = best["metadata"]["name"]
            condition(obj, "PodScheduled", "True")

        self.store.change(self.pods, pod, bind)

    def refuse(self, pod, message):
        def tell(obj):
            condition(obj, "PodScheduled", "False", "Unschedulable", message)

        self.store.change(self.pods, pod, tell)


def condition(obj, type_, status, reason="", message=""):
    """Set a condition in the status of an object."""
    conditions = obj["status"].setdefault("conditions", [])
    entry = {"type": type_, "status": status}
    if reason:
        entry |= {"reason": reason, "message": message}
    for old in conditions:
        if old["type"] == type_:
            if {k: old.get(k) for k in ("status", "reason", "message")} == {
                k: entry.get(k) for k in ("status", "reason", "message")
            }:
                return
            conditions.remove(old)
            break
    conditions.append(entry | {"lastTransitionTime": now()})
