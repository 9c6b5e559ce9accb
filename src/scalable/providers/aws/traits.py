"""Traits of the aws provider."""

from scalable.model import Starting, Traits

TRAITS = Traits(
    remote=True,
    # Assumed until starts are measured: a Fargate task gets a machine in about 30 s, and pulls the
    # image, for which it is charged already, in another 60 s.
    starting=Starting(startup_s=90.0, billed_s=60.0, billed_least_s=60.0),
    # The manager of a cluster may run there too, and instances read their files with the library.
    extras=("aws",),
)
