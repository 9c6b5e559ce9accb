"""Filters of lists, and their pages, as Compute Engine has them."""

import base64
import binascii
import operator
import re

from .errors import invalid

TOKEN = re.compile(
    r'\s*(?:(?P<mark>[()])|"(?P<text>(?:[^"\\]|\\.)*)"|(?P<sign>!=|>=|<=|[=:<>])|(?P<word>[^\s()=!:<>"]+))'
)
SIGNS = {"eq", "ne"}


class Filter:
    """An expression such as `labels.a=b AND (status = "RUNNING" OR NOT name:x*)`.

    `OR` binds more tightly than `AND`, and expressions side by side are joined by `AND`.
    """

    def __init__(self, text):
        self.whole = text
        self.tokens = []
        position = 0
        text = text.rstrip()
        while position < len(text):
            found = TOKEN.match(text, position)
            if not found:
                raise self.wrong()
            kind = found.lastgroup
            self.tokens.append((kind, found[kind]))
            position = found.end()
        self.at = 0
        self.root = self.conjunction() if self.tokens else lambda _: True
        if self.at < len(self.tokens):
            raise self.wrong()

    def __call__(self, obj):
        return self.root(obj)

    def wrong(self):
        return invalid("filter", self.whole, "Invalid list filter expression.")

    def peek(self, ahead=0):
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else ("", "")

    def take(self):
        token = self.peek()
        if not token[0]:
            raise self.wrong()
        self.at += 1
        return token

    def conjunction(self):
        parts = [self.disjunction()]
        while self.peek()[0] and self.peek() != ("mark", ")"):
            if self.peek() == ("word", "AND"):
                self.take()
            parts.append(self.disjunction())
        return lambda obj: all(part(obj) for part in parts)

    def disjunction(self):
        parts = [self.term()]
        while self.peek() == ("word", "OR"):
            self.take()
            parts.append(self.term())
        return lambda obj: any(part(obj) for part in parts)

    def term(self):
        if self.peek() == ("word", "NOT"):
            self.take()
            inner = self.term()
            return lambda obj: not inner(obj)
        if self.peek() == ("mark", "("):
            self.take()
            inner = self.conjunction()
            if self.take() != ("mark", ")"):
                raise self.wrong()
            return inner
        return self.comparison()

    def comparison(self):
        kind, name = self.take()
        negated = name.startswith("-") and kind == "word"
        path = name.removeprefix("-") if negated else name
        kind_of_sign, sign = self.take()
        if kind not in {"word", "text"} or not (kind_of_sign == "sign" or sign in SIGNS):
            raise self.wrong()
        kind, value = self.take()
        if kind not in {"word", "text"}:
            raise self.wrong()
        value = re.sub(r"\\(.)", r"\1", value) if kind == "text" else value
        test = comparison(sign, value, quoted=kind == "text")
        return lambda obj: test(field(obj, path)) != negated


def field(obj, path):
    """Return the value at a path with dots; keys of labels may not contain any."""
    for part in path.split("."):
        obj = obj.get(part) if isinstance(obj, dict) else None
    return obj


def comparison(sign, value, quoted):
    """Return the test of a field's value."""

    def text(found):
        return (
            str(found).lower() if isinstance(found, bool) else "" if found is None else str(found)
        )

    def matches(found, expression):
        return re.fullmatch(expression, text(found)) is not None

    def numbers(found):
        return float(text(found) or "nan"), float(value)

    wild = ".*".join(re.escape(part) for part in value.split("*"))
    tests = {
        "=": lambda found: matches(found, re.escape(value) if quoted else wild),
        "!=": lambda found: not matches(found, re.escape(value) if quoted else wild),
        "eq": lambda found: matches(found, value),
        "ne": lambda found: not matches(found, value),
        ":": lambda found: found is not None and (value == "*" or matches(found, f".*{wild}.*")),
        "<": lambda found: operator.lt(*numbers(found)),
        "<=": lambda found: operator.le(*numbers(found)),
        ">": lambda found: operator.gt(*numbers(found)),
        ">=": lambda found: operator.ge(*numbers(found)),
    }
    return tests[sign]


def page(query, items):
    """Return the items of one page, and what its answer says of the next one."""
    chosen = Filter(query.get("filter", ""))
    items = [item for item in items if chosen(item)]
    order = query.get("orderBy", "name")
    if order not in {"name", "creationTimestamp desc"}:
        raise invalid("orderBy", order, "Only name and creationTimestamp desc are supported.")
    key = order.split()[0]
    if key == "creationTimestamp" and items and "insertTime" in items[0]:
        key = "insertTime"  # of operations
    items.sort(key=lambda item: item.get(key, ""), reverse=order.endswith("desc"))
    start = 0
    if query.get("pageToken"):
        try:
            start = int(base64.urlsafe_b64decode(query["pageToken"]))
        except (ValueError, binascii.Error):
            raise invalid("pageToken", query["pageToken"], "Invalid page token.") from None
    size = int(query.get("maxResults") or query.get("pageSize") or 500)
    more = {}
    if start + size < len(items):
        token = base64.urlsafe_b64encode(str(start + size).encode()).decode()
        more["nextPageToken"] = token
    return items[start : start + size], more
