"""Traits of the gcp provider."""

from scalable.spec import Starting, Traits

TRAITS = Traits(
    remote=True,
    # A machine is billed from its first second, for at least a minute.
    starting=Starting(startup_s=75.0, billed_least_s=60.0),
    # A cluster's manager may run on a machine too.
    image_extras=("gcp",),
)
