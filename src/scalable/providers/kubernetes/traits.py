"""Traits of the kubernetes provider."""

from scalable.spec import Traits

TRAITS = Traits()
