"""Access to Google Cloud from one of its machines, through the standard library alone."""

from __future__ import annotations

import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from scalable.errors import ProviderError
from scalable.providers.gcp.api import service_url
from scalable.providers.gcp.instances import FILES, STOPPED
from scalable.providers.gcp.secrets import from_text, number_of_parts, unpack

logger = logging.getLogger("scalable.providers.gcp")

#: Seconds between the notice and the preemption of a spot machine.
NOTICE_S = 30.0
METADATA_TIMEOUT_S, SECRET_TIMEOUT_S = 5.0, 20.0
#: Seconds for which files are requested: a new policy can take minutes to become effective.
FILES_WITHIN_S = 180.0
PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
_DEFAULT_HOST = "metadata.google.internal"
# Requests to the metadata server bypass any proxy.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class GoogleMachine:
    """The machine side of a Compute Engine instance (a :class:`.MachineSide`)."""

    def __init__(self) -> None:
        self._noticed_at: float | None = None

    def files(self) -> Mapping[str, str]:
        """Return the files, waiting up to three minutes until the machine may read them."""
        secret = metadata(f"instance/attributes/{FILES}")
        project = metadata("project/project-id")
        if not secret or not project:
            raise ProviderError("the metadata contains no secret name for this machine's files")
        deadline = time.monotonic() + FILES_WITHIN_S
        pause = PAUSE_S
        while True:
            try:
                first = _payload(project, secret)
                others = range(2, number_of_parts(first) + 1)
                rest = [_payload(project, f"{secret}-{number}") for number in others]
                return unpack([first, *rest])
            except (OSError, ValueError, KeyError) as error:
                if time.monotonic() + pause > deadline:
                    raise ProviderError(
                        f"Secret Manager does not let this machine read secret {secret!r}: "
                        f"{_told(error)}",
                        hint="the secret's policy must let the machine's service account read it, "
                        "and secretmanager.googleapis.com must be enabled in the project",
                    ) from error
                logger.info("secret %s cannot be read yet: %s", secret, _told(error))
            time.sleep(pause)
            pause = min(LONGEST_PAUSE_S, 2 * pause)

    def address(self) -> str:
        address = metadata("instance/network-interfaces/0/ip")
        if address is None:
            raise ProviderError("the metadata server does not return this machine's address")
        return address

    def stopped_units(self) -> frozenset[str]:
        written = metadata(f"instance/attributes/{STOPPED}", once=True)
        try:
            found = json.loads(written or "[]")
        except ValueError:
            return frozenset()
        return frozenset(str(unit) for unit in found)

    def notice(self) -> float | None:
        if self._noticed_at is None:
            if (metadata("instance/preempted", once=True) or "").strip().upper() != "TRUE":
                return None
            self._noticed_at = time.monotonic()
        return max(0.0, NOTICE_S - (time.monotonic() - self._noticed_at))


def metadata(path: str, *, once: bool = False) -> str | None:
    """Return a value below ``computeMetadata/v1``, or None if missing or unanswered."""
    host = os.environ.get("GCE_METADATA_HOST") or _DEFAULT_HOST
    request = urllib.request.Request(
        f"http://{host}/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"}
    )
    for attempt in range(1 if once else 5):
        try:
            with _DIRECT.open(request, timeout=METADATA_TIMEOUT_S) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
            logger.debug("the metadata server answers %s for %s", error.code, path)
        except OSError as error:
            logger.debug("the metadata server does not answer: %s", error)
        if not once:
            time.sleep(PAUSE_S * 2**attempt)
    return None


def _payload(project: str, secret: str) -> bytes:
    """Return a secret's payload, requested with the token of the machine's account."""
    written = metadata("instance/service-accounts/default/token") or "{}"
    token = json.loads(written)["access_token"]
    path = f"v1/projects/{project}/secrets/{secret}/versions/latest:access"
    request = urllib.request.Request(  # noqa: S310 - the address is ours
        service_url("secretmanager", path), headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=SECRET_TIMEOUT_S) as answer:  # noqa: S310
        return from_text(json.load(answer)["payload"]["data"])


def _told(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"{error.code} {error.reason}"
    return f"{type(error).__name__}: {error}"
