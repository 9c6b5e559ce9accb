"""Private files in Secret Manager.

Every viewer of the project can read instance metadata (``compute.instances.get``). A secret has its
own policy, which adds only the machines' account as a reader.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import logging
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.gcp.api import (
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    GoogleApi,
    GoogleError,
    service_url,
)
from scalable.providers.gcp.config import Config
from scalable.providers.gcp.instances import unix_time
from scalable.providers.gcp.names import label_filter, labels, last, secret_id
from scalable.providers.remote.cloud import CLUSTER, MANAGING, ROLE, SCHEDULER, StoredFiles

# Payloads -----------------------------------------------------------------------------------------


#: Maximum number of bytes of a part; the limit of a secret's version is 64 KiB.
LARGEST = 60_000
FORM = b"scalable-files-1"


def pack(files: Mapping[str, str]) -> list[bytes]:
    """Return payloads with the compressed files. Each starts with a digest and a part count."""
    whole = zlib.compress(json.dumps(dict(files)).encode(), 9)
    digest = hashlib.sha256(whole).hexdigest().encode()
    parts = [whole[start : start + LARGEST] for start in range(0, len(whole), LARGEST)]
    count = str(len(parts)).encode()
    return [b" ".join((FORM, digest, count)) + b"\n" + part for part in parts]


def number_of_parts(payload: bytes) -> int:
    """Return the number of parts given in the first part. Raises ValueError if it is invalid."""
    return int(_head(payload)[1])


def unpack(payloads: Sequence[bytes]) -> dict[str, str]:
    """Return the files by relative path. Raises ValueError if parts are missing or do not match."""
    heads = {_head(payload) for payload in payloads}
    if len(heads) != 1:
        raise ValueError("the parts of the files belong to different versions")
    ((digest, count),) = heads
    whole = b"".join(payload.partition(b"\n")[2] for payload in payloads)
    if int(count) != len(payloads) or hashlib.sha256(whole).hexdigest().encode() != digest:
        raise ValueError("a part of the files is missing")
    found = json.loads(zlib.decompress(whole))
    return {str(path): str(text) for path, text in found.items()}


def _head(payload: bytes) -> tuple[bytes, bytes]:
    form, *rest = payload.partition(b"\n")[0].split(b" ")
    if form != FORM or len(rest) != 2:
        raise ValueError("the secret contains no files of scalable")
    return rest[0], rest[1]


def to_text(payload: bytes) -> str:
    """Encode a payload for a request."""
    return base64.b64encode(payload).decode()


def from_text(text: str) -> bytes:
    """Decode a payload in an answer. Raises ValueError if it is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("the payload of a secret is not base64") from error


logger = logging.getLogger("scalable.providers.gcp")

#: Keys of a secret's annotations: exact marks, name of the files, number of the part.
MARKS, NAME, PART = "scalable-marks", "scalable-files", "scalable-part"
ACCESSOR = "roles/secretmanager.secretAccessor"


