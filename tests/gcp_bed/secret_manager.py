"""Secret Manager v1 and the policies of secrets; the methods of the project's own policy."""

import base64
import datetime as dt
import hashlib
import itertools
import re
import time

from .errors import ApiError
from .filtering import Filter, page
from .identities import NUMBER, PROJECT, grants
from .rules import check_labels

#: Largest payload of a version, in bytes.
PAYLOAD = 64 * 1024
#: Limits of `ttl`, in seconds.
TTL = 60, 100 * 365 * 24 * 3600
NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
#: Method -> permission, where the names differ.
PERMISSIONS = {
    "secrets.addVersion": "versions.add",
}
POLYNOMIAL = 0x82F63B78


def table():
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        yield value


TABLE = tuple(table())


def crc32c(data):
    """Return the CRC32C checksum of bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def stamp(moment):
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def etag(value):
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


class Secret:
    """A secret, its versions and its policy."""

    def __init__(self, name, resource):
        self.name = name
        self.versions = {}
        self.numbers = itertools.count(1)
        self.policy = {"version": 1, "bindings": [], "etag": base64.b64encode(b"0").decode()}
        #: Policy that holds until this time (of the monotonic clock), when the new one is known.
        self.earlier = self.policy
        self.known_from = 0.0
        self.ends = None
        self.resource = resource | {
            "name": f"projects/{NUMBER}/secrets/{name}",
            "createTime": stamp(dt.datetime.now(dt.UTC)),
        }
        self.set_end()
        self.mark()

    def known_policy(self):
        """Return the policy that is known everywhere by now."""
        return self.policy if time.monotonic() >= self.known_from else self.earlier

    def set_end(self):
        """Note when the secret ends by itself."""
        lifetime = self.resource.pop("ttl", None)
        if lifetime is not None:
            found = re.fullmatch(r"(\d+(?:\.\d+)?)s", lifetime)
            if not found or not TTL[0] <= float(found[1]) <= TTL[1]:
                raise ApiError(400, f"ttl {lifetime} must be between {TTL[0]}s and {TTL[1]}s.")
            end = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=float(found[1]))
            self.resource["expireTime"] = stamp(end)
        text = self.resource.get("expireTime")
        if text:
            try:
                self.ends = dt.datetime.fromisoformat(text)
            except ValueError:
                raise ApiError(400, f"Invalid value for expireTime: {text}") from None

    def mark(self):
        self.resource["etag"] = f'"{etag(self.resource)}"'

    @property
    def over(self):
        return self.ends is not None and dt.datetime.now(dt.UTC) >= self.ends

    def version(self, number):
        """Return the version of a number, or of the alias `latest`."""
        if number == "latest" and self.versions:
            number = max(self.versions, key=int)
        if number not in self.versions:
            path = f"projects/{NUMBER}/secrets/{self.name}"
            if number == "latest":
                raise ApiError(404, f"Secret [{path}] not found or has no versions.")
            raise ApiError(404, f"Secret Version [{path}/versions/{number}] not found.")
        return self.versions[number]


class SecretManager:
    """All secrets of the project."""

    def __init__(self, identities, settings):
        self.identities = identities
        self.settings = settings
        self.found = {}

    def handlers(self):
        prefix = "secretmanager.projects."
        names = {
            "secrets": "create list delete addVersion getIamPolicy setIamPolicy",
            "secrets.versions": "list access destroy",
        }
        found = {}
        for part, verbs in names.items():
            for verb in verbs.split():
                name = f"{'version_' if 'versions' in part else ''}{verb}"
                found[f"{prefix}{part}.{verb}"] = self.guarded(getattr(self, f"do_{name}"))
        return found

    # Access ---------------------------------------------------------------------------------------

    def guarded(self, method):
        """Return a method that first looks whether its caller may do this."""

        def call(call):
            name = call.method.removeprefix("secretmanager.projects.")
            name = name.removeprefix("secrets.") if ".versions." in name else name
            permission = f"secretmanager.{PERMISSIONS.get(name, name)}"
            self.require(call, permission)
            return method(call)

        return call

    def allowed(self, identity, permission, name):
        """Whether somebody may do something with a secret, by the project's policy or its own."""
        if (identity.email, permission) in self.identities.denied:
            return False
        if self.identities.allowed(identity, permission):
            return True
        secret = self.found.get(name)
        return secret is not None and any(
            grants(binding["role"], permission) and identity.member in binding.get("members", ())
            for binding in secret.known_policy()["bindings"]
        )

    def require(self, call, permission):
        name, version = call.path.get("secretsId"), call.path.get("versionsId")
        if self.allowed(call.identity, permission, name):
            return
        path = f"projects/{PROJECT}" + (f"/secrets/{name}" if name else "")
        path += f"/versions/{version}" if version else ""
        text = f"Permission '{permission}' denied for resource '{path}' (or it may not exist)."
        raise ApiError(403, text)

    # Secrets --------------------------------------------------------------------------------------

    def one(self, call):
        name = call.path["secretsId"]
        secret = self.found.get(name)
        if secret is not None and secret.over:
            del self.found[name]
            secret = None
        if secret is None:
            raise ApiError(404, f"Secret [projects/{NUMBER}/secrets/{name}] not found.")
        return secret

    def do_create(self, call):
        name = call.query.get("secretId", "")
        if not NAME.fullmatch(name):
            text = f"The provided Secret ID [{name}] does not match the expected format [{NAME.pattern}]"
            raise ApiError(400, text)
        check_labels(call.body.get("labels") or {}, "secret.labels")
        replication = call.body.get("replication") or {}
        if len(replication.keys() & {"automatic", "userManaged"}) != 1:
            raise ApiError(400, "secret.replication must be provided: automatic or user_managed.")
        if name in self.found and not self.found[name].over:
            text = f"Secret [projects/{NUMBER}/secrets/{name}] already exists."
            raise ApiError(409, text)
        self.found[name] = Secret(name, dict(call.body))
        return self.found[name].resource

    def do_list(self, call):
        self.found = {name: s for name, s in self.found.items() if not s.over}
        there = [secret.resource for secret in self.found.values()]
        items, more = page(call.query, there)
        return {"secrets": items, "totalSize": len(there), **more}

    def do_delete(self, call):
        secret = self.one(call)
        if call.query.get("etag") not in {None, secret.resource["etag"]}:
            raise ApiError(400, "The etag does not match.", status="FAILED_PRECONDITION")
        del self.found[secret.name]
        return {}

    # Policies -------------------------------------------------------------------------------------

    def do_getIamPolicy(self, call):
        return self.one(call).policy

    def do_setIamPolicy(self, call):
        secret = self.one(call)
        policy = call.body.get("policy") or {}
        check_policy(policy, secret.policy)
        policy = {"version": 1, "bindings": [], **policy}
        policy["etag"] = base64.b64encode(etag(policy).encode()).decode()
        secret.earlier = secret.known_policy()
        secret.policy = policy
        secret.known_from = time.monotonic() + self.settings["policy"]
        return policy

    # Versions -------------------------------------------------------------------------------------

    def do_addVersion(self, call):
        secret = self.one(call)
        payload = call.body.get("payload") or {}
        text = payload.get("data", "")
        data = base64.b64decode(text.replace("-", "+").replace("_", "/"))
        if not data:
            raise ApiError(400, "The payload must not be empty.")
        if len(data) > PAYLOAD:
            raise ApiError(400, f"The payload has {len(data)} bytes; the limit is {PAYLOAD}.")
        given = payload.get("dataCrc32c")
        if given is not None and int(given) != crc32c(data):
            raise ApiError(400, "The checksum of the payload does not match its data.")
        number = str(next(secret.numbers))
        secret.versions[number] = {
            "data": base64.b64encode(data).decode(),
            "resource": {
                "name": f"projects/{NUMBER}/secrets/{secret.name}/versions/{number}",
                "createTime": stamp(dt.datetime.now(dt.UTC)),
                "state": "ENABLED",
                "replicationStatus": {"automatic": {}},
                "etag": f'"{etag((secret.name, number))}"',
                "clientSpecifiedPayloadChecksum": given is not None,
            },
        }
        return secret.versions[number]["resource"]

    def do_version_list(self, call):
        there = [version["resource"] for version in self.one(call).versions.values()]
        there.reverse()
        found = Filter(call.query.get("filter", ""))
        there = [resource for resource in there if found(resource)]
        return {"versions": there, "totalSize": len(there)}

    def do_version_access(self, call):
        version = self.one(call).version(call.path["versionsId"])
        resource = version["resource"]
        if resource["state"] != "ENABLED":
            text = f"Secret Version [{resource['name']}] is in {resource['state']} state."
            raise ApiError(400, text, status="FAILED_PRECONDITION")
        checksum = crc32c(base64.b64decode(version["data"]))
        payload = {"data": version["data"], "dataCrc32c": str(checksum)}
        return {"name": resource["name"], "payload": payload}

    def change(self, call, state):
        version = self.one(call).version(call.path["versionsId"])
        if version["resource"]["state"] == "DESTROYED":
            text = f"Secret Version [{version['resource']['name']}] is in DESTROYED state."
            raise ApiError(400, text, status="FAILED_PRECONDITION")
        version["resource"]["state"] = state
        return version

    def do_version_destroy(self, call):
        version = self.change(call, "DESTROYED")
        version["data"] = ""
        version["resource"]["destroyTime"] = stamp(dt.datetime.now(dt.UTC))
        return version["resource"]


