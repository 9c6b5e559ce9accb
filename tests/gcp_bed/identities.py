"""Who sends a request: service accounts, their keys and tokens, and their roles in the project."""

import base64
import binascii
import json
import math
import secrets
import time
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from .errors import ApiError

PROJECT = "bed-project"
NUMBER = "123456789012"
#: Service account of instances that name none of their own ("default").
DEFAULT_ACCOUNT = f"{NUMBER}-compute@developer.gserviceaccount.com"
CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
#: User -> roles in the project. The key of `stranger` is one that nobody knows.
USERS = {
    "alice": ("roles/owner",),
    "bob": ("roles/editor", "roles/secretmanager.admin"),
    "viewer": ("roles/viewer",),
    "nobody": (),
    "stranger": (),
}
READS = ("get", "list", "aggregatedList", "wait")
#: Parts of permissions of Secret Manager that the role of an editor does not have.
NOT_FOR_EDITORS = ("secretmanager.versions.access", "setIamPolicy")


@dataclass(frozen=True)
class Identity:
    """Somebody who sends requests, and for what."""

    email: str
    scopes: tuple = (CLOUD_PLATFORM,)
    expires: float = math.inf

    @property
    def member(self):
        return f"serviceAccount:{self.email}"


def email_of(user):
    return f"{user}@{PROJECT}.iam.gserviceaccount.com"


class Identities:
    """Keys, tokens and roles."""

    def __init__(self):
        self.accounts = {email_of(user) for user in USERS if user != "stranger"} | {DEFAULT_ACCOUNT}
        self.keys = {}
        self.tokens = {}
        #: Seconds for which a token is valid.
        self.lifetime = 3600.0
        #: Tokens made before this second of Unix time are no longer valid.
        self.valid_since = 0.0
        #: (e-mail, permission) that are refused on order.
        self.denied = set()
        members = {}
        for user, roles in USERS.items():
            for role in roles:
                members.setdefault(role, []).append(f"serviceAccount:{email_of(user)}")
        members["roles/editor"].append(f"serviceAccount:{DEFAULT_ACCOUNT}")
        self.policy = {
            "version": 1,
            "etag": "BwXbed0=",
            "bindings": [{"role": role, "members": names} for role, names in members.items()],
        }

    # Keys -----------------------------------------------------------------------------------------

    def key_file(self, user, token_uri):
        """Return the JSON of a new key of a user; that of `stranger` is not known here."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        number = secrets.token_hex(20)
        if user != "stranger":
            self.keys[number] = email_of(user), key.public_key()
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": number,
            "private_key": pem.decode(),
            "client_email": email_of(user),
            "client_id": str(int(number[:16], 16)),
            "auth_uri": token_uri,
            "token_uri": token_uri,
            "universe_domain": "googleapis.com",
        }

    def assertion(self, text):
        """Return the claims of a JWT that a known key has signed; None otherwise."""
        try:
            head, claims, signature = text.split(".")
            number = json.loads(decode(head)).get("kid")
            email, key = self.keys[number]
            key.verify(
                decode(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256()
            )
            claims = json.loads(decode(claims))
        except (ValueError, KeyError, TypeError, binascii.Error, InvalidSignature):
            return None
        return claims if claims.get("iss") == email else None

    # Tokens ---------------------------------------------------------------------------------------

    def grant(self, form):
        """Answer a request of an access token with its status and its JSON."""
        if form.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer":
            return 400, {"error": "unsupported_grant_type"}
        claims = self.assertion(form.get("assertion", ""))
        if claims is None:
            text = "Invalid JWT Signature."
            return 400, {"error": "invalid_grant", "error_description": text}
        if not self.current(claims):
            text = "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
            return 400, {"error": "invalid_grant", "error_description": text}
        if claims["iss"] not in self.accounts:
            text = "Invalid grant: account not found"
            return 400, {"error": "invalid_grant", "error_description": text}
        scopes = tuple((claims.get("scope") or "").split())
        return 200, self.token(claims["iss"], scopes)

    def token(self, email, scopes):
        """Return the JSON of a new access token."""
        text = f"ya29.c.{secrets.token_urlsafe(48)}"
        self.tokens[text] = Identity(email, tuple(scopes), time.time() + self.lifetime)
        return {"access_token": text, "expires_in": int(self.lifetime), "token_type": "Bearer"}

    def current(self, claims):
        """Whether now is in the time for which claims are made."""
        start, end = claims.get("iat", 0), claims.get("exp", 0)
        now = time.time()
        fresh = self.valid_since <= start <= now + 300 and now - start < self.lifetime
        return fresh and now < end <= start + 3600

    def expire(self):
        """Let each token of before the next second be invalid; return that second."""
        self.tokens.clear()
        self.valid_since = math.floor(time.time()) + 1
        return self.valid_since

    def identify(self, header):
        """Return the `Identity` of an Authorization header."""
        scheme, _, text = header.partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not text:
            message = "Request is missing required authentication credential. Expected OAuth 2 access token, login cookie or other valid authentication credential."
            raise ApiError(401, message, "required")
        found = self.tokens.get(text)
        if found is None and text.count(".") == 2 and (claims := self.assertion(text)):
            known = claims["iss"] in self.accounts and self.current(claims)
            scopes = (claims.get("scope") or CLOUD_PLATFORM).split()
            found = Identity(claims["iss"], tuple(scopes)) if known else None
        if found is None or found.expires < time.time():
            message = "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential."
            raise ApiError(401, message)
        return found

    def describe(self, text):
        """Answer `tokeninfo` with its status and its JSON."""
        try:
            found = self.identify(f"Bearer {text}")
        except ApiError:
            return 400, {"error": "invalid_token", "error_description": "Invalid Value"}
        seconds = min(found.expires - time.time(), 3600)
        return 200, {
            "azp": found.email,
            "aud": found.email,
            "scope": " ".join(found.scopes),
            "exp": str(int(time.time() + seconds)),
            "expires_in": str(int(seconds)),
            "email": found.email,
            "email_verified": "true",
            "access_type": "online",
        }

    # Roles ----------------------------------------------------------------------------------------

    def roles(self, identity):
        return {b["role"] for b in self.policy["bindings"] if identity.member in b["members"]}

    def allowed(self, identity, permission):
        """Whether the roles of somebody in the project allow something."""
        if (identity.email, permission) in self.denied:
            return False
        return any(grants(role, permission) for role in self.roles(identity))

    def require(self, identity, permission, path):
        """Raise a 403 unless somebody may do this; `path` begins with `projects/`."""
        if not self.allowed(identity, permission):
            raise ApiError(403, f"Required '{permission}' permission for '{path}'")


def grants(role, permission):
    """Whether a role contains a permission."""
    service, _, rest = permission.partition(".")
    reads = rest.rpartition(".")[2] in READS
    editors = not permission.endswith(NOT_FOR_EDITORS)
    return {
        "roles/owner": True,
        "roles/editor": editors,
        "roles/viewer": reads and editors,
        "roles/secretmanager.admin": service == "secretmanager",
        "roles/secretmanager.secretAccessor": permission == NOT_FOR_EDITORS[0],
        "roles/secretmanager.viewer": service == "secretmanager" and reads,
        "roles/compute.admin": service == "compute",
        "roles/compute.viewer": service == "compute" and reads,
        "roles/compute.instanceAdmin.v1": service == "compute"
        and (reads or rest.startswith("instances.")),
        "roles/iam.serviceAccountUser": permission == "iam.serviceAccounts.actAs",
    }.get(role, False)


def decode(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
