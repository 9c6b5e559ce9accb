"""Files of a cluster in AWS Secrets Manager, encrypted at rest.

A secret contains the compressed files of one name. The secret's name starts with the cluster's id,
and the roles of the cluster's machines are limited to this prefix.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import zlib
from collections.abc import Iterable, Mapping

from scalable.errors import ProviderError
from scalable.providers.aws.api import AWSApi, AWSError
from scalable.providers.aws.names import SECRETS_PATH, has, marks_in, pairs, secret_name, tags
from scalable.providers.remote.cloud import CLUSTER, StoredFiles

logger = logging.getLogger("scalable.providers.aws")

#: Maximum number of bytes of a secret.
LIMIT = 65_536
#: Maximum number of secrets that one request reads.
_READ_AT_ONCE = 20
_NONE = "ResourceNotFoundException"


def packed(files: Mapping[str, str], name: str) -> str:
    """Return files as a secret's string. Raises ProviderError if they exceed its size limit."""
    data = zlib.compress(json.dumps(dict(files)).encode(), 9)
    text = base64.b64encode(data).decode()
    if len(text) > LIMIT:
        large = max(files, key=lambda path: len(files[path]))
        raise ProviderError(
            f"the files of {name!r} take {len(text)} bytes compressed, but a secret of AWS holds "
            f"{LIMIT}; the largest is {large} with {len(files[large])} characters",
            hint="make the manifest or its scripts smaller; scripts can be part of the image",
        )
    return text


def unpacked(text: str) -> dict[str, str]:
    """Return the files in a secret's string. Raises ProviderError for an invalid one."""
    try:
        files = json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
        return {str(path): str(content) for path, content in files.items()}
    except (binascii.Error, zlib.error, ValueError, AttributeError) as error:
        raise ProviderError("a secret does not contain the files of a cluster") from error


class AWSSecrets:
    """The secrets of one region."""

    def __init__(self, api: AWSApi) -> None:
        self._api = api
        #: ARNs by name of secrets that this object has used. Lists may lack the latest.
        self._arns: dict[str, str] = {}
        self._marks: dict[str, dict[str, str]] = {}

    async def put(self, name: str, marks: Mapping[str, str], files: Mapping[str, str]) -> None:
        """Store files under a name, replacing earlier ones."""
        secret = secret_name(marks[CLUSTER], name)
        text = packed(files, name)
        try:
            made = await self._api.call(
                "secretsmanager",
                "create_secret",
                Name=secret,
                Description="files of a scalable cluster",
                SecretString=text,
                Tags=tags(marks),
            )
        except AWSError as error:
            if error.error_code != "ResourceExistsException":
                raise
            made = await self._api.call(
                "secretsmanager", "put_secret_value", SecretId=secret, SecretString=text
            )
            await self._api.call(
                "secretsmanager", "tag_resource", SecretId=secret, Tags=tags(marks)
            )
        self._arns[secret] = str(made["ARN"])
        self._marks[secret] = dict(marks)

    async def arn(self, cluster_id: str, name: str) -> str:
        secret = secret_name(cluster_id, name)
        if secret not in self._arns:
            said = await self._api.call("secretsmanager", "describe_secret", SecretId=secret)
            self._arns[secret] = str(said["ARN"])
        return self._arns[secret]

    async def find(self, marks: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Map the names of all secrets with these tags to their marks."""
        start = SECRETS_PATH + (f"{marks[CLUSTER]}/" if CLUSTER in marks else "")
        filters = [{"Key": "name", "Values": [start]}]
        if marks and CLUSTER not in marks:
            filters.append({"Key": "tag-value", "Values": sorted(marks.values())[:10]})
        listed = await self._api.pages(
            "secretsmanager", "list_secrets", "SecretList", Filters=filters, MaxResults=100
        )
        found = {
            str(each["Name"]): marks_in(pairs(each.get("Tags")))
            for each in listed
            if not each.get("DeletedDate")
        }
        found |= {name: own for name, own in self._marks.items() if name not in found}
        return {
            name: own
            for name, own in found.items()
            if name.startswith(start) and has(own, marks) and CLUSTER in own
        }

    async def read(self, marks: Mapping[str, str]) -> list[StoredFiles]:
        """Return all files that carry these marks (tags), except unreadable ones."""
        found = await self.find(marks)
        texts: dict[str, str] = {}
        for names in _batches(sorted(found), _READ_AT_ONCE):
            answer = await self._api.call(
                "secretsmanager", "batch_get_secret_value", SecretIdList=names
            )
            texts |= {
                each["Name"]: each["SecretString"]
                for each in answer.get("SecretValues", ())
                if "SecretString" in each
            }
        stored = []
        for secret, text in sorted(texts.items()):
            own = found[secret]
            name = secret.removeprefix(secret_name(own[CLUSTER], ""))
            try:
                stored.append(StoredFiles(name, own, unpacked(text)))
            except ProviderError as error:
                logger.warning("secret %s: %s", secret, error.message)
        return stored

    async def delete(self, marks: Mapping[str, str]) -> list[str]:
        """Delete all secrets with these tags immediately, and return a description of each."""
        deleted = []
        for secret in sorted(await self.find(marks)):
            self._arns.pop(secret, None)
            self._marks.pop(secret, None)
            try:
                await self._api.call(
                    "secretsmanager",
                    "delete_secret",
                    SecretId=secret,
                    ForceDeleteWithoutRecovery=True,
                )
            except AWSError as error:
                if error.error_code != _NONE:
                    raise
            else:
                deleted.append(f"secret {secret}")
        return deleted


def _batches(names: list[str], size: int) -> Iterable[list[str]]:
    return (names[i : i + size] for i in range(0, len(names), size))
