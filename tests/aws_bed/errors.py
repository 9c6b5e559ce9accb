"""Errors as each protocol of AWS writes them."""

import json
import uuid
from xml.sax.saxutils import escape


class AwsError(Exception):
    """An answer that is an error: its code, its message, its HTTP status."""

    def __init__(self, code, message, status=400, **fields):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.fields = fields

    def render(self, protocol):
        """Return status, headers and body of the answer."""
        number = str(uuid.uuid4())
        if protocol == "json":
            told = {"__type": self.code, "message": self.message, **self.fields}
            kind, body = "application/x-amz-json-1.1", json.dumps(told)
        else:
            code, message = escape(self.code), escape(self.message)
            inner = f"<Code>{code}</Code><Message>{message}</Message>"
            if protocol == "ec2":
                body = f"<Response><Errors><Error>{inner}</Error></Errors><RequestID>{number}</RequestID></Response>"
            else:
                body = f"<ErrorResponse><Error><Type>Sender</Type>{inner}</Error><RequestId>{number}</RequestId></ErrorResponse>"
            kind = "text/xml"
        headers = [("Content-Type", kind), ("x-amzn-RequestId", number)]
        if protocol == "json":
            headers.append(("x-amzn-ErrorType", self.code))
        return f"{self.status} Error", headers, body.encode()
