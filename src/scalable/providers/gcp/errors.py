"""Failed answers of Google's services, in plain words, without I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scalable.errors import ProviderError

NOT_FOUND, CONFLICT, FORBIDDEN, UNAUTHORIZED, CHANGED = 404, 409, 403, 401, 412
TRANSIENT = (408, 429, 500, 502, 503, 504)
THROTTLED = ("rateLimitExceeded", "userRateLimitExceeded")
_LOGIN = (
    "log in with `gcloud auth application-default login`, or let "
    "GOOGLE_APPLICATION_CREDENTIALS name the key file of a service account"
)


class GoogleError(ProviderError):
    """A Google request that was refused or not answered."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        hint: str | None = None,
        transient: bool = False,
    ) -> None:
        super().__init__(message, hint=hint, transient=transient)
        #: HTTP status; 0 if there was no answer.
        self.status = status
        #: Reason or code of the service, such as ``alreadyExists``.
        self.reason = reason
        #: Seconds after which the service requests a retry; 0 if it does not specify any.
        self.after_s = 0.0


def refusal(status: int, text: str, retry_after: str = "") -> GoogleError:
    """Return the error for an answer, whose body is an error in JSON or a proxy's message."""
    said = _error_in(text)
    entries = said.get("errors") or [{}]
    reason = str(entries[0].get("reason") or said.get("status") or "")
    message = one_line(str(said.get("message") or text)) or f"Google answered {status}"
    transient = status in TRANSIENT or reason in THROTTLED
    error = GoogleError(
        message, status=status, reason=reason, hint=_hint(status, reason), transient=transient
    )
    error.after_s = float(retry_after) if retry_after.isdigit() else 0.0
    return error


def _error_in(text: str) -> Mapping[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    found = said.get("error") if isinstance(said, dict) else None
    return found if isinstance(found, dict) else {}


def _hint(status: int, reason: str) -> str | None:
    if status == UNAUTHORIZED:
        return _LOGIN
    if status == FORBIDDEN and reason not in THROTTLED:
        return "docs/cloud.md lists the roles that an account needs"
    return None


def no_credentials(error: Exception) -> ProviderError:
    """Return the one-line error for credentials that are missing or not accepted."""
    said = error.args[0] if error.args else type(error).__name__
    first = one_line(str(said)).partition(". ")[0]
    return ProviderError(f"Google Cloud accepts no credentials of this user: {first}", hint=_LOGIN)


def one_line(text: str, longest: int = 300) -> str:
    """Return a string on one line, cut to ``longest`` characters."""
    words = " ".join(text.split())
    return words if len(words) <= longest else f"{words[: longest - 3]}..."
