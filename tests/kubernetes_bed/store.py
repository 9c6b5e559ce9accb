"""Objects in memory: resource versions, watch history, finalizers, removal."""

import asyncio
import copy
import json
import uuid
from collections import defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from random import choices

from .errors import ApiError, conflict, not_found

LETTERS = "bcdfghjklmnpqrstvwxz2456789"
#: Events that are kept for watches that begin in the past.
HISTORY = 5000


def now(seconds=0.0):
    """Return a moment as Kubernetes writes it, `seconds` from now."""
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Event:
    """One change of one object."""

    version: int
    type: str
    kind: object
    object: dict
    before: dict | None

    def line(self, as_type=None):
        return json.dumps({"type": as_type or self.type, "object": self.object}).encode() + b"\n"


class Store:
    """All objects of the cluster; every write makes an `Event`."""

    def __init__(self, kinds):
        self.kinds = kinds
        self.objects = defaultdict(dict)
        self.versions = count(1)
        self.version = next(self.versions)
        self.history = deque(maxlen=HISTORY)
        #: Oldest version from which a watch may begin.
        self.oldest = 0
        self.watchers = set()
        #: Functions that are called with each event, in the order of the writes.
        self.listeners = []

    # Reading --------------------------------------------------------------------------------------

    def of(self, kind):
        return self.objects[kind.group, kind.plural]

    def get(self, kind, namespace, name):
        try:
            return self.of(kind)[namespace if kind.namespaced else "", name]
        except KeyError:
            raise not_found(kind, name) from None

    def find(self, plural, namespace, name, group=""):
        """Return an object or None."""
        return self.objects[group, plural].get((namespace, name))

    def list(self, kind, namespace=None, selector=None):
        found = self.of(kind)
        return [
            found[key]
            for key in sorted(found)
            if (not namespace or key[0] == namespace)
            and (selector is None or selector.matches(found[key]))
        ]

    def all(self, plural, group="", namespace=None):
        """Return all objects of a kind, of one namespace or of all."""
        found = self.objects[group, plural]
        return [obj for key, obj in found.items() if namespace in {None, key[0]}]

    # Writing --------------------------------------------------------------------------------------

    def _publish(self, type_, kind, obj, before):
        self.version = next(self.versions)
        obj["metadata"]["resourceVersion"] = str(self.version)
        event = Event(self.version, type_, kind, obj, before)
        if len(self.history) == self.history.maxlen:
            self.oldest = self.history[0].version
        self.history.append(event)
        for watcher in self.watchers:
            watcher.put_nowait(event)
        for listener in self.listeners:
            listener(event)
        return obj

    def create(self, kind, namespace, obj):
        """Keep a new object; its name may be generated."""
        obj = copy.deepcopy(obj)
        metadata = obj.setdefault("metadata", {})
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise ApiError(422, f"{kind.kind}: metadata.name or generateName is required")
            base = metadata["generateName"][:58]  # names of pods are host names too
            metadata["name"] = base + "".join(choices(LETTERS, k=5))
        space = namespace if kind.namespaced else ""
        key = space, metadata["name"]
        if key in self.of(kind):
            details = {"name": key[1], "kind": kind.plural, "group": kind.group}
            message = f'{kind.qualified} "{key[1]}" already exists'
            raise ApiError(409, message, "AlreadyExists", details)
        if space:
            metadata["namespace"] = space
        for mark in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(mark, None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
        obj |= {"apiVersion": kind.api_version, "kind": kind.kind}
        self.of(kind)[key] = obj
        return self._publish("ADDED", kind, obj, None)

    def replace(self, kind, obj, part=None):
        """Put another state of an object; `part` is `status` for that subresource alone."""
        metadata = obj["metadata"]
        before = self.get(kind, metadata.get("namespace", ""), metadata["name"])
        kept = before["metadata"]
        wanted = metadata.get("resourceVersion")
        if wanted and wanted != kept["resourceVersion"]:
            raise conflict(kind, kept["name"])
        if metadata.get("uid") and metadata["uid"] != kept["uid"]:
            raise conflict(kind, kept["name"])
        after = copy.deepcopy(before if part else obj)
        if part:
            after[part] = copy.deepcopy(obj.get(part) or {})
        elif "status" in kind.subresources:
            after.pop("status", None)
            if "status" in before:
                after["status"] = copy.deepcopy(before["status"])
        for field in ("uid", "creationTimestamp", "generation", "namespace", "resourceVersion"):
            if field in kept:
                after["metadata"][field] = kept[field]
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            after["metadata"].pop(field, None)
            if field in kept:
                after["metadata"][field] = kept[field]
        after |= {"apiVersion": kind.api_version, "kind": kind.kind}
        if after == before:
            return before
        if after.get("spec") != before.get("spec"):
            after["metadata"]["generation"] = kept.get("generation", 1) + 1
        return self._put(kind, after, before)

    def _put(self, kind, after, before):
        key = after["metadata"].get("namespace", ""), after["metadata"]["name"]
        self.of(kind)[key] = after
        if self.ended(after):
            return self.remove(kind, after)
        return self._publish("MODIFIED", kind, after, before)

    def change(self, kind, obj, function):
        """Change the newest state of an object by a function; return it, None if it is gone."""
        key = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        before = self.of(kind).get(key)
        if before is None or before["metadata"]["uid"] != obj["metadata"]["uid"]:
            return None
        after = copy.deepcopy(before)
        function(after)
        return before if after == before else self._put(kind, after, before)

    @staticmethod
    def ended(obj):
        """Whether nothing holds an object any more that is to be deleted."""
        metadata = obj["metadata"]
        return (
            "deletionTimestamp" in metadata
            and not metadata.get("finalizers")
            and not metadata.get("deletionGracePeriodSeconds")
            and not (obj["kind"] == "Namespace" and obj["spec"].get("finalizers"))
        )

    def delete(self, kind, obj, grace=0, finalizers=()):
        """Begin to delete an object: it goes at once without finalizers and grace."""

        def mark(after):
            metadata = after["metadata"]
            waiting = metadata.get("deletionGracePeriodSeconds", grace)
            metadata["deletionGracePeriodSeconds"] = min(waiting, grace)
            metadata.setdefault("deletionTimestamp", now(grace))
            if finalizers:
                metadata["finalizers"] = [*metadata.get("finalizers", ()), *finalizers]

        return self.change(kind, obj, mark)

    def remove(self, kind, obj):
        """Forget an object."""
        key = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        before = self.of(kind).pop(key, None)
        if before is None:
            return None
        return self._publish("DELETED", kind, copy.deepcopy(before), before)

    # Watching -------------------------------------------------------------------------------------

    def watch(self, since):
        """Return a queue of the events after a version; 410 if it is too old."""
        if since < self.oldest:
            raise ApiError(410, f"too old resource version: {since} ({self.oldest})")
        queue = asyncio.Queue()
        for event in self.history:
            if event.version > since:
                queue.put_nowait(event)
        self.watchers.add(queue)
        return queue

    def compact(self):
        """Forget the history: a watch can begin from now on only."""
        self.history.clear()
        self.oldest = self.version
