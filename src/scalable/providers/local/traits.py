"""Traits of the local provider."""

from scalable.model import Starting, Traits

TRAITS = Traits(
    on_this_machine=True,
    shares_files=True,
    asks_first=False,
    counts_startup=False,
    starting=Starting(startup_s=1.0, billed_least_s=0.0),
)
