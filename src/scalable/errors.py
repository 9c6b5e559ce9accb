"""Errors raised by the package, each with a message, a hint, a code and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from scalable.model.diagnostics import Diagnostic


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
    #: True if a script that exits with the error prints the message without a traceback.
    alone = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ManifestError(ScalableError):
    """A manifest has errors. ``diagnostics`` contains all of them."""

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
        True if the same request may succeed later.
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
    """No worker will run a task, because its pool is degraded or does not exist."""

    code = "E_NO_WORKERS"


class RunError(ScalableError):
    """A recorded run is missing or cannot be read."""

    code = "E_RUN"
    exit_code = 6
