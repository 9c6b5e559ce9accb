"""AWS from the perspective of a program on one of its machines.

In a Fargate task, the files are in a variable, so that workers need no permissions. The variable
would stay readable in ``/proc``, so the program restarts itself without it. An EC2 instance reads
its secret with its role.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.aws.names import STOPPED, UNITS, units_in
from scalable.providers.aws.render import (
    FILES_AT_VARIABLE,
    FILES_VARIABLE,
    SPOT_VARIABLE,
    STOP_TIMEOUT_S,
)
from scalable.providers.aws.secrets import unpacked

logger = logging.getLogger("scalable.providers.aws")

#: Set on AWS when a program restarts itself: the number of the open file with its files.
OPEN_FILE_VARIABLE = "SCALABLE_FILES_OPEN"
#: Seconds that a Fargate task can use after SIGTERM, before its own exit starts.
NOTICE_S = STOP_TIMEOUT_S - 10.0
TASK_VARIABLE = "ECS_CONTAINER_METADATA_URI_V4"
METADATA = "http://169.254.169.254"
METADATA_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_TOKEN, _TOKEN_LIFE = "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_LIFE_S = 21_600
METADATA_TIMEOUT_S = 5.0
#: Seconds for which files are requested: a new role takes a while to be known everywhere.
FILES_WITHIN_S = 120.0
ATTEMPTS, PAUSE_S, LONGEST_PAUSE_S = 5, 0.5, 10.0
# Requests to the metadata service bypass any proxy.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class FargateTask:
    """The machine side of a Fargate task (a :class:`.MachineSide`)."""

    def __init__(self) -> None:
        self._told_at: float | None = None

    def files(self) -> Mapping[str, str]:
        """Return the files, after restarting this program without the variable that has them."""
        number = os.environ.pop(OPEN_FILE_VARIABLE, None)
        if number is None:
            text = os.environ.pop(FILES_VARIABLE, None)
            if text is None:
                raise ProviderError(f"no files for this task: {FILES_VARIABLE} is not set")
            _start_anew(text)
        assert number is not None
        with os.fdopen(int(number), encoding="utf-8") as file:
            return unpacked(file.read())

    def address(self) -> str:
        for network in self._metadata("").get("Networks") or ():
            for address in network.get("IPv4Addresses") or ():
                return str(address)
        raise ProviderError("the metadata of this task contains no address")

    def stopped_units(self) -> frozenset[str]:
        """Return an empty set, since a task has only one unit."""
        return frozenset()

    def notice(self) -> float | None:
        """Return the seconds until this spot task is preempted, or None without a notice.
        Fargate sends the same signal when users stop a task. This is reported as a notice too.
        """
        if SPOT_VARIABLE not in os.environ:
            return None
        if self._told_at is None:
            if self._metadata("/task").get("DesiredStatus") != "STOPPED":
                return None
            self._told_at = time.monotonic()
        return max(0.0, NOTICE_S - (time.monotonic() - self._told_at))

    @staticmethod
    def _metadata(path: str) -> dict[str, Any]:
        url = os.environ[TASK_VARIABLE] + path
        with _DIRECT.open(url, timeout=METADATA_TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


class Instance:
    """The machine side of an EC2 instance (a :class:`.MachineSide`)."""

    def __init__(self) -> None:
        self._token = ""
        self._token_until = 0.0

    def files(self) -> Mapping[str, str]:
        """Return the files, waiting up to two minutes until the instance's role can read them."""
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.session import get_session

        secret = os.environ.get(FILES_AT_VARIABLE)
        if not secret:
            raise ProviderError(f"no files for this instance: {FILES_AT_VARIABLE} is not set")
        deadline = time.monotonic() + FILES_WITHIN_S
        pause = PAUSE_S
        while True:
            try:
                client = get_session().create_client(
                    "secretsmanager", region_name=secret.split(":")[3]
                )
                return unpacked(client.get_secret_value(SecretId=secret)["SecretString"])
            except (BotoCoreError, ClientError) as error:
                if time.monotonic() + pause > deadline:
                    raise ProviderError(
                        f"Secrets Manager does not let this instance read {secret}: {error}",
                        hint="the role of its instance profile has to allow "
                        "secretsmanager:GetSecretValue for the secrets of the cluster",
                    ) from error
                logger.info("the secret cannot be read yet: %s", error)
            time.sleep(pause)
            pause = min(LONGEST_PAUSE_S, 2 * pause)

    def address(self) -> str:
        address = self._insisted(lambda: self._metadata("local-ipv4"))
        if address is None:
            raise ProviderError("the metadata service returns no address of this instance")
        return address

    def stopped_units(self) -> frozenset[str]:
        keys = (self._metadata("tags/instance/") or "").split()
        told = [key.removeprefix(STOPPED) for key in keys if key.startswith(STOPPED)]
        if not told:
            return frozenset()
        tagged = {
            key: self._metadata(f"tags/instance/{key}") or ""
            for key in keys
            if key.startswith(UNITS)
        }
        units = units_in(tagged)
        return frozenset(units[int(i)] for i in told if i.isdigit() and int(i) < len(units))

    def notice(self) -> float | None:
        said = self._metadata("spot/instance-action")
        if said is None:
            return None
        try:
            when = datetime.fromisoformat(json.loads(said)["time"])
        except (ValueError, KeyError) as error:
            raise ProviderError(f"the notice of preemption is invalid: {said!r:.100}") from error
        return max(0.0, (when - datetime.now(UTC)).total_seconds())

    def _metadata(self, path: str) -> str | None:
        """Return a value of the metadata service, or None if it does not exist."""
        if time.monotonic() > self._token_until - 60:
            self._token = _ask("api/token", {_TOKEN_LIFE: str(TOKEN_LIFE_S)}, "PUT") or ""
            self._token_until = time.monotonic() + TOKEN_LIFE_S
        try:
            return _ask(f"meta-data/{path}", {_TOKEN: self._token})
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 401:
                    self._token_until = 0.0
            raise

    @staticmethod
    def _insisted(question: Callable[[], str | None]) -> str | None:
        for attempt in range(ATTEMPTS):
            try:
                return question()
            except OSError as error:
                logger.debug("the metadata service does not answer: %s", error)
            time.sleep(PAUSE_S * 2**attempt)
        return None


def machine_side() -> FargateTask | Instance:
    """Return the machine side for this process: a Fargate task or an EC2 instance."""
    return FargateTask() if TASK_VARIABLE in os.environ else Instance()


def _ask(path: str, headers: dict[str, str], method: str = "GET") -> str | None:
    """Return an answer of the metadata service, or None for status 404."""
    endpoint = os.environ.get(METADATA_VARIABLE) or METADATA
    request = urllib.request.Request(  # noqa: S310 - the address is that of this machine
        f"{endpoint.rstrip('/')}/latest/{path}", headers=headers, method=method
    )
    try:
        with _DIRECT.open(request, timeout=METADATA_TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        with error:
            return None


def _start_anew(text: str, execute: Callable[..., Any] = os.execv) -> None:
    """Restart the program in the same process. Its files are passed in an unnamed open file."""
    number = os.memfd_create("scalable-files", 0)  # stays open, and is in no directory
    with os.fdopen(os.dup(number), "w", encoding="utf-8") as file:
        file.write(text)
    os.set_inheritable(number, True)
    os.lseek(number, 0, os.SEEK_SET)
    os.environ[OPEN_FILE_VARIABLE] = str(number)
    execute(sys.executable, [sys.executable, *sys.orig_argv[1:]])
