"""The HTTP of the API server: from a path and a verb to the store and back."""

import base64
import json
from dataclasses import dataclass

import yaml
from aiohttp import web

from .admission import admit
from .errors import ApiError
from .patching import apply_patch
from .selecting import Selector
from .validating import check
from .watching import watch

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
DISCOVERY = {"/healthz", "/livez", "/readyz", "/version", "/api", "/apis"}


@dataclass(frozen=True)
class Target:
    """The thing that a path names."""

    kind: object
    namespace: str
    name: str
    part: str


def parse(path, kinds):
    """Return the `Target` of a path; None if it is not one of a resource."""
    words = path.strip("/").split("/")
    if words[0] == "api" and len(words) > 2:
        group, version, rest = "", words[1], words[2:]
    elif words[0] == "apis" and len(words) > 3:
        group, version, rest = words[1], words[2], words[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    kind = kinds.find(group, version, rest[0])
    if kind is None or len(rest) > 3:
        return None
    rest = [*rest, "", ""]
    return Target(kind, namespace, rest[1], rest[2])


class ApiServer:
    """Answers the requests of clients from a `Store`."""

    def __init__(self, store, kinds, access, faults, streams):
        self.store = store
        self.kinds = kinds
        self.access = access
        self.faults = faults
        self.streams = streams

    def application(self):
        app = web.Application(middlewares=[self.guard], client_max_size=4 * 2**20)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    @web.middleware
    async def guard(self, request, handler):
        """Answer errors as `Status`, and count requests."""
        try:
            return await handler(request)
        except ApiError as error:
            headers = {}
            if error.code == 429:
                headers["Retry-After"] = str(error.details.get("retryAfterSeconds", 1))
            return web.json_response(error.status(), status=error.code, headers=headers)

    async def handle(self, request):
        path = request.path.rstrip("/") or "/"
        user = self.access.user(request.headers.get("Authorization", ""))
        target = parse(path, self.kinds)
        verb = self.verb(request, target)
        self.faults.count(verb, target, request)
        if target is None:
            return self.discovery(path, user)
        if user is None:
            raise ApiError(401, "Unauthorized")
        self.faults.refuse(verb, target)
        self.access.require(user, verb, target)
        if target.kind.virtual:
            asked = await body(request)
            expect(target.kind, asked, "")
            check(target.kind, asked)
            answer = self.access.review(user, target.kind, asked)
            return web.json_response(answer, status=201)
        if target.part in {"log", "portforward", "eviction", "exec", "attach"}:
            if target.part not in target.kind.subresources:
                raise ApiError(404, "the server could not find the requested resource")
            return await self.streams.answer(request, target)
        return await getattr(self, verb)(request, target)

    def verb(self, request, target):
        if request.method in {"GET", "HEAD"}:
            if target is None or target.name:
                single = target is None or "watch" not in request.query
                return "get" if single else "watch"
            watching = request.query.get("watch", "").lower() in {"1", "true"}
            return "watch" if watching else "list"
        if request.method == "DELETE" and target is not None and not target.name:
            return "deletecollection"
        if request.method not in VERBS:
            raise ApiError(405, f"the server does not allow {request.method}")
        return VERBS[request.method]

    # Discovery ------------------------------------------------------------------------------------

    def discovery(self, path, user):
        words = path.strip("/").split("/")
        groups = self.kinds.groups()
        if path in {"/healthz", "/livez", "/readyz"}:
            return web.Response(text="ok")
        if path == "/version":
            return web.json_response(
                {
                    "major": "1",
                    "minor": "37",
                    "gitVersion": "v1.37.0",
                    "gitCommit": "",
                    "gitTreeState": "clean",
                    "buildDate": "",
                    "goVersion": "",
                    "compiler": "",
                    "platform": "linux/amd64",
                }
            )
        if user is None:
            raise ApiError(401, "Unauthorized")
        if path == "/api":
            return web.json_response(
                {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
            )
        if path == "/apis":
            listed = [self.kinds.group_discovery(group) for group in groups]
            return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": listed})
        if len(words) == 2 and words[0] == "apis" and words[1] in groups:
            found = self.kinds.group_discovery(words[1])
            return web.json_response({"kind": "APIGroup", "apiVersion": "v1", **found})
        group, version = ("", words[1]) if words[0] == "api" else (*words[1:3], "", "")[:2]
        entries = self.kinds.resources(group, version)
        if not entries or len(words) != (3 if group else 2):
            raise ApiError(404, "the server could not find the requested resource")
        named = f"{group}/{version}" if group else version
        return web.json_response(
            {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": named,
                "resources": entries,
            }
        )

    # Verbs ----------------------------------------------------------------------------------------

    async def get(self, request, target):
        obj = self.store.get(target.kind, target.namespace, target.name)
        if target.part and target.part not in target.kind.subresources:
            raise ApiError(404, "the server could not find the requested resource")
        return web.json_response(obj)

    async def list(self, request, target):
        query = request.query
        selector = Selector(query.get("labelSelector"), query.get("fieldSelector"))
        found = self.store.list(target.kind, target.namespace, selector)
        metadata = {"resourceVersion": str(self.store.version)}
        start = 0
        if query.get("continue"):
            version, start = json.loads(base64.urlsafe_b64decode(query["continue"]))
            if version < self.store.oldest:
                raise ApiError(410, "The provided continue parameter is too old", "Expired")
        limit = int(query.get("limit") or 0)
        end = start + limit if limit else len(found)
        if end < len(found):
            token = json.dumps([self.store.version, end]).encode()
            metadata["continue"] = base64.urlsafe_b64encode(token).decode()
            metadata["remainingItemCount"] = len(found) - end
        kind = target.kind
        return web.json_response(
            {
                "kind": f"{kind.kind}List",
                "apiVersion": kind.api_version,
                "metadata": metadata,
                "items": found[start:end],
            }
        )

    async def create(self, request, target):
        kind = target.kind
        obj = await body(request)
        namespace = target.namespace
        expect(kind, obj, namespace)
        if kind.namespaced and not namespace:
            raise ApiError(405, "the server does not allow this method on the requested resource")
        check(kind, obj)
        obj = admit(self.store, self.kinds, kind, namespace, obj)
        if request.query.get("dryRun"):
            return web.json_response(obj, status=201)
        return web.json_response(self.store.create(kind, namespace, obj), status=201)

    def write(self, request, target, after):
        kind, part = target.kind, target.part
        if part and part not in kind.subresources:
            raise ApiError(404, "the server could not find the requested resource")
        before = self.store.get(kind, target.namespace, target.name)
        if part == "scale":
            raise ApiError(405, "the test bed does not serve the subresource scale")
        after.setdefault("metadata", {}).setdefault("name", target.name)
        expect(kind, after, target.namespace)
        if target.namespace:
            after["metadata"]["namespace"] = target.namespace
        if after["metadata"]["name"] != target.name:
            raise ApiError(
                400,
                f"the name of the object ({after['metadata']['name']}) does not match the name on the URL ({target.name})",
            )
        if not part:
            check(kind, after, before)
        if request.query.get("dryRun"):
            return web.json_response(after)
        return web.json_response(
            self.store.replace(kind, after, part if part == "status" else None)
        )

    async def update(self, request, target):
        return self.write(request, target, await body(request))

    async def patch(self, request, target):
        patch = await body(request, object)
        content_type = request.headers.get("Content-Type", "")
        kind, namespace = target.kind, target.namespace
        applied = content_type.startswith("application/apply-patch")
        if applied and not request.query.get("fieldManager"):
            raise ApiError(400, "fieldManager is required for apply patch")
        if applied and (namespace, target.name) not in self.store.of(kind):
            expect(kind, patch, namespace)
            check(kind, patch)
            obj = admit(self.store, self.kinds, kind, namespace, patch)
            return web.json_response(self.store.create(kind, namespace, obj), status=201)
        before = self.store.get(kind, namespace, target.name)
        if content_type.startswith("application/strategic") and kind.schema is not None:
            raise ApiError(415, f"strategic merge patch is not supported for {kind.kind}")
        after = apply_patch(content_type, before, patch)
        named = isinstance(patch, dict) and (patch.get("metadata") or {}).get("resourceVersion")
        if not named:
            after["metadata"].pop("resourceVersion", None)
        return self.write(request, target, after)

    async def delete(self, request, target):
        kind = target.kind
        options = await body(request) if request.can_read_body else {}
        obj = self.store.get(kind, target.namespace, target.name)
        for key, value in (options.get("preconditions") or {}).items():
            if obj["metadata"].get(key) != value:
                raise ApiError(
                    409,
                    f"the {key} in the precondition ({value}) does not match the {key} in record ({obj['metadata'].get(key)})",
                )
        self.remove(kind, obj, options, request.query)
        still = self.store.of(kind).get((target.namespace if kind.namespaced else "", target.name))
        if still is not None or kind.kind == "Pod":
            return web.json_response(still or obj)
        details = {
            "name": target.name,
            "group": kind.group,
            "kind": kind.plural,
            "uid": obj["metadata"]["uid"],
        }
        return web.json_response(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            }
        )

    def remove(self, kind, obj, options, query):
        policy = options.get("propagationPolicy") or query.get("propagationPolicy")
        if policy is None and kind.kind == "Job":
            policy = "Orphan"  # the default of batch/v1, for old clients
        marks = {"Foreground": ["foregroundDeletion"], "Orphan": ["orphan"]}.get(policy, ())
        grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        self.store.delete(kind, obj, period(kind, obj, grace), marks)

    async def deletecollection(self, request, target):
        options = await body(request) if request.can_read_body else {}
        query = request.query
        selector = Selector(query.get("labelSelector"), query.get("fieldSelector"))
        found = self.store.list(target.kind, target.namespace, selector)
        for obj in found:
            self.remove(target.kind, obj, options, query)
        return web.json_response(
            {
                "kind": f"{target.kind.kind}List",
                "apiVersion": target.kind.api_version,
                "metadata": {"resourceVersion": str(self.store.version)},
                "items": found,
            }
        )

    async def watch(self, request, target):
        return await watch(self.store, request, target)


def period(kind, obj, grace):
    """Return the seconds that a deleted object has left: only a pod that runs has some."""
    if kind.kind != "Pod" or not obj["spec"].get("nodeName"):
        return 0
    if obj.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
        return 0
    return int(obj["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace)


def expect(kind, obj, namespace):
    """Refuse a body that is another kind, or for another namespace, than its path says."""
    given = obj.get("apiVersion", kind.api_version), obj.get("kind", kind.kind)
    if given != (kind.api_version, kind.kind):
        raise ApiError(
            400,
            f"the body is {given[0]} {given[1]}, the path one of {kind.api_version} {kind.kind}",
        )
    obj |= {"apiVersion": kind.api_version, "kind": kind.kind}
    metadata = obj.setdefault("metadata", {})
    if kind.namespaced and metadata.get("namespace", namespace) != namespace:
        raise ApiError(
            400,
            f"the namespace of the provided object does not match the namespace sent on the request ({metadata['namespace']} and {namespace})",
        )


async def body(request, kind=dict):
    """Return the body of a request: JSON, or YAML for apply."""
    text = await request.text()
    try:
        found = (
            yaml.safe_load(text)
            if "yaml" in request.headers.get("Content-Type", "")
            else json.loads(text or "{}")
        )
    except ValueError as error:
        raise ApiError(400, f"the object provided is unrecognized: {error}") from None
    if not isinstance(found, kind):
        raise ApiError(400, "the object provided is no object")
    return found
