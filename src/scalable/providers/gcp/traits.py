"""Traits of the gcp provider."""

from scalable.spec import Traits

TRAITS = Traits()
