"""The controllers of Jobs, ReplicaSets and Deployments."""

import copy
import datetime as dt
import hashlib
import json
import logging

from .admission import admit
from .errors import ApiError
from .nodes import condition
from .store import now

ENDED = {"Succeeded", "Failed"}
logger = logging.getLogger("kubernetes_bed")


def age(moment):
    """Return the seconds since a moment that Kubernetes wrote."""
    then = dt.datetime.strptime(moment, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=dt.UTC)
    return (dt.datetime.now(dt.UTC) - then).total_seconds()


def controlled(obj, uid):
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid and owner.get("controller") for owner in owners)


class Workloads:
    """Makes pods for the objects that ask for them, and reports on them."""

    def __init__(self, store, kinds, tell):
        self.store = store
        self.kinds = kinds
        self.pods = kinds.of("pods")
        self.tell = tell
        #: uid of a job -> uid of a pod of it -> its last phase.
        self.seen = {}

    def reconcile(self):
        """Bring all workloads one step further."""
        for plural, group, step in (
            ("jobs", "batch", self.job),
            ("deployments", "apps", self.deployment),
            ("replicasets", "apps", self.replica_set),
        ):
            kind = self.kinds.of(plural, group)
            for obj in self.store.all(plural, group):
                if "deletionTimestamp" not in obj["metadata"]:
                    step(kind, obj)

    def owned(self, plural, owner, group=""):
        namespace, uid = owner["metadata"]["namespace"], owner["metadata"]["uid"]
        return [obj for obj in self.store.all(plural, group, namespace) if controlled(obj, uid)]

    def make(self, kind, owner, body, prefix):
        """Create an object that an owner controls; return whether its namespace takes it."""
        metadata = owner["metadata"]
        reference = {key: owner[key] for key in ("apiVersion", "kind")}
        reference |= {
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        body = copy.deepcopy(body)
        body["metadata"] = (body.get("metadata") or {}) | {"ownerReferences": [reference]}
        if kind is self.pods:  # a name in the template of pods does not count
            body["metadata"].pop("name", None)
            body["metadata"]["generateName"] = f"{prefix}-"
        try:
            obj = admit(self.store, self.kinds, kind, metadata["namespace"], body)
            self.store.create(kind, metadata["namespace"], obj)
        except ApiError as error:
            self.tell(owner, "Warning", "FailedCreate", f"Error creating: {error.message}")
            return False
        return True

    def remove_pod(self, pod):
        ended = pod["status"].get("phase") in ENDED or not pod["spec"].get("nodeName")
        grace = 0 if ended else pod["spec"].get("terminationGracePeriodSeconds", 30)
        self.store.delete(self.pods, pod, grace)

    # Jobs -----------------------------------------------------------------------------------------

    def job(self, kind, job):
        spec, status = job["spec"], job.get("status") or {}
        finished = next(
            (c for c in status.get("conditions") or () if c["type"] in {"Complete", "Failed"}), None
        )
        pods = self.owned("pods", job)
        if finished is not None:
            kept = spec.get("ttlSecondsAfterFinished")
            if kept is not None and age(finished["lastTransitionTime"]) >= kept:
                self.store.delete(kind, job)
            return
        active, succeeded, failed = self.count(job, pods)
        started = status.get("startTime") or now()
        deadline = spec.get("activeDeadlineSeconds")
        wanted = spec.get("completions", 1)
        verdict = None
        if succeeded >= wanted:
            verdict = "Complete", "CompletionsReached", "Reached expected number of succeeded pods"
        elif deadline is not None and age(started) >= deadline:
            verdict = "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
        elif failed > spec.get("backoffLimit", 6):
            verdict = (
                "Failed",
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
            )
        missing = min(spec.get("parallelism", 1), wanted - succeeded) - len(active)
        if verdict is None and not spec.get("suspend") and missing > 0:
            made = self.job_pods(job, missing)
            active += [None] * made
        if verdict is not None:
            for pod in active:
                self.remove_pod(pod)
            active = []

        def put(obj):
            obj["status"] = (obj.get("status") or {}) | {
                "startTime": started,
                "active": len(active),
                "succeeded": succeeded,
                "failed": failed,
            }
            if verdict is not None:
                condition(obj, verdict[0], "True", *verdict[1:])

        self.store.change(kind, job, put)

    def count(self, job, pods):
        """Return the pods of a job that run, and how many succeeded and failed, gone ones too."""
        seen = self.seen.setdefault(job["metadata"]["uid"], {})
        active = []
        present = set()
        for pod in pods:
            phase = pod["status"].get("phase")
            present.add(pod["metadata"]["uid"])
            going = "deletionTimestamp" in pod["metadata"]
            seen[pod["metadata"]["uid"]] = "Failed" if going and phase not in ENDED else phase
            if not going and phase not in ENDED:
                active.append(pod)
        for uid in seen.keys() - present:
            if seen[uid] not in ENDED:
                seen[uid] = "Failed"
        phases = list(seen.values())
        return active, phases.count("Succeeded"), phases.count("Failed")

    def job_pods(self, job, count):
        metadata = job["metadata"]
        marks = {"controller-uid": metadata["uid"], "job-name": metadata["name"]}
        marks |= {f"batch.kubernetes.io/{key}": value for key, value in marks.items()}
        body = {key: copy.deepcopy(value) for key, value in job["spec"]["template"].items()}
        body.setdefault("metadata", {})["labels"] = (
            body.get("metadata", {}).get("labels") or {}
        ) | marks
        return sum(self.make(self.pods, job, body, metadata["name"]) for _ in range(count))

    # Replicas -------------------------------------------------------------------------------------

    def deployment(self, kind, deployment):
        """Keep one ReplicaSet of the present template; older ones are deleted."""
        template = deployment["spec"]["template"]
        mark = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:9]
        name = f"{deployment['metadata']['name']}-{mark}"
        sets = self.kinds.of("replicasets", "apps")
        replicas = deployment["spec"].get("replicas", 1)
        found = {
            obj["metadata"]["name"]: obj for obj in self.owned("replicasets", deployment, "apps")
        }
        for other, obj in found.items():
            if other != name:
                self.store.delete(sets, obj)
        if name not in found:
            spec = {
                "replicas": replicas,
                "selector": deployment["spec"]["selector"],
                "template": template,
            }
            self.make(
                sets,
                deployment,
                {
                    "metadata": {"name": name, "labels": template["metadata"].get("labels")},
                    "spec": spec,
                },
                name,
            )
            return

        def scale(obj):
            obj["spec"]["replicas"] = replicas

        self.store.change(sets, found[name], scale)
        self.describe(
            kind, deployment, (found[name].get("status") or {}).get("readyReplicas", 0), replicas
        )

    def replica_set(self, kind, replica_set):
        pods = [
            pod
            for pod in self.owned("pods", replica_set)
            if "deletionTimestamp" not in pod["metadata"]
        ]
        active = [pod for pod in pods if pod["status"].get("phase") not in ENDED]
        wanted = replica_set["spec"].get("replicas", 1)
        for _ in range(wanted - len(active)):
            self.make(
                self.pods,
                replica_set,
                replica_set["spec"]["template"],
                replica_set["metadata"]["name"],
            )
        surplus = sorted(active, key=lambda pod: pod["metadata"]["creationTimestamp"])[wanted:]
        for pod in surplus:
            self.remove_pod(pod)
        ready = sum(
            c["type"] == "Ready" and c["status"] == "True"
            for pod in active
            for c in pod["status"].get("conditions") or ()
        )
        self.describe(kind, replica_set, ready, len(active))

    def describe(self, kind, obj, ready, replicas):
        def put(after):
            after["status"] = (after.get("status") or {}) | {
                "replicas": replicas,
                "readyReplicas": ready,
                "availableReplicas": ready,
                "observedGeneration": after["metadata"]["generation"],
            }

        self.store.change(kind, obj, put)