class GoogleSecrets:
    """Files in Secret Manager."""

    def __init__(self, api: GoogleApi, config: Config) -> None:
        self._api = api
        self._config = config
        self._default_account = ""

    async def put(self, name: str, marks: Mapping[str, str], files: Mapping[str, str]) -> None:
        """Store files under a name so that the machines' account can read them."""
        reader = await self.account(manages=marks.get(ROLE) == MANAGING)
        parts = pack(files)
        made = (self._put(name, index, marks, part, reader) for index, part in enumerate(parts))
        if not all(await asyncio.gather(*made)):
            await self._delete_parts(name, len(parts))

    async def _put(
        self, name: str, index: int, marks: Mapping[str, str], part: bytes, reader: str
    ) -> bool:
        """Store one part of the files, and return whether a secret was created for it."""
        secret = secret_id(name, index)
        region = self._config.region
        body = {
            "replication": {"userManaged": {"replicas": [{"location": region}]}},
            "labels": labels(marks),
            "annotations": {
                MARKS: json.dumps(dict(marks)),
                NAME: name,
                PART: str(index),
            },
        }
        earlier: list[str] = []
        new = True
        try:
            await self._request("POST", "", query={"secretId": secret}, body=body)
        except GoogleError as error:
            if error.status != CONFLICT:
                raise _with_hint(error) from error
            new = False
            earlier = await self._versions(secret)
        policy = {"bindings": [{"role": ACCESSOR, "members": [f"serviceAccount:{reader}"]}]}
        try:
            await self._request("POST", f"{secret}:setIamPolicy", body={"policy": policy})
        except GoogleError as error:
            raise _with_hint(error) from error
        payload = {"payload": {"data": to_text(part)}}
        await self._request("POST", f"{secret}:addVersion", body=payload)
        for version in earlier:
            await self._request("POST", f"{secret}/versions/{version}:destroy", body={})
        return new

    async def _versions(self, secret: str) -> list[str]:
        query = {"filter": "state:ENABLED"}
        found = []
        async for page in self._api.pages(await self._url(f"{secret}/versions"), query):
            versions = page.get("versions") or ()
            found += [last(v["name"]) for v in versions if v.get("state") != "DESTROYED"]
        return found

    async def _delete_parts(self, name: str, first: int) -> None:
        """Delete the parts numbered ``first`` or higher, left over from earlier, larger files."""
        while await self._delete(secret_id(name, first)):
            first += 1

    async def account(self, *, manages: bool) -> str:
        """Return the e-mail of the machines' account. Raises ProviderError without one."""
        named = self._config.account(manages)
        if named:
            return named
        if not self._default_account:
            project = await self._api.compute("GET", "")
            self._default_account = str(project.get("defaultServiceAccount") or "")
        if not self._default_account:
            raise ProviderError(
                f"project {await self._api.project()!r} has no default service account",
                hint="set service_account of the target",
            )
        return self._default_account

    async def files(self, marks: Mapping[str, str]) -> list[StoredFiles]:
        """Return all complete files that carry these marks (labels)."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for secret in await self._list_secrets(marks):
            groups.setdefault(secret["annotations"].get(NAME, ""), []).append(secret)
        found = await asyncio.gather(*(self._read(n, secrets) for n, secrets in groups.items()))
        return [files for files in found if files is not None]

    async def _read(self, name: str, secrets: list[dict[str, Any]]) -> StoredFiles | None:
        secrets.sort(key=lambda secret: int(secret["annotations"].get(PART, "0")))
        try:
            payloads = await asyncio.gather(*(self._payload(secret) for secret in secrets))
            files = unpack(payloads)
        except (GoogleError, ValueError) as error:
            if isinstance(error, GoogleError) and error.status != NOT_FOUND:
                raise _with_hint(error) from error
            # They are being created, replaced or deleted.
            logger.debug("files %s cannot be read: %s", name, error)
            return None
        return StoredFiles(name, _marks(secrets[0]), files)

    async def _payload(self, secret: Mapping[str, Any]) -> bytes:
        found = await self._request("GET", f"{last(secret['name'])}/versions/latest:access")
        return from_text(found["payload"]["data"])

    async def clusters(self, marks: Mapping[str, str]) -> set[str]:
        """Return the ids of all clusters that have secrets with these labels in any region."""
        listed = await self._list_secrets(marks, here=False)
        return {_marks(secret).get(CLUSTER, "") for secret in listed}

    async def without_version(self, marks: Mapping[str, str], older_than_s: float) -> set[str]:
        """Return the ids of clusters whose creator died before storing its files."""
        own = {**marks, ROLE: SCHEDULER}
        begun = {
            _marks(secret).get(CLUSTER, "")
            for secret in await self._list_secrets(own)
            if time.time() - unix_time(secret["createTime"]) > older_than_s
        }
        return begun - {stored.marks.get(CLUSTER, "") for stored in await self.files(own)}

    async def _list_secrets(
        self, marks: Mapping[str, str], *, here: bool = True
    ) -> list[dict[str, Any]]:
        query = {"filter": label_filter(marks, joined=" AND "), "pageSize": "250"}
        found: list[dict[str, Any]] = []
        async for page in self._api.pages(await self._url(""), query):
            found += page.get("secrets") or ()
        return [
            secret
            for secret in found
            if marks.items() <= _marks(secret).items() and (not here or self._is_here(secret))
        ]

    def _is_here(self, secret: Mapping[str, Any]) -> bool:
        """Return whether a secret is in this region, since lists cover the whole project."""
        replicas = (secret.get("replication") or {}).get("userManaged", {}).get("replicas") or ()
        return any(replica.get("location") == self._config.region for replica in replicas)

    async def delete(self, marks: Mapping[str, str]) -> list[str]:
        """Delete all files that carry these marks (labels), and return a description of each."""
        found = [last(secret["name"]) for secret in await self._list_secrets(marks)]
        gone = await asyncio.gather(*(self._delete(secret) for secret in found))
        return [f"secret {name}" for name, was_there in zip(found, gone, strict=True) if was_there]

    async def _delete(self, secret: str) -> bool:
        try:
            await self._request("DELETE", secret)
        except GoogleError as error:
            if error.status != NOT_FOUND:
                raise _with_hint(error) from error
            return False
        return True

    async def _url(self, path: str) -> str:
        project = await self._api.project()
        whole = f"v1/projects/{project}/secrets"
        return service_url("secretmanager", f"{whole}/{path}" if path else whole)

    async def _request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> dict[str, Any]:
        return await self._api.request(method, await self._url(path), query=query, body=body)


def _marks(secret: Mapping[str, Any]) -> dict[str, str]:
    try:
        found = json.loads((secret.get("annotations") or {}).get(MARKS) or "{}")
    except ValueError:
        return {}
    return {str(key): str(text) for key, text in found.items()} if isinstance(found, dict) else {}


def _with_hint(error: GoogleError) -> ProviderError:
    """Return the error, with a hint for a disabled service or a missing permission."""
    if error.status != FORBIDDEN:
        return error
    if "SERVICE_DISABLED" in error.reason or "has not been used" in error.message:
        return ProviderError(
            f"Secret Manager is not enabled in this project: {error.message}",
            hint="gcloud services enable secretmanager.googleapis.com",
        )
    return ProviderError(
        f"this user may not store files in Secret Manager: {error.message}",
        hint="grant roles/secretmanager.admin in the project",
    )
