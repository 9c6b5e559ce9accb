"""Google Cloud as a program on one of its machines sees it.

Only the standard library is used: images of workers need no library of Google's.
"""

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
from scalable.providers.gcp.payloads import from_text, number_of_parts, unpack

logger = logging.getLogger("scalable.providers.gcp")

#: Seconds between the notice and the end of a spot machine.
NOTICE_S = 30.0
METADATA_TIMEOUT_S, SECRET_TIMEOUT_S = 5.0, 20.0
#: Seconds for which files are asked for: a new policy takes up to minutes to be known everywhere.
FILES_WITHIN_S = 180.0
PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
_DEFAULT_HOST = "metadata.google.internal"
# The metadata server is asked directly, whatever proxy is set.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class GoogleMachine:
    """A machine of Compute Engine, from inside: it implements ``MachineSide``."""

    def __init__(self) -> None:
        self._noticed_at: float | None = None

    def files(self) -> Mapping[str, str]:
        """Return relative path -> text of the files that the request named.

        Raises
        ------
        ProviderError
            When Secret Manager does not give them to this machine's account.
        """
        secret = metadata(f"instance/attributes/{FILES}")
        project = metadata("project/project-id")
        if not secret or not project:
            raise ProviderError("this machine has no files: the metadata server names none")
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
                        f"Secret Manager does not give secret {secret!r} to this machine: "
                        f"{_told(error)}",
                        hint="the machine's service account reads it by the policy of the secret; "
                        "the project has to have secretmanager.googleapis.com enabled",
                    ) from error
                logger.info("secret %s cannot be read yet: %s", secret, _told(error))
            time.sleep(pause)
            pause = min(LONGEST_PAUSE_S, 2 * pause)

    def address(self) -> str:
        """Return the machine's address within the network.

        Raises
        ------
        ProviderError
            When the metadata server does not answer.
        """
        address = metadata("instance/network-interfaces/0/ip")
        if address is None:
            raise ProviderError("the metadata server does not tell this machine's address")
        return address

    def stopped_units(self) -> frozenset[str]:
        """Return the units that were told to end while others go on."""
        written = metadata(f"instance/attributes/{STOPPED}", once=True)
        try:
            found = json.loads(written or "[]")
        except ValueError:
            return frozenset()
        return frozenset(str(unit) for unit in found)

    def notice(self) -> float | None:
        """Return the seconds until this spot machine is taken back; None without a notice."""
        if self._noticed_at is None:
            if (metadata("instance/preempted", once=True) or "").strip().upper() != "TRUE":
                return None
            self._noticed_at = time.monotonic()
        return max(0.0, NOTICE_S - (time.monotonic() - self._noticed_at))


def metadata(path: str, *, once: bool = False) -> str | None:
    """Return a value of the metadata server; None if it has none, or does not answer.

    Parameters
    ----------
    path
        Path below ``computeMetadata/v1``.
    once
        Whether one attempt is enough; otherwise there are five.
    """
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
    """Return the payload of a secret, read with the token of the machine's account."""
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
