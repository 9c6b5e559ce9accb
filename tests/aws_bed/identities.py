"""Users of the account, their keys, and credentials that end."""

import datetime as dt
import secrets
import time

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from .errors import AwsError

ACCOUNT = "123456789012"
REGION = "us-east-1"
#: The users of the account: name -> access key.
USERS = {"alice": "AKIABED00000000ALICE", "bob": "AKIABED0000000000BOB"}
#: How a service says that it does not know a key; all others say UnrecognizedClientException.
UNKNOWN_KEY = {"ec2": "AuthFailure", "iam": "InvalidClientTokenId", "sts": "InvalidClientTokenId"}
EXPIRED = {"ec2": "RequestExpired", "iam": "ExpiredToken", "sts": "ExpiredToken"}


class Caller:
    """The one who makes a call: an ARN and the names of the user or role behind it."""

    def __init__(self, arn, user="", role=""):
        self.arn = arn
        self.user = user
        self.role = role


class Temporary:
    """Credentials of a role or of a user's session."""

    def __init__(self, caller, seconds):
        self.caller = caller
        self.key = "ASIA" + secrets.token_hex(8).upper()
        self.secret = secrets.token_urlsafe(30)
        self.token = secrets.token_urlsafe(60)
        self.ends = time.time() + seconds

    def document(self, **fields):
        """Return the JSON that metadata services give."""
        moment = dt.datetime.fromtimestamp(self.ends, dt.UTC)
        return {
            **fields,
            "AccessKeyId": self.key,
            "SecretAccessKey": self.secret,
            "Token": self.token,
            "Expiration": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


class Identities:
    """All keys that are valid in the account."""

    def __init__(self):
        self.secrets = {name: secrets.token_urlsafe(30) for name in USERS}
        self.users = {
            key: Caller(f"arn:aws:iam::{ACCOUNT}:user/{name}", user=name)
            for name, key in USERS.items()
        }
        self.temporary = {}
        #: Seconds that new credentials of roles and sessions are valid.
        self.validity = 6 * 3600.0
        self.made = 0

    def of_role(self, role, session):
        """Return new credentials of a role."""
        arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/{role}/{session}"
        return self.remember(Temporary(Caller(arn, role=role), self.validity))

    def of_user(self, name, seconds=None):
        """Return new temporary credentials of a user."""
        caller = self.users[USERS[name]]
        return self.remember(Temporary(caller, self.validity if seconds is None else seconds))

    def remember(self, temporary):
        self.made += 1
        self.temporary[temporary.key] = temporary
        return temporary

    def identify(self, request):
        """Return the caller of a request; raise the service's error if it has no valid key."""
        service = request.service
        if request.key in self.users and not request.token:
            caller = self.users[request.key]
            check_signature(request, self.secrets[caller.user])
            return caller
        temporary = self.temporary.get(request.key)
        if temporary is None or temporary.token != request.token:
            code = UNKNOWN_KEY.get(service, "UnrecognizedClientException")
            if service == "ec2":
                text = "AWS was not able to validate the provided access credentials"
                raise AwsError(code, text, 401)
            status = 403 if service in {"iam", "sts"} else 400
            raise AwsError(code, "The security token included in the request is invalid.", status)
        if time.time() > temporary.ends:
            code = EXPIRED.get(service, "ExpiredTokenException")
            text = "The security token included in the request is expired"
            raise AwsError(code, text, 403 if service in {"iam", "sts"} else 400)
        check_signature(request, temporary.secret)
        return temporary.caller


def check_signature(request, secret):
    """Raise the service's error if a request was signed with another secret."""
    if request.service is None:
        return
    headers = {
        name: request.environ[
            name.upper().replace("-", "_")
            if name in {"content-type", "content-length"}
            else f"HTTP_{name.upper().replace('-', '_')}"
        ]
        for name in request.signed_headers
    }
    url = f"http://{request.environ['HTTP_HOST']}{request.environ['PATH_INFO']}"
    query = request.environ.get("QUERY_STRING", "")
    again = AWSRequest(
        method=request.environ["REQUEST_METHOD"],
        url=f"{url}?{query}" if query else url,
        data=request.body,
        headers=headers,
    )
    again.context["timestamp"] = request.environ["HTTP_X_AMZ_DATE"]
    signer = SigV4Auth(Credentials(request.key, secret), request.signing, request.region)
    text = signer.string_to_sign(again, signer.canonical_request(again))
    if signer.signature(text, again) != request.signature:
        json = request.protocol == "json"
        code = "InvalidSignatureException" if json else "SignatureDoesNotMatch"
        text = "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and signing method. Consult the service documentation for details."
        raise AwsError(code, text, 400 if json else 403)
