"""Pods that Kubernetes does not create for a Job, for example because a quota is used up."""

from __future__ import annotations

import logging

from scalable.errors import ProviderError
from scalable.providers.kubernetes.api import Api, Resource

logger = logging.getLogger("scalable.providers.kubernetes")

_REASON = "FailedCreate"
_PREFIX = "Error creating: "


async def why_no_pod(api: Api, namespace: str, uid: str) -> str | None:
    """Return from Events why a Job got no pod, or None, even if the user may not list them."""
    wanted = {"involvedObject.uid": uid, "reason": _REASON}
    selector = ",".join(f"{key}={value}" for key, value in wanted.items())
    try:
        found = await api.request(
            "GET", Resource("events", namespace), query={"fieldSelector": selector}
        )
    except ProviderError as error:
        logger.debug("the events of job %s cannot be read: %s", uid, error)
        return None
    said = [event for event in found.get("items") or () if event.get("message")]
    if not said:
        return None
    last = max(said, key=lambda event: str(event.get("lastTimestamp") or ""))
    return refusal_in_words(str(last["message"]))


def refusal_in_words(message: str) -> str:
    """Return the message of an Event about a refused pod, in plain words."""
    words = message.removeprefix(_PREFIX).strip()
    if "exceeded quota" in words:
        return f"the quota is used up: {words}"
    return f"its pod is refused: {words}"
