"""Label and field selectors."""

import re

from .errors import ApiError

SET = re.compile(r"^(?P<key>\S+)\s+(?P<word>in|notin)\s*\((?P<values>[^)]*)\)$")


def split(text):
    """Split at the commas that stand outside of parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def requirement(text):
    """Return a predicate on a mapping for one requirement of a selector."""
    if found := SET.match(text):
        key = found["key"]
        values = {value.strip() for value in found["values"].split(",")}
        if found["word"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    for sign in ("!=", "==", "="):
        if sign in text:
            key, value = (part.strip() for part in text.split(sign, 1))
            if sign == "!=":
                return lambda labels: labels.get(key) != value
            return lambda labels: labels.get(key) == value
    if text.startswith("!"):
        return lambda labels: text[1:].strip() not in labels
    if not re.fullmatch(r"[A-Za-z0-9./_-]+", text):
        raise ApiError(400, f"unable to parse requirement: {text!r}")
    return lambda labels: text in labels


def field(obj, path):
    """Return the text at a path such as `status.phase`, "" where it is absent."""
    value = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)


class Fields(dict):
    """The fields of an object, read when asked for."""

    def __init__(self, obj):
        super().__init__()
        self.obj = obj

    def get(self, key, default=None):
        return field(self.obj, key)


class Selector:
    """The labels and the fields that a list or a watch asks for."""

    def __init__(self, labels="", fields=""):
        self.labels = [requirement(text) for text in split(labels or "")]
        self.fields = [requirement(text) for text in split(fields or "")]

    def matches(self, obj):
        labels = obj["metadata"].get("labels") or {}
        return all(wanted(labels) for wanted in self.labels) and all(
            wanted(Fields(obj)) for wanted in self.fields
        )


def matches_labels(selector, labels):
    """Whether labels satisfy a LabelSelector object (`matchLabels`, `matchExpressions`)."""
    labels = labels or {}
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for entry in selector.get("matchExpressions") or ():
        key, values = entry["key"], entry.get("values") or ()
        met = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }[entry["operator"]]
        if not met:
            return False
    return True
