"""Traits: the properties of a provider that the rest of the package acts upon."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Starting:
    """Assumed time and price of starting a worker, until starts have been measured.
    The defaults suit a cloud, which bills a machine from its boot on.
    """

    #: Seconds from the request of a worker until it connects.
    startup_s: float = 60.0
    #: Largest number of seconds of a start that are billed.
    billed_s: float = math.inf
    #: Shortest time that is billed for a worker, in seconds.
    billed_least_s: float = 60.0


@dataclass(frozen=True)
class Traits:
    """Properties of a provider. The defaults suit a provider without further information."""

    #: Workers run here, without a queue or costs; schedulers listen on loopback.
    on_this_machine: bool = False
    #: Workers see the file system of the user's machine.
    shares_files: bool = False
    #: The backend stores cluster files and runs managers: see methods ``places`` and ``remote``.
    remote: bool = False
    #: ``scalable up`` asks first, because starting workers costs money or queue time.
    asks_first: bool = True
    #: Starting a worker takes long enough to appear in plans.
    counts_startup: bool = True
    starting: Starting = field(default_factory=Starting)
    #: Target option and value for a remote scheduler and managers. None: always local.
    services_option: tuple[str, str] | None = None
    #: Environment variable that is set inside the provider's jobs, or None.
    job_variable: str | None = None
    #: Maximum length of a tag; the default is that of Kubernetes and Google Cloud labels.
    longest_tag: int = 63
    #: Extras of this package that the provider needs.
    extras: tuple[str, ...] = ()
    #: Programs of other packages that the provider runs on the user's machine.
    programs: tuple[str, ...] = ()
