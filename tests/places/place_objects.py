"""The objects of clusters in the namespace of the Kubernetes test bed, as its administrator sees them."""

import asyncio
import json

import pytest
import yaml

from scalable.providers.kubernetes.api import KubernetesApi, Resource
from scalable.providers.kubernetes.permissions import role

RBAC = "rbac.authorization.k8s.io/v1"
KINDS = {
    "jobs": "batch/v1",
    "pods": "",
    "secrets": "",
    "services": "",
    "serviceaccounts": "",
    "roles": RBAC,
    "rolebindings": RBAC,
}
JOBS = Resource("jobs", "default", "batch/v1")


def asked(bed, function):
    """Ask the API server something as its administrator."""

    async def ask():
        api = KubernetesApi(None)
        try:
            return await function(api)
        finally:
            await api.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(bed.kubeconfig("admin")))
        return asyncio.run(ask())


def grant(bed, namespace, rules, without="", labels=None):
    """Make a namespace in which the user `nobody` may do what the printed Role of rules allows."""
    bed.add_namespace(namespace, labels)
    granted = yaml.safe_load(role(namespace, rules))
    granted["rules"] = [rule for rule in granted["rules"] if rule["resources"] != [without]]
    group = RBAC.partition("/")[0]
    binding = {
        "apiVersion": RBAC,
        "kind": "RoleBinding",
        "metadata": {"name": "nobody"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "nobody"}],
        "roleRef": {"kind": "Role", "apiGroup": group, "name": "scalable"},
    }

    async def create(api):
        for plural, body in (("roles", granted), ("rolebindings", binding)):
            await api.create(Resource(plural, namespace, RBAC), json.dumps(body).encode())

    asked(bed, create)


def objects(bed, namespace="default"):
    """Kind and name of each object in a namespace that belongs to a cluster."""

    async def look(api):
        found = set()
        for plural, group in KINDS.items():
            answer = await api.request("GET", Resource(plural, namespace, group))
            found |= {
                (plural, thing["metadata"]["name"])
                for thing in answer["items"]
                if "scalable/cluster" in (thing["metadata"].get("labels") or {})
            }
        return found

    return asked(bed, look)


def root_of(bed, name):
    """The root object of the cluster of a name; None if there is none."""

    async def look(api):
        found = (await api.request("GET", JOBS))["items"]
        role = "scalable/role"
        return [
            job
            for job in found
            if name in job["metadata"]["name"] and job["metadata"]["labels"][role] == "scheduler"
        ]

    return next(iter(asked(bed, look)), None)
