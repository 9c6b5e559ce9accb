"""Traits of the gcp provider."""

from scalable.model import Starting, Traits

TRAITS = Traits(
    remote=True,
    # A machine is billed from its first second, for at least a minute.
    starting=Starting(startup_s=75.0, billed_least_s=60.0),
    # The manager of a cluster may run on a machine too.
    extras=("gcp",),
)