class ResourceManager:
    """The project and its policy, as the resource manager answers for them."""

    def __init__(self, identities):
        self.identities = identities

    def handlers(self):
        name = "cloudresourcemanager.projects.testIamPermissions"
        return {name: self.do_testIamPermissions}

    def do_testIamPermissions(self, call):
        wanted = call.body.get("permissions") or []
        held = [p for p in wanted if self.identities.allowed(call.identity, p)]
        return {"permissions": held} if held else {}


def check_policy(policy, before):
    """Refuse a policy that is older than the present one, or has what is not known here."""
    if policy.get("etag") not in {None, "", before["etag"]}:
        text = "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff."
        raise ApiError(409, text, status="ABORTED")
    for binding in policy.get("bindings") or ():
        if not re.fullmatch(r"(roles|projects/[^/]+/roles)/[\w.]+", binding.get("role", "")):
            raise ApiError(400, f"Role {binding.get('role')} is not supported for this resource.")
        if "condition" in binding:
            raise ApiError(501, "the test bed does not evaluate conditions of bindings")
        for member in binding.get("members") or ():
            kinds = r"(user|serviceAccount|group|domain|principal|principalSet):.+|allUsers|allAuthenticatedUsers|project(Owner|Editor|Viewer):.+"
            if not re.fullmatch(kinds, member):
                raise ApiError(400, f"Invalid member {member}.")
