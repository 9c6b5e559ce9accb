"""Kinds of objects that the API server knows, and what discovery says of them."""

from dataclasses import dataclass, field

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True)
class Kind:
    """One kind of object in one version of its group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    subresources: tuple = ()
    short: tuple = ()
    #: Only POST, nothing is kept: the reviews.
    virtual: bool = False
    #: Schema of a custom resource, else None.
    schema: dict | None = field(default=None, compare=False, hash=False)

    @property
    def api_version(self):
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self):
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def discovery(self):
        """Return the entries of an APIResourceList: the kind and its subresources."""
        own = {
            "name": self.plural,
            "singularName": self.kind.lower(),
            "namespaced": self.namespaced,
            "kind": self.kind,
            "verbs": ["create"] if self.virtual else VERBS,
            "shortNames": list(self.short),
        }
        parts = [
            {
                "name": f"{self.plural}/{part}",
                "singularName": "",
                "namespaced": self.namespaced,
                "kind": self.kind,
                "verbs": ["create", "get"]
                if part in {"portforward", "exec", "attach", "log", "eviction"}
                else ["get", "patch", "update"],
            }
            for part in self.subresources
        ]
        return [own, *parts]


POD_PARTS = ("status", "log", "portforward", "eviction")
SCALED = ("status", "scale")
RBAC = "rbac.authorization.k8s.io"
AUTHORIZATION = "authorization.k8s.io"

BUILT_IN = [
    Kind("", "v1", "namespaces", "Namespace", False, ("status", "finalize"), ("ns",)),
    Kind("", "v1", "pods", "Pod", True, POD_PARTS, ("po",)),
    Kind("", "v1", "services", "Service", True, ("status",), ("svc",)),
    Kind("", "v1", "endpoints", "Endpoints", True, (), ("ep",)),
    Kind("", "v1", "secrets", "Secret"),
    Kind("", "v1", "configmaps", "ConfigMap", True, (), ("cm",)),
    Kind("", "v1", "events", "Event", True, (), ("ev",)),
    Kind("", "v1", "nodes", "Node", False, ("status",), ("no",)),
    Kind("", "v1", "serviceaccounts", "ServiceAccount", True, (), ("sa",)),
    Kind("", "v1", "resourcequotas", "ResourceQuota", True, ("status",), ("quota",)),
    Kind("", "v1", "limitranges", "LimitRange", True, (), ("limits",)),
    Kind("", "v1", "persistentvolumes", "PersistentVolume", False, ("status",), ("pv",)),
    Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("status",), ("pvc",)),
    Kind("apps", "v1", "deployments", "Deployment", True, SCALED, ("deploy",)),
    Kind("apps", "v1", "replicasets", "ReplicaSet", True, SCALED, ("rs",)),
    Kind("apps", "v1", "statefulsets", "StatefulSet", True, SCALED, ("sts",)),
    Kind("batch", "v1", "jobs", "Job", True, ("status",)),
    Kind("batch", "v1", "cronjobs", "CronJob", True, ("status",), ("cj",)),
    Kind(
        "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("status",), ("pdb",)
    ),
    Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, (), ("netpol",)),
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, (), ("pc",)),
    Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, (), ("sc",)),
    Kind(RBAC, "v1", "roles", "Role"),
    Kind(RBAC, "v1", "rolebindings", "RoleBinding"),
    Kind(RBAC, "v1", "clusterroles", "ClusterRole", False),
    Kind(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Kind(
        AUTHORIZATION,
        "v1",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        False,
        (),
        (),
        True,
    ),
    Kind(
        AUTHORIZATION,
        "v1",
        "selfsubjectrulesreviews",
        "SelfSubjectRulesReview",
        False,
        (),
        (),
        True,
    ),
    Kind(
        "authentication.k8s.io",
        "v1",
        "selfsubjectreviews",
        "SelfSubjectReview",
        False,
        (),
        (),
        True,
    ),
    Kind(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        False,
        ("status",),
        ("crd",),
    ),
]


class Kinds:
    """The table of kinds; a CustomResourceDefinition adds to it."""

    def __init__(self):
        self.table = {(kind.group, kind.version, kind.plural): kind for kind in BUILT_IN}

    def find(self, group, version, plural):
        return self.table.get((group, version, plural))

    def of(self, plural, group=""):
        """Return the kind with this plural; the first version of its group."""
        return next(k for k in self.table.values() if (k.plural, k.group) == (plural, group))

    def by_kind(self, api_version, kind):
        return next(
            (k for k in self.table.values() if (k.api_version, k.kind) == (api_version, kind)), None
        )

    def define(self, definition):
        """Add what a CustomResourceDefinition describes."""
        spec = definition["spec"]
        names = spec["names"]
        for version in spec["versions"]:
            kind = Kind(
                spec["group"],
                version["name"],
                names["plural"],
                names["kind"],
                spec["scope"] == "Namespaced",
                tuple(version.get("subresources") or ()),
                tuple(names.get("shortNames") or ()),
                schema=(version.get("schema") or {}).get("openAPIV3Schema"),
            )
            self.table[kind.group, kind.version, kind.plural] = kind

    def undefine(self, definition):
        """Forget the kind that a CustomResourceDefinition described; return its group and plural."""
        group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
        for key in [k for k in self.table if (k[0], k[2]) == (group, plural)]:
            del self.table[key]
        return group, plural

    def groups(self):
        """Return group -> versions, without the core group."""
        found = {}
        for kind in self.table.values():
            if kind.group and kind.version not in found.setdefault(kind.group, []):
                found[kind.group].append(kind.version)
        return found

    def group_discovery(self, group):
        versions = [
            {"groupVersion": f"{group}/{version}", "version": version}
            for version in self.groups()[group]
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def resources(self, group, version):
        return [
            entry
            for kind in self.table.values()
            if (kind.group, kind.version) == (group, version)
            for entry in kind.discovery()
        ]
