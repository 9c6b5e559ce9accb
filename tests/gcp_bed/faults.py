"""Faults that a test asks for, and the count of calls."""

import contextlib
import fnmatch
import os
import signal
from collections import Counter

from .catalogue import REGIONS, region_of
from .errors import ApiError
from .identities import NUMBER, PROJECT
from .operations import Failure


class Faults:
    """Troubles that are asked for; nothing happens by itself."""

    def __init__(self):
        self.calls = Counter()
        #: Pattern of methods -> every which call is throttled, HTTP status, calls so far.
        self.throttled = {}
        #: Pattern of methods -> how many answers are to be lost after the work was done.
        self.lost = Counter()
        #: Pattern of methods -> how many calls get 500 or 503 before anything is done.
        self.broken = {}
        #: (zone, machine type) -> code of the operation's error; "*" stands for each.
        self.exhaustion = {}
        #: Patterns of names of instances -> how many of them never boot.
        self.dead = Counter()
        #: Patterns of images that no registry has.
        self.missing_images = set()
        #: Services that are switched off, such as `secretmanager`.
        self.disabled = set()
        #: Process to be killed, and the number of calls until then; None for none.
        self.doomed = None

    def refuse(self, method):
        """Raise the error that a fault wants for this call."""
        service = method.split(".")[0]
        if service in self.disabled:
            raise disabled(service)
        for pattern, entry in self.throttled.items():
            if fnmatch.fnmatch(method, pattern):
                entry["calls"] += 1
                if entry["every"] and entry["calls"] % entry["every"] == 0:
                    raise throttling(entry["status"], method)
        for pattern, entry in self.broken.items():
            if fnmatch.fnmatch(method, pattern) and entry["count"] > 0:
                entry["count"] -= 1
                raise ApiError(entry["status"], "Internal error. Please try again.")

    def loses(self, method):
        """Return whether the answer to this call is to be lost."""
        for pattern, count in self.lost.items():
            if count > 0 and fnmatch.fnmatch(method, pattern):
                self.lost[pattern] -= 1
                return True
        return False

    def kill(self):
        """Kill the process that a test has named, if this is the call it is to die at."""
        if self.doomed is None:
            return
        pid, left = self.doomed
        self.doomed = (pid, left - 1) if left > 1 else None
        if self.doomed is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def boots(self, name):
        """Return whether a machine's first process is to be started."""
        for pattern, count in self.dead.items():
            if count > 0 and fnmatch.fnmatch(name, pattern):
                self.dead[pattern] -= 1
                return False
        return True

    def exhausted(self, zone, kind):
        """Return the `Failure` of an instance in a zone that has no machines of its type."""
        for key in ((zone, kind), (zone, "*"), ("*", kind), ("*", "*")):
            if key in self.exhaustion:
                return exhaustion(self.exhaustion[key], zone, kind)
        return None


def disabled(service):
    """Return the error of a service that is switched off."""
    text = f"{service} API has not been used in project {NUMBER} before or it is disabled."
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "SERVICE_DISABLED",
        "domain": "googleapis.com",
        "metadata": {"service": f"{service}.googleapis.com"},
    }
    return ApiError(403, text, "accessNotConfigured", details=[info])


def throttling(status, method):
    """Return the error of a client that calls too often."""
    service = method.split(".")[0]
    if status == 429:
        text = f"Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service '{service}.googleapis.com' for consumer 'project_number:123456789012'."
        return ApiError(429, text)
    text = f"Rate Limit Exceeded: {method} for consumer 'projects/{PROJECT}'"
    return ApiError(403, text, "rateLimitExceeded")


def exhaustion(code, zone, kind):
    """Return the `Failure` of a zone that has no machines left."""
    region = region_of(zone)
    others = [f"{region}-{x}" for x in REGIONS[region] if f"{region}-{x}" != zone]
    text = f"The zone 'projects/{PROJECT}/zones/{zone}' does not have enough resources available to fulfill the request."
    details = ()
    if code.endswith("WITH_DETAILS"):
        text += "  '(resource type:compute)'."
        info = {
            "reason": "resource_availability",
            "domain": "compute.googleapis.com",
            "metadatas": {"zone": zone, "vmType": kind, "zonesAvailable": ",".join(others)},
        }
        message = f"A {kind} VM instance is currently unavailable in the {zone} zone."
        details = [
            {"errorInfo": info},
            {"localizedMessage": {"locale": "en-US", "message": message}},
        ]
    else:
        text += "  Try a different zone, or try again later."
    return Failure(code, text, 503, "SERVICE UNAVAILABLE", details)
