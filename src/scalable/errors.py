"""The whole error tree.

::

    ScalableError                  exit 1
    +-- ManifestError              exit 2   the file is wrong; has every fault with its place
    +-- PlanError                  exit 3   no plan can be made of what was asked
    +-- ProviderError              exit 4   a place refused or failed; may be transient
    |   +-- UnknownProviderError   exit 4   also a KeyError
    +-- ClusterError               exit 5   the running cluster cannot do what was asked
    |   +-- UnknownClusterError    exit 5   there is none of that name
    |   +-- NameTakenError         exit 5   there is one of that name
    +-- RunError                   exit 6   a recorded run is missing or cannot be read

Each has a message fit for a user, a hint (the way out) and a stable code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from scalable.spec.diagnostics import Diagnostic


class ScalableError(Exception):
    """The root of every error that this package raises on purpose.

    Parameters
    ----------
    message
        What went wrong, naming the thing.
    hint
        What to do about it.
    """

    code: ClassVar[str] = "E_SCALABLE"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ManifestError(ScalableError):
    """A manifest cannot be used; ``diagnostics`` holds every fault that was found."""

    code = "E_MANIFEST"
    exit_code = 2

    def __init__(
        self, message: str, *, diagnostics: Sequence[Diagnostic] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.diagnostics = tuple(diagnostics)

    def __str__(self) -> str:
        lines = [super().__str__(), *(d.render() for d in self.diagnostics)]
        return "\n".join(lines)


class PlanError(ScalableError):
    """No plan can be made of what was asked."""

    code = "E_PLAN"
    exit_code = 3


class ProviderError(ScalableError):
    """A place refused or failed.

    Parameters
    ----------
    message, hint
        As in :class:`ScalableError`.
    transient
        True where the same request may succeed later.
    """

    code = "E_PROVIDER"
    exit_code = 4

    def __init__(self, message: str, *, hint: str | None = None, transient: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.transient = transient


class UnknownProviderError(ProviderError, KeyError):
    """No provider of that name is built in, registered or installed."""

    code = "E_UNKNOWN_PROVIDER"


class ClusterError(ScalableError):
    """The running cluster cannot do what was asked."""

    code = "E_CLUSTER"
    exit_code = 5


class UnknownClusterError(ClusterError):
    """There is no cluster of that name."""

    code = "E_NO_CLUSTER"


class NameTakenError(ClusterError):
    """There is a cluster of that name already."""

    code = "E_NAME_TAKEN"


class RunError(ScalableError):
    """A recorded run is missing or cannot be read."""

    code = "E_RUN"
    exit_code = 6
