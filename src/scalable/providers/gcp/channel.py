"""Blocking connection to Google's services, with the user's credentials.

Requests are REST over ``google-auth`` and ``requests`` (extra ``gcp``): the classes of
``google-cloud-compute`` take over a second to import, and do not support Secret Manager.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Mapping
from typing import Any

from scalable.errors import ProviderError
from scalable.providers.gcp.errors import UNAUTHORIZED, GoogleError, no_credentials

SCOPES = (
    "https://www.googleapis.com/auth/cloud-platform",
    "https://www.googleapis.com/auth/userinfo.email",
)
REQUEST_TIMEOUT_S = 30.0


class Channel:
    """Sends requests, from any number of threads."""

    def __init__(self, at_once: int) -> None:
        try:
            import google.auth
            import requests
            from google.auth.exceptions import GoogleAuthError
            from google.auth.transport.requests import Request
        except ImportError as error:
            raise ProviderError(
                "the libraries of Google Cloud are not installed",
                hint="pip install 'scalable[gcp]'",
            ) from error
        try:
            found: tuple[Any, str | None] = google.auth.default(scopes=SCOPES)
        except (GoogleAuthError, OSError, ValueError) as error:
            raise no_credentials(error) from error
        self.credentials, self.project = found
        self._http = requests.Session()
        for scheme in ("https://", "http://"):
            self._http.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=at_once))
        self._asking = functools.partial(Request(self._http), timeout=REQUEST_TIMEOUT_S)
        self._lock = threading.Lock()

    def close(self) -> None:
        self._http.close()

    def token(self, refused: str | None = None) -> str:
        """Return an access token that is valid now, other than one that a service has refused."""
        from google.auth.exceptions import GoogleAuthError, TransportError

        with self._lock:
            if not self.credentials.valid or self.credentials.token == refused:
                try:
                    self.credentials.refresh(self._asking)
                except TransportError as error:
                    raise GoogleError("no access token: no answer", transient=True) from error
                except GoogleAuthError as error:
                    if error.retryable:
                        message = f"no access token: {error.args[0]}"
                        raise GoogleError(message, transient=True) from error
                    raise no_credentials(error) from error
            return str(self.credentials.token)

    def send(
        self, method: str, url: str, query: Mapping[str, str] | None, body: Any
    ) -> tuple[int, str, str]:
        """Send a request, and return status, body and ``Retry-After``. Renews a refused token."""
        token = self.token()
        answer = self._send(method, url, query, body, token)
        if answer[0] == UNAUTHORIZED:
            answer = self._send(method, url, query, body, self.token(refused=token))
        return answer

    def _send(
        self, method: str, url: str, query: Mapping[str, str] | None, body: Any, token: str
    ) -> tuple[int, str, str]:
        from requests.exceptions import RequestException

        kind, data = "application/json", None
        if isinstance(body, bytes):
            kind, data = "application/x-www-form-urlencoded", body
        elif body is not None:
            data = json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}"}
        project = getattr(self.credentials, "quota_project_id", None)
        if project:
            headers["X-Goog-User-Project"] = str(project)
        if data is not None:
            headers["Content-Type"] = kind
        try:
            answer = self._http.request(
                method, url, params=query, data=data, headers=headers, timeout=REQUEST_TIMEOUT_S
            )
        except (RequestException, OSError) as error:
            raise GoogleError(
                f"Google Cloud does not answer: {type(error).__name__}", transient=True
            ) from error
        return answer.status_code, answer.text, answer.headers.get("Retry-After", "")
