"""`Row`: the result of one check."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Row:
    """The result of one check.

    Attributes
    ----------
    what
        Name of the checked thing.
    verdict
        ``ok``, ``warn`` (something will not work or is risky), or ``fail``.
    fact
        The fact that was found.
    mend
        Way to mend it, a command where possible; empty if there is nothing to mend.
    """

    what: str
    verdict: Verdict
    fact: str
    mend: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as plain JSON values."""
        return asdict(self)
