"""The HTTP of the test bed: from a request to a method of an API and back."""

import inspect
import json
from dataclasses import dataclass

from aiohttp import web

from .discovery import check_body, check_parameters
from .errors import ApiError, not_found
from .identities import NUMBER, PROJECT

#: Verbs of methods whose permission has another one.
VERBS = {"insert": "create", "bulkInsert": "create", "aggregatedList": "list", "patch": "update"}


@dataclass(frozen=True)
class Call:
    """One call of a method."""

    method: str
    path: dict
    query: dict
    body: dict
    identity: object


class Server:
    """Answers requests: first Google's tokens, then the methods of the APIs."""

    def __init__(self, bed):
        self.bed = bed
        self.handlers = {}

    def application(self):
        app = web.Application(middlewares=[self.guard], client_max_size=8 * 2**20)
        app.router.add_post("/token", self.token)
        app.router.add_route("*", "/tokeninfo", self.tokeninfo)
        app.router.add_route("*", "/oauth2/v3/tokeninfo", self.tokeninfo)
        app.router.add_get("/oauth2/v3/userinfo", self.userinfo)
        app.router.add_get("/oauth2/v1/userinfo", self.userinfo)
        app.router.add_get("/v1/userinfo", self.userinfo)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    @web.middleware
    async def guard(self, request, handler):
        try:
            return await handler(request)
        except ApiError as error:
            return web.json_response(error.body(), status=error.code)

    # Tokens ---------------------------------------------------------------------------------------

    async def token(self, request):
        self.bed.faults.calls["oauth2.token"] += 1
        status, answer = self.bed.identities.grant(await request.post())
        return web.json_response(answer, status=status)

    async def tokeninfo(self, request):
        self.bed.faults.calls["oauth2.tokeninfo"] += 1
        text = request.query.get("access_token") or (await request.post()).get("access_token", "")
        status, answer = self.bed.identities.describe(text)
        return web.json_response(answer, status=status)

    async def userinfo(self, request):
        self.bed.faults.calls["oauth2.userinfo"] += 1
        identity = self.bed.identities.identify(request.headers.get("Authorization", ""))
        answer = {"sub": identity.email, "email": identity.email, "email_verified": True}
        return web.json_response(answer)

    # Methods --------------------------------------------------------------------------------------

    async def handle(self, request):
        try:
            return await self.answered(request)
        finally:
            self.bed.faults.kill()

    async def answered(self, request):
        route = self.bed.discovery.route(request.method, request.path)
        if route is None:
            raise ApiError(404, f"The test bed has no {request.method} {request.path}")
        faults = self.bed.faults
        faults.calls[route.id] += 1
        identity = self.bed.identities.identify(request.headers.get("Authorization", ""))
        faults.refuse(route.id)
        if not set(identity.scopes) & set(route.method.get("scopes", identity.scopes)):
            text = "Request had insufficient authentication scopes."
            raise ApiError(403, text, "insufficientPermissions")
        query = check_parameters(route, request.query)
        handler = self.handlers.get(route.id)
        if handler is None:
            raise ApiError(501, f"The test bed does not serve {route.id}")
        self.check_project(route, identity)
        body = check_body(route, await self.body(request))
        call = Call(route.id, dict(route.path), query, body, identity)
        answer = handler(call)
        if inspect.isawaitable(answer):
            answer = await answer
        if faults.loses(route.id):
            request.transport.abort()
        return web.json_response(answer)

    def check_project(self, route, identity):
        """Refuse another project, and calls of Compute Engine that somebody may not make."""
        path, compute = route.path, route.id.startswith("compute.")
        names = ("project", "projectsId", "projectId", *(() if compute else ("resource",)))
        project = next((path[name] for name in names if name in path), PROJECT)
        if compute and project == "cos-cloud" and route.id.startswith("compute.images."):
            return
        if project not in {PROJECT, NUMBER}:
            if compute:
                raise not_found(f"projects/{project}")
            raise ApiError(403, f"Permission denied on resource project {project}.")
        if compute:
            self.bed.identities.require(identity, permission(route.id), f"projects/{PROJECT}")

    async def body(self, request):
        text = await request.text()
        if not text:
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise ApiError(400, f"Invalid JSON payload received. {error}") from None


def permission(method):
    """Return the permission that a method needs."""
    service, *rest, verb = method.split(".")
    if method == "compute.projects.get":
        return "compute.projects.get"
    resource = rest[-1]
    if resource == "regionInstances":
        resource = "instances"
    if resource.endswith("Operations") and verb == "wait":
        verb = "get"
    return f"{service}.{resource}.{VERBS.get(verb, verb)}"
