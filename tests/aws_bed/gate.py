"""The gate in front of moto: every call passes here."""

import contextlib
import logging
import socket

from werkzeug.test import run_wsgi_app

from .errors import AwsError
from .identities import ACCOUNT
from .requests import Request

IDENTITY = """<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult><Arn>{arn}</Arn><UserId>{user}</UserId><Account>{account}</Account></GetCallerIdentityResult><ResponseMetadata><RequestId>c6104cbe-af31-11e0-8154-cbc7ccf896c7</RequestId></ResponseMetadata></GetCallerIdentityResponse>"""
logger = logging.getLogger("aws_bed")


class Gate:
    """A WSGI application around moto's."""

    def __init__(self, account, moto):
        self.account = account
        self.moto = moto

    def __call__(self, environ, start_response):
        try:
            request = Request(environ)
        except (ValueError, UnicodeDecodeError) as error:
            logger.warning("a request cannot be read: %s", error)
            start_response("400 Bad Request", [])
            return [b""]
        faults = self.account.faults
        with self.account.lock:
            faults.count(request)
            try:
                status, headers, body = self.carry_out(request, environ)
            except AwsError as error:
                status, headers, body = error.render(request.protocol)
            except Exception as error:
                logger.exception("%s failed in the test bed", request.name)
                wrong = AwsError("InternalError", f"the test bed failed: {error!r}", 500)
                status, headers, body = wrong.render(request.protocol)
            else:
                if faults.loses(request):
                    return cut(environ)
            finally:
                faults.kill(request)
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [body]

    def carry_out(self, request, environ):
        """Check a request, and let the test bed or moto answer it."""
        account = self.account
        request.caller = account.identities.identify(request)
        account.faults.refuse(request)
        request.read()
        account.permissions.check(request)
        if request.name == "sts:GetCallerIdentity":
            text = IDENTITY.format(
                arn=request.caller.arn, user=request.caller.user or "AROABED", account=ACCOUNT
            )
            return "200 OK", [("Content-Type", "text/xml")], text.encode()
        document = account.answer(request)
        if document is not None:
            kind = "application/x-amz-json-1.1" if request.protocol == "json" else "text/xml"
            if isinstance(document, str):
                document = document.encode()
            return "200 OK", [("Content-Type", kind)], document
        body, status, headers = run_wsgi_app(self.moto, environ, buffered=True)
        body = b"".join(body)
        if status.startswith("2"):
            account.done(request)
        elif status.startswith("5"):
            logger.warning("%s failed in moto: %s", request.name, body[:2000])
        kept = [
            (name, value)
            for name, value in headers
            if name.lower() not in {"content-length", "date", "server", "connection"}
        ]
        return status, kept, body


def cut(environ):
    """Break the connection: the caller does not learn that its call was carried out."""
    connection = environ["werkzeug.socket"]
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    return []
