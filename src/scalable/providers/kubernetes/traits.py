"""Traits of the kubernetes provider."""

from scalable.spec import Starting, Traits

# The manager of a cluster may run in a pod too.
TRAITS = Traits(starting=Starting(startup_s=30.0), image_extras=("kubernetes",))
