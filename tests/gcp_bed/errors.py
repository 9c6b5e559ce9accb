"""Errors as Google's APIs answer them."""

#: HTTP status -> canonical name and the reason of an error that names no other.
CANONICAL = {
    400: ("INVALID_ARGUMENT", "invalid"),
    401: ("UNAUTHENTICATED", "authError"),
    403: ("PERMISSION_DENIED", "forbidden"),
    404: ("NOT_FOUND", "notFound"),
    409: ("ALREADY_EXISTS", "alreadyExists"),
    412: ("FAILED_PRECONDITION", "conditionNotMet"),
    413: ("INVALID_ARGUMENT", "uploadTooLarge"),
    429: ("RESOURCE_EXHAUSTED", "rateLimitExceeded"),
    500: ("INTERNAL", "backendError"),
    501: ("UNIMPLEMENTED", "notImplemented"),
    503: ("UNAVAILABLE", "backendError"),
}


class ApiError(Exception):
    """An error that the caller of an API sees."""

    def __init__(self, code, message, reason=None, status=None, details=()):
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status or CANONICAL[code][0]
        self.reason = reason or CANONICAL[code][1]
        self.details = list(details)

    def body(self):
        """Return the JSON of the answer."""
        entry = {"message": self.message, "domain": "global", "reason": self.reason}
        error = {
            "code": self.code,
            "message": self.message,
            "errors": [entry],
            "status": self.status,
        }
        if self.details:
            error["details"] = self.details
        return {"error": error}


def invalid(field, value, why):
    """Return the error of a value that Compute Engine does not take."""
    return ApiError(400, f"Invalid value for field '{field}': '{value}'. {why}")


def not_found(path):
    """Return the error of a resource that is not there; `path` begins with `projects/`."""
    return ApiError(404, f"The resource '{path}' was not found")
