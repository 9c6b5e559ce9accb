"""Answers of the API server that are not 200: a `Status` object and its HTTP code."""

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiError(Exception):
    """An error that the API server answers as a `Status` object."""

    def __init__(self, code, message, reason=None, details=None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or REASONS.get(code, "Unknown")
        self.details = details or {}

    def status(self):
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def not_found(kind, name):
    details = {"name": name, "kind": kind.plural, "group": kind.group}
    return ApiError(404, f'{kind.qualified} "{name}" not found', details=details)


def invalid(kind, name, *causes):
    """Return the 422 of a body with wrong fields; `causes` are (field, message)."""
    text = "; ".join(f"{field}: {message}" if field else message for field, message in causes)
    details = {
        "name": name,
        "group": kind.group,
        "kind": kind.kind,
        "causes": [
            {"reason": "FieldValueInvalid", "message": message, "field": field}
            for field, message in causes
        ],
    }
    title = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    return ApiError(422, f'{title} "{name}" is invalid: {text}', details=details)


def conflict(kind, name):
    return ApiError(
        409,
        f'Operation cannot be fulfilled on {kind.qualified} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again",
        details={"name": name, "kind": kind.plural, "group": kind.group},
    )
