"""Operations: what a request has begun, from PENDING to DONE."""

import asyncio
import contextlib
import datetime as dt
import itertools
import secrets
import time
import uuid

from .catalogue import link
from .errors import invalid, not_found
from .filtering import page
from .identities import PROJECT

#: Longest time that `wait` waits, in seconds.
LONGEST_WAIT = 120.0


def now():
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Operation:
    """One operation, as its JSON and as something to wait for."""

    def __init__(self, number, scope, kind, target, user):
        name = f"operation-{int(time.time() * 1000)}-{secrets.token_hex(6)}-{secrets.token_hex(4)}"
        self.done = asyncio.Event()
        self.json = {
            "kind": "compute#operation",
            "id": number,
            "name": name,
            "operationType": kind,
            "targetLink": link(f"{PROJECT}/{target}"),
            "status": "PENDING",
            "user": user,
            "progress": 0,
            "insertTime": now(),
            "selfLink": link(f"{PROJECT}/{scope}/operations/{name}"),
        }
        if scope.startswith("zones/"):
            self.json["zone"] = link(f"{PROJECT}/{scope}")
        if scope.startswith("regions/"):
            self.json["region"] = link(f"{PROJECT}/{scope}")

    def run(self):
        self.json |= {"status": "RUNNING", "startTime": now()}

    def finish(self, error=None):
        """End the operation, with an `Failure` or well."""
        self.json |= {"status": "DONE", "progress": 100, "endTime": now()}
        self.json.setdefault("startTime", self.json["endTime"])
        if error is not None:
            self.json["error"] = {"errors": [error.entry]}
            self.json["httpErrorStatusCode"] = error.code
            self.json["httpErrorMessage"] = error.text
        self.done.set()


class Failure:
    """The reason for which an operation failed."""

    def __init__(self, name, message, code=400, text="BAD REQUEST", details=()):
        self.code = code
        self.text = text
        self.entry = {"code": name, "message": message}
        if details:
            self.entry["errorDetails"] = list(details)


class Operations:
    """All operations by scope (`zones/Z`, `regions/R`, `global`) and name."""

    def __init__(self):
        self.found = {}
        self.requests = {}
        self.numbers = itertools.count(8_000_000_000_000_000_000)

    def begin(self, call, scope, kind, target):
        """Return a new operation of a call."""
        operation = self.make(scope, kind, target, call.identity.email)
        if key := self.key(call):
            self.requests[key] = operation
        return operation

    def make(self, scope, kind, target, user="system"):
        operation = Operation(str(next(self.numbers)), scope, kind, target, user)
        self.found[scope, operation.json["name"]] = operation
        return operation

    @staticmethod
    def key(call):
        number = call.query.get("requestId")
        if not number:
            return None
        try:
            valid = uuid.UUID(number).int and len(number) == 36
        except ValueError:
            valid = False
        if not valid:
            raise invalid("requestId", number, "Must be a valid UUID.")
        return call.method, tuple(sorted(call.path.items())), number

    def earlier(self, call):
        """Return the JSON of the operation that the same request id has begun, None without."""
        operation = self.requests.get(self.key(call))
        return None if operation is None else operation.json

    # Methods --------------------------------------------------------------------------------------

    def handlers(self):
        found = {}
        for name in ("zoneOperations", "regionOperations", "globalOperations"):
            found[f"compute.{name}.get"] = lambda call: self.operation(call).json
            found[f"compute.{name}.wait"] = self.wait
            found[f"compute.{name}.list"] = self.list
        return found

    @staticmethod
    def scope(call):
        for key in ("zone", "region"):
            if key in call.path:
                return f"{key}s/{call.path[key]}"
        return "global"

    def operation(self, call):
        scope, name = self.scope(call), call.path["operation"]
        if (scope, name) not in self.found:
            raise not_found(f"projects/{PROJECT}/{scope}/operations/{name}")
        return self.found[scope, name]

    async def wait(self, call):
        operation = self.operation(call)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(operation.done.wait(), LONGEST_WAIT)
        return operation.json

    def list(self, call):
        scope = self.scope(call)
        found = [o.json for (where, _), o in self.found.items() if where == scope]
        items, more = page(call.query, found)
        return {"kind": "compute#operationList", "items": items, **more}
