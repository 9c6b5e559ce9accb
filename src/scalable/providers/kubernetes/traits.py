"""Traits of the kubernetes provider."""

from scalable.spec import Starting, Traits

TRAITS = Traits(
    remote=True,
    starting=Starting(startup_s=30.0),
    # A cluster's manager may run in a pod too.
    image_extras=("kubernetes",),
)
