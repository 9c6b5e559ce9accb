"""Traits of the kubernetes provider."""

from scalable.spec import Starting, Traits

TRAITS = Traits(starting=Starting(startup_s=30.0))
