"""Rules for strings that become paths, arguments, labels, variables or job names.
Each rule is checked where a string comes in, and again where it is rendered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from scalable.errors import ClusterError, ScalableError
from scalable.harmless import is_control

_SHOWN = 60
_LETTERS = "A-Za-z0-9_"
_WORD = "A-Za-z0-9_.-"


@dataclass(frozen=True)
class Rule:
    """Rule for one kind of name or string."""

    #: Kind of the string, as in "cannot be the name of a target".
    noun: str
    #: Advice on what to write instead.
    hint: str
    #: Maximum number of characters.
    longest: int = 63
    #: Characters allowed first and later, as in regex brackets; empty allows all but controls.
    first: str = ""
    rest: str = ""
    #: Further characters that are not allowed.
    refused: str = ""
    #: Reserved names.
    taken: frozenset[str] = frozenset()
    #: True if a string may start with a dash. Only for rules without ``first``.
    may_begin_with_dash: bool = False

    @cached_property
    def pattern(self) -> str:
        return f"[{self.first}][{self.rest}]{{0,{self.longest - 1}}}"

    def limited(self, longest: int) -> Rule:
        return replace(self, longest=min(self.longest, longest))

    def accepts(self, text: object) -> bool:
        return self.fault(text) is None

    def fault(self, text: object) -> str | None:
        """Return the reason why a value is refused, as a sentence, or None if it is allowed."""
        problem = self._problem(text) if isinstance(text, str) else "is not a string"
        if problem is None:
            return None
        shown = repr(text)
        shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
        return f"{shown} cannot be {self.noun}: it {problem}"

    def require(self, text: str, error: type[ScalableError] = ClusterError) -> str:
        """Return the string, or raise the given error if the rule refuses it."""
        fault = self.fault(text)
        if fault is not None:
            raise error(fault, hint=self.hint)
        return text

    def _problem(self, text: str) -> str | None:
        if not text:
            return "is empty"
        if len(text) > self.longest:
            return f"has {len(text)} characters, and the limit is {self.longest}"
        if text in self.taken:
            return "is reserved"
        odd = next((c for c in text if is_control(c) or c in self.refused), None)
        if odd is not None:
            return f"contains {odd!r}"
        return self._misspelt(text) if self.first else self._dashed(text)

    def _misspelt(self, text: str) -> str | None:
        if not re.fullmatch(f"[{self.first}]", text[0]):
            return f"starts with {text[0]!r}"
        odd = next((c for c in text if not re.fullmatch(f"[{self.rest}]", c)), None)
        return None if odd is None else f"contains {odd!r}"

    def _dashed(self, text: str) -> str | None:
        dash = text.startswith("-") and not self.may_begin_with_dash
        return "starts with '-', like an option" if dash else None


_WORD_HINT = "use letters, digits, dots, dashes and underscores"
_ANY_HINT = "use printable characters; the first is not a dash"
#: Id of a cluster's scheduler among its programs.
SCHEDULER = "scheduler"

#: A target's name is also its manager's id: a directory, and a part of job names.
TARGET = Rule(
    "the name of a target",
    f"{_WORD_HINT}; the first is a letter, a digit or an underscore",
    longest=60,
    first=_LETTERS,
    rest=_WORD,
)
#: Tags are part of the names of Dask resources, jobs and pods, and of `tag=n` on command lines.
#: The limit of a provider may be lower: ``Traits.longest_tag``.
TAG = Rule("the name of a component", _WORD_HINT, longest=128, first=_LETTERS, rest=_WORD)
CLUSTER = Rule(
    "the name of a cluster",
    f"{_WORD_HINT}, at most 63; the first is a letter or a digit",
    first="A-Za-z0-9",
    rest=_WORD,
)
MANAGER = Rule(
    "the id of a manager",
    f"{_WORD_HINT}, at most 63; {SCHEDULER!r} is taken",
    first=_LETTERS,
    rest=_WORD,
    taken=frozenset({SCHEDULER}),
)
PROJECT = Rule("the name of a project", _ANY_HINT, longest=200)
TASK = Rule("the name of a task", _ANY_HINT, longest=200)
LABEL = Rule("a label", _ANY_HINT, longest=200)
#: Reserved: variables that a bash script cannot set, the name of a job's worker, and the
#: directory that a worker removes when it exits.
VARIABLE = Rule(
    "the name of an environment variable",
    "use letters, digits and underscores; the first is not a digit",
    longest=255,
    first="A-Za-z_",
    rest=_LETTERS,
    taken=frozenset(
        {
            "BASHOPTS",
            "BASH_VERSINFO",
            "EUID",
            "PPID",
            "SCALABLE_SCRATCH",
            "SCALABLE_UNIT",
            "SHELLOPTS",
            "UID",
        }
    ),
)
#: Variables of a rendered environment, which includes scalable's own.
ANY_VARIABLE = replace(VARIABLE, taken=frozenset())
INTERFACE = Rule(
    "the name of a network interface",
    "write it as `ip link` shows it, such as ib0",
    longest=15,
    first=_LETTERS,
    rest="A-Za-z0-9_.:@-",
)
IMAGE = Rule(
    "a container image",
    "write the path of an image, or a reference such as ghcr.io/site/model:1",
    longest=4096,
)
#: Option values that become arguments of commands.
ARGUMENT = Rule("the value of an option", _ANY_HINT, longest=2048)
#: Mounts are written as CSV, so that colons, commas and quotes of paths survive.
PATH = Rule(
    "a path", "use printable characters on one line", longest=4096, may_begin_with_dash=True
)
#: One part of a path, made of a string that another rule has checked.
FILE_NAME = Rule(
    "the name of a file",
    "use a name without '/' that is neither '.' nor '..'",
    longest=255,
    refused="/",
    taken=frozenset({".", ".."}),
    may_begin_with_dash=True,
)
#: Name of a Slurm job, a container or another resource, made of names that were checked.
JOB = Rule("the name of a job", _WORD_HINT, longest=255, first=_LETTERS, rest="A-Za-z0-9_.@-")


def check_variables(
    variables: Mapping[str, str], error: type[ScalableError], rule: Rule = VARIABLE
) -> None:
    """Raise ``error`` if the name or value of an environment variable is not allowed."""
    for name, value in variables.items():
        rule.require(name, error)
        if "\0" in value:
            raise error(
                f"the value of environment variable {name} contains a NUL character",
                hint="remove it: no program accepts such a value",
            )
