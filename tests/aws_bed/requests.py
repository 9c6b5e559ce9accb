"""Requests read and validated by botocore's service models."""

import functools
import io
import json
import re
from urllib.parse import parse_qs, parse_qsl

import botocore.session
from botocore.serialize import create_serializer
from botocore.validate import ParamValidator
from moto.core.model import OperationModel, ServiceModel
from moto.core.parse import EC2QueryParser, QueryParser
from werkzeug.datastructures import MultiDict

from .errors import AwsError

#: Name in a signature -> name of the service model.
SERVICES = {
    "ecs": "ecs",
    "ec2": "ec2",
    "iam": "iam",
    "sts": "sts",
    "secretsmanager": "secretsmanager",
    "ssm": "ssm",
    "logs": "logs",
    "tagging": "resourcegroupstaggingapi",
    "pricing": "pricing",
    "servicequotas": "service-quotas",
}
CREDENTIAL = re.compile(r"Credential=([^/]+)/(\d+)/([^/]+)/([^/]+)/aws4_request")
SIGNED = re.compile(r"(SignedHeaders|Signature)=([^,\s]+)")
#: Codes for a request that does not satisfy the model.
INVALID = {
    "json": "ValidationException",
    "query": "ValidationError",
    "ec2": "InvalidParameterValue",
}
LENGTHS = {str: "length", list: "number of entries"}


@functools.cache
def model(service):
    """Return the model of a service."""
    loader = botocore.session.get_session().get_component("data_loader")
    return ServiceModel(loader.load_service_model(service, "service-2"), service)


class Request:
    """A call of an operation: who calls it, in which region, with which parameters."""

    def __init__(self, environ):
        self.environ = environ
        found = CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
        self.key, _, self.region, signing = found.groups() if found else ("", "", "", "")
        words = dict(SIGNED.findall(environ.get("HTTP_AUTHORIZATION", "")))
        self.signed_headers = words.get("SignedHeaders", "").split(";")
        self.signature = words.get("Signature", "")
        self.token = environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "")
        self.service = SERVICES.get(signing)
        self.signing = signing
        self.operation = ""
        self.parameters = {}
        self.protocol = "query"
        self.body = b""
        #: Set by the gate: the one who calls.
        self.caller = None
        if self.service:
            self.body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(self.body)
            self.protocol = model(self.service).protocol
            self.operation = self.operation_name()

    @property
    def name(self):
        """The operation as `service:Operation`."""
        return f"{self.signing}:{self.operation or self.environ['REQUEST_METHOD']}"

    def operation_name(self):
        if self.protocol == "json":
            return self.environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        words = parse_qs(self.body.decode()) or parse_qs(self.environ.get("QUERY_STRING", ""))
        return words.get("Action", [""])[0]

    @property
    def invalid(self):
        """The code of the error for parameters that the model refuses."""
        return "InvalidParameterException" if self.service == "ecs" else INVALID[self.protocol]

    def read(self):
        """Read the parameters and check them by the model."""
        if self.service is None:
            return
        if self.operation not in model(self.service).operation_names:
            code = "InvalidAction" if self.protocol != "json" else "UnknownOperationException"
            raise AwsError(code, f"The action {self.operation} is not valid for this web service.")
        operation = model(self.service).operation_model(self.operation)
        if self.protocol == "json":
            try:
                self.parameters = json.loads(self.body or b"{}")
            except ValueError as error:
                raise AwsError("SerializationException", f"no JSON: {error}") from error
        else:
            self.parameters = self.query(operation)
        if operation.input_shape is None:
            return
        report = ParamValidator().validate(self.parameters, operation.input_shape)
        if report.has_errors():
            raise AwsError(self.invalid, report.generate_report())
        check(self.parameters, operation.input_shape, "", self.invalid)

    def query(self, operation: OperationModel):
        """Read a request whose parameters are a form; refuse keys that the model does not have."""
        pairs = parse_qsl(self.body.decode(), keep_blank_values=True)
        parser = (EC2QueryParser if self.protocol == "ec2" else QueryParser)(operation)
        asked = {"values": MultiDict(pairs), "body": self.body, "headers": {}}
        try:
            found = parser.parse(asked)
        except (ValueError, KeyError, TypeError) as error:
            raise AwsError(self.invalid, f"{self.operation} cannot be read: {error}") from error
        found = found or {}
        again = create_serializer(self.protocol, False).serialize_to_request(found, operation)
        for key, _ in pairs:
            if key not in again["body"] and key not in {"Action", "Version"}:
                known = operation.input_shape.members if operation.input_shape else {}
                if self.protocol == "query" and key in known:
                    continue  # an empty list
                raise AwsError("UnknownParameter", f"The parameter {key} is not recognized")
        return found


def check(value, shape, path, code):
    """Check what botocore's own validation leaves to the service: enumerations and upper limits."""
    if shape.type_name == "structure" and isinstance(value, dict):
        for name, inner in value.items():
            if name in shape.members:
                check(inner, shape.members[name], f"{path}.{name}".strip("."), code)
    elif shape.type_name == "list":
        for number, inner in enumerate(value):
            check(inner, shape.member, f"{path}[{number}]", code)
    elif shape.type_name == "map":
        for key, inner in value.items():
            check(inner, shape.value, f"{path}.{key}", code)
    elif shape.type_name == "string":
        check_text(value, shape, path, code)
    most = shape.metadata.get("max")
    if most is not None and isinstance(value, str | list) and len(value) > most:
        what = LENGTHS[type(value)]
        raise AwsError(code, f"The {what} of {path} is {len(value)}; it may be {most} at most")
    if most is not None and shape.type_name in {"integer", "long"} and value > most:
        raise AwsError(code, f"The value of {path} is {value}; it may be {most} at most")


def check_text(value, shape, path, code):
    """Check a text against its enumeration and its pattern."""
    if getattr(shape, "enum", None) and value not in shape.enum:
        some = ", ".join(shape.enum[:12])
        raise AwsError(code, f"Value ({value}) for parameter {path} is invalid; valid: {some}")
    pattern = compiled(shape.metadata.get("pattern", ""))
    if pattern is not None and not pattern.fullmatch(value):
        text = f"Value '{value}' at '{path}' failed to satisfy constraint: Member must satisfy regular expression pattern: {pattern.pattern}"
        raise AwsError(code, text)


@functools.cache
def compiled(pattern):
    """Return a pattern of a model, None if it is of a kind that Python does not know."""
    try:
        return re.compile(pattern, re.DOTALL) if pattern else None
    except re.error:
        return None
