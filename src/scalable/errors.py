"""The errors that the package raises.

::

    ScalableError                  exit 1
    +-- ManifestError              exit 2   the file is wrong; has every fault with its place
    +-- PlanError                  exit 3   the request cannot be planned
    +-- ProviderError              exit 4   the provider refused or failed; may be transient
    |   +-- UnknownProviderError   exit 4   also a KeyError
    +-- ClusterError               exit 5   the cluster cannot do what was requested
    |   +-- UnknownClusterError    exit 5   no cluster has the name
    |   +-- NameTakenError         exit 5   a cluster already has the name
    |   +-- NoWorkersError         exit 5   no worker will run a call: its pool is degraded or gone
    +-- RunError                   exit 6   a recorded run is missing or cannot be read

Each error has a message for users, a hint and a stable code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from scalable.spec.diagnostics import Diagnostic


class ScalableError(Exception):
    """Base class of the errors that this package raises.

    Parameters
    ----------
    message
        Description of the problem.
    hint
        Advice on how to solve it.
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
    """A manifest has faults; ``diagnostics`` holds all of them."""

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
    """The request cannot be planned."""

    code = "E_PLAN"
    exit_code = 3


class ProviderError(ScalableError):
    """A provider refused a request or failed.

    Parameters
    ----------
    message, hint
        As in :class:`ScalableError`.
    transient
        Whether the same request may succeed later.
    """

    code = "E_PROVIDER"
    exit_code = 4

    def __init__(self, message: str, *, hint: str | None = None, transient: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.transient = transient


class UnknownProviderError(ProviderError, KeyError):
    """No built-in, registered or installed provider has the name."""

    code = "E_UNKNOWN_PROVIDER"


class ClusterError(ScalableError):
    """The cluster cannot do what was requested."""

    code = "E_CLUSTER"
    exit_code = 5


class UnknownClusterError(ClusterError):
    """No cluster has the name."""

    code = "E_NO_CLUSTER"


class NameTakenError(ClusterError):
    """A cluster already has the name."""

    code = "E_NAME_TAKEN"


class NoWorkersError(ClusterError):
    """No worker will run a call: its pool is degraded, or does not exist."""

    code = "E_NO_WORKERS"


class RunError(ScalableError):
    """A recorded run is missing or cannot be read."""

    code = "E_RUN"
    exit_code = 6
