"""Faults that a test asks for, and the count of calls."""

import contextlib
import fnmatch
import itertools
import os
import signal
from collections import Counter

from .errors import AwsError

#: How a service says that it is asked too often; all others say ThrottlingException.
THROTTLED = {
    "ec2": ("RequestLimitExceeded", "Request limit exceeded.", 503),
    "iam": ("Throttling", "Rate exceeded", 400),
    "sts": ("Throttling", "Rate exceeded", 400),
}


class Rule:
    """One fault: operations that it concerns, and how often it comes."""

    def __init__(self, operations, times=None, every=1, **fields):
        self.operations = operations
        self.times = times
        self.every = every
        self.fields = fields
        self.seen = 0

    def applies(self, name):
        """Whether the fault comes now; it counts the tasks that it concerns."""
        if self.times == 0 or not fnmatch.fnmatch(name, self.operations):
            return False
        self.seen += 1
        if self.seen % self.every:
            return False
        if self.times is not None:
            self.times -= 1
        return True


class Faults:
    """Faults in force. A rule is known by its number."""

    def __init__(self):
        self.calls = Counter()
        self.rules = {}
        self.numbers = itertools.count(1)

    def add(self, kind, operations, times=None, every=1, **fields):
        """Begin a fault; return its number."""
        number = next(self.numbers)
        self.rules[number] = (kind, Rule(operations, times, every, **fields))
        return number

    def clear(self, number=None):
        """End one fault, or all."""
        if number is None:
            self.rules.clear()
        else:
            self.rules.pop(number, None)

    def of(self, kind, name):
        """Return the first rule of a kind that applies to this call, None without one."""
        for its_kind, rule in list(self.rules.values()):
            if its_kind == kind and rule.applies(name):
                return rule
        return None

    # Asked by the gate ----------------------------------------------------------------------------

    def count(self, request):
        self.calls[request.name] += 1

    def refuse(self, request):
        """Raise the error that a fault wants for this call."""
        if self.of("throttle", request.name):
            usual = ("ThrottlingException", "Rate exceeded", 400)
            raise AwsError(*THROTTLED.get(request.service, usual))
        rule = self.of("error", request.name)
        if rule:
            fields = rule.fields
            raise AwsError(fields["code"], fields["message"], fields.get("status", 400))

    def loses(self, request):
        """Whether the answer to this call is lost after it was carried out."""
        return self.of("lose", request.name) is not None

    def kill(self, request):
        """Kill the process that a test has named, if this is the call it is to die at."""
        rule = self.of("kill", request.name)
        if rule is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rule.fields["pid"], signal.SIGKILL)

    def capacity_rule(self, name, **machine):
        """Return the rule that leaves a machine without capacity, None without one.

        A rule names what it concerns by patterns: `zone`, `type`, `provider`.
        """
        for kind, rule in list(self.rules.values()):
            if kind != "capacity":
                continue
            wanted = {k: v for k, v in rule.fields.items() if k not in {"reason", "code"}}
            fits = all(fnmatch.fnmatch(machine.get(k) or "", v) for k, v in wanted.items())
            if fits and rule.applies(name):
                return rule
        return None

    def startup(self, order):
        """Return the trouble of a machine that starts: `never`, `delay`, `error`."""
        rule = self.of("startup", order.name)
        return rule.fields if rule else {}
