"""Traits of the aws provider."""

from scalable.spec import Traits

TRAITS = Traits()
