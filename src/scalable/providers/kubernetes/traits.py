"""Traits of the kubernetes provider."""

from scalable.model import Starting, Traits

TRAITS = Traits(
    remote=True,
    starting=Starting(startup_s=30.0),
    # The manager of a cluster may run in a pod too.
    extras=("kubernetes",),
)
