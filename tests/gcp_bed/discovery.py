"""The APIs as their discovery documents describe them: routes, parameters, bodies."""

import base64
import binascii
import json
import re
from dataclasses import dataclass
from pathlib import Path

import googleapiclient

from .errors import ApiError, invalid

DOCUMENTS = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
#: Name of the document, and what stands before its paths.
APIS = (
    ("compute.v1", "compute/v1/"),
    ("secretmanager.v1", ""),
    ("cloudresourcemanager.v1", ""),
    ("cloudresourcemanager.v3", ""),
)
INTEGERS = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}


@dataclass(frozen=True)
class Route:
    """A method of an API, and the parameters that its path carries."""

    document: dict
    method: dict
    path: dict

    @property
    def id(self):
        return self.method["id"]


class Discovery:
    """All methods of the APIs of the test bed, by verb and path."""

    def __init__(self):
        self.methods = {}
        self.known = set()
        for name, prefix in APIS:
            document = json.loads((DOCUMENTS / f"{name}.json").read_text())
            for method in methods(document):
                self.known.add(method["id"])
                path = prefix + method.get("flatPath", method["path"])
                key = method["httpMethod"], path.count("/")
                pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/:]+)", re.escape(path))
                entry = (path.count("{"), re.compile(pattern), document, method)
                self.methods.setdefault(key, []).append(entry)
        for entries in self.methods.values():
            entries.sort(key=lambda entry: entry[0])

    def route(self, verb, path):
        """Return the `Route` of a request, None if no API has it."""
        path = path.strip("/")
        for _, pattern, document, method in self.methods.get((verb, path.count("/")), ()):
            if found := pattern.fullmatch(path):
                return Route(document, method, found.groupdict())
        return None


def methods(resource):
    """Yield the methods of a document and of all its resources."""
    yield from resource.get("methods", {}).values()
    for inner in resource.get("resources", {}).values():
        yield from methods(inner)


# Parameters ---------------------------------------------------------------------------------------


def check_parameters(route, query):
    """Return the parameters of a request by name; refuse those that the method does not have."""
    specs = route.document["parameters"] | route.method.get("parameters", {})
    for name, value in route.path.items():
        spec = specs.get(name, {})
        if "pattern" in spec and not re.fullmatch(spec["pattern"].strip("^$"), value):
            raise invalid(name, value, f"Must be a match of regex '{spec['pattern']}'")
    found = {}
    for name in dict.fromkeys(query):
        if name.startswith("$"):
            continue
        if name not in specs or specs[name]["location"] != "query":
            text = f"Invalid JSON payload received. Unknown name \"{name}\": Cannot bind query parameter. Field '{name}' could not be found in request message."
            raise ApiError(400, text)
        values = query.getall(name)
        for value in values:
            check_text(specs[name], value, name)
        found[name] = values if specs[name].get("repeated") else values[-1]
    for name, spec in specs.items():
        if spec.get("required") and spec["location"] == "query" and name not in found:
            raise ApiError(400, f"Required parameter: {name}", "required")
    return found


def check_text(spec, value, name):
    """Refuse the text of a query parameter that is not of its type."""
    kind = spec["type"]
    if kind == "boolean" and value not in {"true", "false"}:
        raise invalid(name, value, "Must be a boolean")
    if kind == "integer" or spec.get("format") in INTEGERS:
        if not re.fullmatch(r"-?\d+", value):
            raise invalid(name, value, "Must be an integer")
        low = int(spec.get("minimum", INTEGERS[spec.get("format", "int32")][0]))
        high = int(spec.get("maximum", INTEGERS[spec.get("format", "int32")][1]))
        if not low <= int(value) <= high:
            raise invalid(name, value, f"Values must be within the range: [{low}, {high}]")
    if "enum" in spec and value not in spec["enum"]:
        raise invalid(name, value, f"Must be one of {spec['enum']}")


# Bodies -------------------------------------------------------------------------------------------


def check_body(route, body):
    """Return a body without what clients may not set; refuse one that its schema does not allow."""
    if "request" not in route.method:
        if body not in (None, {}):
            raise ApiError(400, f"{route.id} takes no body")
        return {}
    schema = {"$ref": route.method["request"]["$ref"]}
    if body is None:
        body = {}
    return Body(route.document["schemas"], route.id).value(schema, body, "resource")


class Body:
    """Checks the values of one body."""

    def __init__(self, schemas, method):
        self.schemas = schemas
        self.method = method

    def value(self, schema, value, where):
        if "$ref" in schema:
            schema = self.schemas[schema["$ref"]]
        check = getattr(self, f"is_{schema['type']}")
        return check(schema, value, where)

    def is_any(self, schema, value, where):
        return value

    def is_object(self, schema, value, where):
        if not isinstance(value, dict):
            raise payload(where, f'Proto field is not repeating, cannot start list: "{value}"')
        properties = schema.get("properties", {})
        rest = schema.get("additionalProperties")
        found = {}
        for key, inner in value.items():
            here = f"{where}.{key}"
            if key in properties:
                if inner is not None and not properties[key].get("readOnly"):
                    found[key] = self.value(properties[key], inner, here)
            elif rest is None:
                text = f"Invalid JSON payload received. Unknown name \"{key}\" at '{where}': Cannot find field."
                raise ApiError(400, text)
            else:
                found[key] = self.value(rest, inner, here)
        for key, inner in properties.items():
            if self.method in inner.get("annotations", {}).get("required", ()) and key not in found:
                raise ApiError(400, f"Required field '{where}.{key}' not specified", "required")
        return found

    def is_array(self, schema, value, where):
        if not isinstance(value, list):
            raise payload(where, f'expected a list, found "{value}"')
        return [self.value(schema["items"], v, f"{where}[{i}]") for i, v in enumerate(value)]

    def is_boolean(self, schema, value, where):
        if not isinstance(value, bool):
            raise payload(where, f'(TYPE_BOOL), "{value}"')
        return value

    def is_number(self, schema, value, where):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise payload(where, f'(TYPE_DOUBLE), "{value}"')
        return value

    def is_integer(self, schema, value, where):
        return self.whole(schema.get("format", "int32"), value, where)

    def whole(self, kind, value, where):
        whole = isinstance(value, str) and re.fullmatch(r"-?\d+", value)
        if isinstance(value, bool) or not (whole or isinstance(value, int)):
            raise payload(where, f'(TYPE_{kind.upper()}), "{value}"')
        low, high = INTEGERS[kind]
        if not low <= int(value) <= high:
            raise payload(where, f'(TYPE_{kind.upper()}), "{value}"')
        return int(value)

    def is_string(self, schema, value, where):
        form = schema.get("format")
        if form in INTEGERS:
            return str(self.whole(form, value, where))
        if not isinstance(value, str):
            raise payload(where, f'(TYPE_STRING), "{value}"')
        if form == "byte":
            try:
                base64.b64decode(value.replace("-", "+").replace("_", "/"), validate=True)
            except binascii.Error:
                raise payload(
                    where, f'(TYPE_BYTES), Base64 decoding failed for "{value}"'
                ) from None
        if "enum" in schema and value not in schema["enum"]:
            raise payload(where, f'(type.googleapis.com/enum), "{value}"')
        pattern = schema.get("pattern")
        if pattern and not re.fullmatch(pattern, value):
            raise invalid(where, value, f"Must be a match of regex '{pattern}'")
        return value


def payload(where, why):
    """Return the error of a value of a wrong type."""
    return ApiError(400, f"Invalid value at '{where}' {why}")
