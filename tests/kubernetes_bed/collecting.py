"""What controllers clean up: dependents of deleted owners, namespaces, claims."""

from .quantities import amount


class Collector:
    """Deletes what nobody owns any more, empties namespaces that end, binds claims."""

    def __init__(self, store, kinds):
        self.store = store
        self.kinds = kinds

    def everything(self):
        """Yield (kind, object) of all that the store holds."""
        for kind in list(self.kinds.table.values()):
            if not kind.virtual:
                for obj in list(self.store.of(kind).values()):
                    yield kind, obj

    def collect(self):
        """Bring everything one step further."""
        found = list(self.everything())
        present = {obj["metadata"]["uid"]: obj for _, obj in found}
        for kind, obj in found:
            owners = obj["metadata"].get("ownerReferences") or ()
            if owners and "deletionTimestamp" not in obj["metadata"]:
                self.orphaned(kind, obj, owners, present)
            if "deletionTimestamp" in obj["metadata"]:
                self.finish(kind, obj, found)
        for kind, space in [(k, o) for k, o in found if k.plural == "namespaces" and not k.group]:
            if "deletionTimestamp" in space["metadata"]:
                self.empty(kind, space, found)
        self.bind_claims()

    def orphaned(self, kind, obj, owners, present):
        """Delete an object whose owners are gone, or one that ends in the foreground."""
        alive = [present[o["uid"]] for o in owners if o["uid"] in present]
        waiting = [
            o for o in alive if "foregroundDeletion" in (o["metadata"].get("finalizers") or ())
        ]
        if not alive or len(waiting) == len(alive):
            grace = 0
            if kind.plural == "pods" and obj["spec"].get("nodeName"):
                ended = obj["status"].get("phase") in {"Succeeded", "Failed"}
                grace = 0 if ended else obj["spec"].get("terminationGracePeriodSeconds", 30)
            self.store.delete(kind, obj, grace)

    def finish(self, kind, obj, found):
        """Take off the finalizers of the collector itself when their work is done."""
        finalizers = obj["metadata"].get("finalizers") or ()
        uid = obj["metadata"]["uid"]

        def mine(other):
            return any(o["uid"] == uid for o in other["metadata"].get("ownerReferences") or ())

        if "foregroundDeletion" in finalizers:
            blocked = any(mine(other) and self.exists(k, other) for k, other in found)
            if not blocked:
                self.drop(kind, obj, "foregroundDeletion")
        if "orphan" in finalizers:
            for other_kind, other in found:
                if mine(other):
                    self.disown(other_kind, other, uid)
            self.drop(kind, obj, "orphan")

    def exists(self, kind, obj):
        key = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        held = self.store.of(kind).get(key)
        return held is not None and held["metadata"]["uid"] == obj["metadata"]["uid"]

    def disown(self, kind, obj, uid):
        def change(after):
            kept = [o for o in after["metadata"]["ownerReferences"] if o["uid"] != uid]
            after["metadata"]["ownerReferences"] = kept

        self.store.change(kind, obj, change)

    def drop(self, kind, obj, finalizer):
        def change(after):
            after["metadata"]["finalizers"] = [
                f for f in after["metadata"].get("finalizers") or () if f != finalizer
            ]

        self.store.change(kind, obj, change)

    def empty(self, kind, space, found):
        """Delete all in a namespace that ends, then the namespace."""
        name = space["metadata"]["name"]
        inside = [
            (k, o) for k, o in found if k.namespaced and o["metadata"].get("namespace") == name
        ]
        left = [(k, o) for k, o in inside if self.exists(k, o)]
        for other_kind, obj in left:
            if "deletionTimestamp" not in obj["metadata"]:
                self.store.delete(other_kind, obj, 1 if obj["spec"].get("nodeName") else 0) if (
                    other_kind.plural == "pods"
                ) else self.store.delete(other_kind, obj)
        if not left:
            self.store.remove(kind, space)

    def bind_claims(self):
        """Bind each claim whose storage class provisions volumes by itself."""
        kind = self.kinds.of("persistentvolumeclaims")
        for claim in self.store.all("persistentvolumeclaims"):
            name = claim["spec"].get("storageClassName", "standard")
            if claim["status"].get("phase") == "Bound" or not self.store.find(
                "storageclasses", "", name, "storage.k8s.io"
            ):
                continue
            size = claim["spec"]["resources"]["requests"]["storage"]
            amount(size)

            def bind(obj, size=size):
                obj["spec"]["volumeName"] = f"pvc-{obj['metadata']['uid']}"
                obj["status"] = {
                    "phase": "Bound",
                    "accessModes": obj["spec"]["accessModes"],
                    "capacity": {"storage": size},
                }

            self.store.change(kind, claim, bind)
