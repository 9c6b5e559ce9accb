"""The user: the account of the credentials."""

from __future__ import annotations

import os
from urllib.parse import urlencode

from scalable.errors import ProviderError
from scalable.providers.gcp.api import ENDPOINT, Api
from scalable.providers.gcp.errors import GoogleError

TOKEN_INFO = "https://oauth2.googleapis.com/tokeninfo"  # noqa: S105 - an address


async def email_of(api: Api) -> str:
    """Return the e-mail of the account."""
    credentials = await api.credentials()
    email = str(getattr(credentials, "service_account_email", "") or "")
    if "@" in email:
        return email
    root = os.environ.get(ENDPOINT)
    url = f"{root.rstrip('/')}/tokeninfo" if root else TOKEN_INFO
    try:
        # The token is in the body, because proxies log addresses.
        found = await api.request("POST", url, body=_form(access_token=credentials.token))
    except GoogleError as error:
        raise ProviderError(f"Google does not tell whose credentials these are: {error}") from error
    email = str(found.get("email") or "")
    if not email:
        raise ProviderError(
            "the credentials do not tell the e-mail of their account",
            hint="log in with `gcloud auth application-default login`, or use a service account",
        )
    return email


def _form(**fields: str) -> bytes:
    return urlencode(fields).encode()
