"""The metadata server of one machine."""

import asyncio
import contextlib
import hashlib
import json
import re

from aiohttp import web

from .identities import CLOUD_PLATFORM, NUMBER, PROJECT

HEADERS = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
#: Longest time that a request waits for a change, in seconds.
LONGEST_WAIT = 600.0
#: Directories whose names are the user's and stay as they are in JSON.
FREE = {"attributes", "guest-attributes", "service-accounts"}


class MetadataServer:
    """Answers what a machine's processes ask about it; see Google's `computeMetadata/v1`."""

    def __init__(self, machine, identities):
        self.machine = machine
        self.identities = identities
        self.guest_attributes = {}
        self.changed = asyncio.Event()
        self.runner = None
        self.host = ""

    async def start(self):
        """Listen at the machine's address: on port 80 if that is allowed."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        address = self.machine.address
        try:
            await web.TCPSite(self.runner, address, 80).start()
            self.host = address
        except OSError:
            site = web.TCPSite(self.runner, address, 0)
            await site.start()
            self.host = f"{address}:{site._server.sockets[0].getsockname()[1]}"

    async def close(self):
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    def notify(self):
        """Wake the requests that wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    # Content --------------------------------------------------------------------------------------

    def tree(self):
        """Return all that there is: a directory is a dict, a function is asked with the query."""
        resource = self.machine.resource
        nic = resource["networkInterfaces"][0]
        scheduling = resource["scheduling"]
        zone = f"projects/{NUMBER}/zones/{self.machine.zone}"
        items = resource["metadata"].get("items") or ()
        instance = {
            "attributes": {item["key"]: item["value"] for item in items},
            "cpu-platform": resource["cpuPlatform"],
            "description": resource.get("description", ""),
            "guest-attributes": self.guest_attributes,
            "hostname": f"{resource['name']}.{self.machine.zone}.c.{PROJECT}.internal",
            "id": int(resource["id"]),
            "image": self.machine.image,
            "machine-type": f"projects/{NUMBER}/machineTypes/{self.machine.shape['name']}",
            "maintenance-event": self.machine.maintenance,
            "name": resource["name"],
            "network-interfaces": {
                "0": {
                    "access-configs": {
                        str(index): {"external-ip": entry["natIP"], "type": entry["type"]}
                        for index, entry in enumerate(nic.get("accessConfigs") or ())
                    },
                    "ip": nic["networkIP"],
                    "mac": "42:01:0a:80:00:02",
                    "network": f"projects/{NUMBER}/networks/{nic['network'].rpartition('/')[2]}",
                }
            },
            "preempted": "TRUE" if self.machine.preempted else "FALSE",
            "scheduling": {
                "automatic-restart": str(scheduling["automaticRestart"]).upper(),
                "on-host-maintenance": scheduling["onHostMaintenance"],
                "preemptible": str(scheduling["preemptible"]).upper(),
            },
            "service-accounts": self.accounts(resource),
            "tags": (resource.get("tags") or {}).get("items") or [],
            "zone": zone,
        }
        project = {
            "attributes": {},
            "numeric-project-id": int(NUMBER),
            "project-id": PROJECT,
        }
        return {"instance": instance, "project": project}

    def accounts(self, resource):
        found = {}
        for account in resource.get("serviceAccounts") or ():
            entry = {
                "aliases": ["default"],
                "email": account["email"],
                "scopes": account.get("scopes") or [],
                "token": self.token(account),
            }
            found |= {"default": entry, account["email"]: entry}
        return found

    def token(self, account):
        """Return the function that makes a token of a service account."""

        def make(query):
            scopes = account.get("scopes") or []
            if query.get("scopes") and CLOUD_PLATFORM in scopes:
                scopes = query["scopes"].split(",")
            return self.identities.token(account["email"], scopes)

        return make

    # Requests -------------------------------------------------------------------------------------

    async def handle(self, request):
        path = request.match_info["path"]
        if not path.strip("/"):
            return web.Response(text="computeMetadata/\n", headers=HEADERS)
        if (
            request.headers.get("Metadata-Flavor") != "Google"
            or "X-Forwarded-For" in request.headers
        ):
            text = "Missing Metadata-Flavor:Google header."
            return web.Response(status=403, text=text, headers=HEADERS)
        found = re.fullmatch(r"computeMetadata/v1(?:/(.*))?", path)
        if not found:
            return web.Response(status=404, text="not found", headers=HEADERS)
        if request.method in {"PUT", "DELETE"}:
            return await self.write(request, found[1] or "")
        return await self.read(request, found[1] or "")

    async def write(self, request, path):
        """Set or delete a guest attribute, the only thing that a machine may write."""
        found = re.fullmatch(r"instance/guest-attributes/([^/]+)/([^/]+)", path)
        if not found or not self.machine.has_guest_attributes():
            return web.Response(status=403 if found else 405, headers=HEADERS)
        space, key = found[1], found[2]
        if request.method == "PUT":
            self.guest_attributes.setdefault(space, {})[key] = await request.text()
        else:
            self.guest_attributes.get(space, {}).pop(key, None)
        self.notify()
        return web.Response(headers=HEADERS)

    async def read(self, request, path):
        query = request.query
        answer = self.answer(path, query)
        if query.get("wait_for_change", "").lower() == "true":
            old = query.get("last_etag") or etag(answer)
            limit = min(float(query.get("timeout_sec") or LONGEST_WAIT), LONGEST_WAIT)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    while answer is not None and etag(answer) == old:
                        await self.changed.wait()
                        answer = self.answer(path, query)
        if answer is None:
            return web.Response(status=404, text="not found", headers=HEADERS)
        text, kind = answer
        headers = HEADERS | {"ETag": etag(answer)}
        return web.Response(text=text, content_type=kind, headers=headers)

    def answer(self, path, query):
        """Return the text and the type of what is at a path; None if nothing is there."""
        value = self.tree()
        parts = [part for part in path.split("/") if part]
        for part in parts:
            if not isinstance(value, dict) or part not in value:
                return None
            value = value[part]
        if callable(value):
            return json.dumps(value(query)), "application/json"
        if isinstance(value, dict):
            if query.get("recursive", "").lower() == "true":
                free = bool(parts) and parts[-1] in FREE
                return json.dumps(plain(value, free)), "application/json"
            lines = [f"{key}/" if isinstance(v, dict) else key for key, v in value.items()]
            return "".join(f"{line}\n" for line in lines), "application/text"
        if query.get("alt") == "json" or path.endswith("tags"):
            return json.dumps(value), "application/json"
        if isinstance(value, list):
            return "".join(f"{entry}\n" for entry in value), "application/text"
        return str(value), "application/text"


def plain(value, free=False):
    """Return a directory as `recursive=true` shows it: keys in camel case, numbers as lists."""
    if not isinstance(value, dict):
        return value
    if value and all(key.isdigit() for key in value) and not free:
        return [plain(entry) for entry in value.values()]
    found = {}
    for key, entry in value.items():
        if not callable(entry):
            name = key if free else re.sub(r"-(\w)", lambda m: m[1].upper(), key)
            found[name] = plain(entry, key in FREE - {"service-accounts"})
    return found


def etag(answer):
    return hashlib.sha256(answer[0].encode()).hexdigest()[:16] if answer else "0"
