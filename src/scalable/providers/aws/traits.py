"""Traits of the aws provider."""

from scalable.spec import Starting, Traits

TRAITS = Traits(
    remote=True,
    # Assumed until starts are measured: a Fargate task gets a machine in about 30 s, and pulls the
    # image, for which it is charged already, in another 60 s.
    starting=Starting(startup_s=90.0, billed_s=60.0, billed_least_s=60.0),
    # A cluster's manager may run there too, and instances read their files with the library.
    image_extras=("aws",),
)
