"""Prices in force on a target, and the estimate of a plan's cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from scalable.model import (
    ComponentSpec,
    CostEstimate,
    DeploymentSpec,
    Diagnostic,
    ScalePlan,
    WorkerRange,
)
from scalable.model.prices import Offer, Packing, Price, Rate
from scalable.pricing.machines import by_price, packed
from scalable.pricing.tables import prices_of, shapes_of
from scalable.providers.remote.cloud import MachineRequest
from scalable.providers.remote.machines import (
    MANAGER_CPUS,
    MANAGER_MEMORY,
    SCHEDULER_CPUS,
    SCHEDULER_MEMORY,
)

#: Cores, and bytes of memory, of each program's machine.
PROGRAMS = {
    "scheduler": (SCHEDULER_CPUS, SCHEDULER_MEMORY),
    "manager": (MANAGER_CPUS, MANAGER_MEMORY),
}
#: Upper limit for the workers on one machine.
MOST_UNITS = 8


@dataclass(frozen=True)
class Quote:
    """Prices of one target."""

    #: Rates of the workers, by tag. A tag without a known price is missing.
    rates: Mapping[str, Rate] = field(default_factory=dict)
    #: Rates of the scheduler's and the manager's machines, by program.
    always: Mapping[str, Rate] = field(default_factory=dict)
    #: Sentences for the user, such as sizes that were rounded up.
    notes: tuple[str, ...] = ()


def prices_in_force(package: str, region: str, spec: DeploymentSpec) -> list[Price]:
    """Return the prices of a region, from the manifest or else from the table."""
    found = {price.shape: price for price in prices_of(package) if price.region == region}
    for shape, hourly in spec.prices.items():
        if shape in spec.components:
            continue
        if shape in found or shape in shapes_of(package):
            terms = found.get(shape) or Price(shape, region, 0.0)
            source = f"prices of target {spec.target_name!r}"
            found[shape] = replace(
                terms,
                per_hour=hourly,
                spot_per_hour=None,
                date=None,
                source=source,
                origin="manifest",
            )
    return list(found.values())


def unknown_names(package: str, spec: DeploymentSpec) -> list[str]:
    """Return the names in the target's ``prices`` that are neither a component nor a shape."""
    known = {price.shape for price in prices_of(package)} | shapes_of(package).keys()
    return [name for name in spec.prices if name not in known and name not in spec.components]


def estimated(quote: Quote, plan: ScalePlan) -> CostEstimate | None:
    """Return the hourly cost of a plan's workers and programs, or None if workers have no price."""
    if not quote.rates:
        return None
    by_tag = {
        tag: quote.rates[tag].hourly(count)
        for tag, count in plan.workers_by_tag.items()
        if tag in quote.rates
    }
    always = {name: rate.per_unit_hour for name, rate in quote.always.items()}
    used = [rate.price for rate in (*quote.rates.values(), *quote.always.values())]
    missing = [tag for tag in plan.workers_by_tag if tag not in quote.rates]
    notes = list(quote.notes)
    if missing:
        notes.append(f"The cost excludes workers of {', '.join(missing)}: no price is known.")
    return CostEstimate(
        total=None,
        by_tag=by_tag,
        hourly=sum(by_tag.values()) + sum(always.values()),
        source=", ".join(_unique(price.source for price in used)),
        as_of=min((price.date for price in used if price.date), default=None),
        always_by_name=always,
        rates=quote.rates,
        always=quote.always,
        notes=tuple(notes),
    )


def _unique(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def share_counted(share: float, request: MachineRequest) -> float:
    """Return the assumed fraction of spot prices when a machine type is chosen."""
    return share if request.units and (request.spot or share < 1) else 0.0


def spot_share(spot: object) -> float:
    """Return the fraction of spot machines in a target's option ``spot``."""
    return float(spot) if isinstance(spot, bool | int | float) else 0.0


@dataclass(frozen=True)
class Machines:
    """Machine types of a target, with their prices."""

    offers: Sequence[Offer]
    #: Types that the target names; the first with a price is used. Empty for the cheapest.
    types: tuple[str, ...]
    #: Fraction of the machines at spot prices.
    spot: float
    #: Memory that a machine's operating system occupies.
    reserved_bytes: int
    #: True if one worker may fill a named type, without ``reserved_bytes`` for the system.
    tight: bool = False

    def packing(
        self, cpus: float, memory_bytes: int, gpus: int = 0, *, most_units: int
    ) -> Packing | None:
        """Return the machine type and its number of workers, or None without a price."""
        offers = self.offers
        if self.types:
            named = {offer.shape.name: offer for offer in offers}
            offers = [named[name] for name in self.types if name in named][:1]
        choice = partial(packed, offers, cpus, memory_bytes, gpus, wanted=most_units)
        best = choice(spot=self.spot, reserved_bytes=self.reserved_bytes)
        if best is None and self.types and self.tight:
            best = choice(spot=self.spot, most_units=1)
        return best

    def by_price(self, cpus: float, memory_bytes: int, gpus: int = 0) -> list[Offer]:
        """Return the machine types with at least these resources in total, cheapest first."""
        suited = [offer for offer in self.offers if bool(offer.shape.gpus) == bool(gpus)]
        size = cpus, memory_bytes + self.reserved_bytes, gpus
        return by_price(suited, *size, spot=self.spot)

    def quote(self, spec: DeploymentSpec) -> Quote:
        rates, notes = {}, []
        for tag, component in spec.components.items():
            rate = self._rate(component)
            if rate is not None:
                rates[tag] = rate
                notes.append(said_shape(tag, rate))
        # Programs never run on spot machines.
        steady = replace(self, spot=0.0)

        def program(cpus: float, memory_bytes: int) -> Price | None:
            packing = steady.packing(cpus, memory_bytes, most_units=1)
            return None if packing is None else packing.offer.price

        return Quote(rates, program_rates(program), tuple(notes))

    def _rate(self, component: ComponentSpec) -> Rate | None:
        cpus, memory, gpus = component.cpus, component.memory_bytes or 0, component.gpus
        packing = self.packing(cpus, memory, gpus, most_units=most_units(component.workers))
        if packing is None or self.types:
            return None if packing is None else packing.rate

        def price_of(count: int) -> Price | None:
            found = self.by_price(count * cpus, count * memory, count * gpus)
            return found[0].price if found else None

        return shared_rate(packing.units, price_of, self.spot)


def shared_rate(
    units: int, price_of: Callable[[int], Price | None], spot: float = 0.0
) -> Rate | None:
    """Return the rate of workers that share machines, or None if a machine has no price."""
    prices = [price_of(count) for count in range(1, units + 1)]
    known = [price for price in prices if price is not None]
    if not known or len(known) < len(prices):
        return None
    return Rate(known[-1], units, spot, tuple(price.expected(spot) for price in known[:-1]))


def program_rates(price_of: Callable[[float, int], Price | None]) -> dict[str, Rate]:
    """Map the programs with a price to their rates. ``price_of`` takes cores and bytes."""
    found = {name: price_of(cpus, memory) for name, (cpus, memory) in PROGRAMS.items()}
    return {name: Rate(price) for name, price in found.items() if price is not None}


def said_shape(tag: str, rate: Rate) -> str:
    """Return a sentence that names the machine type of a pool's workers."""
    on_one = "1 worker" if rate.units == 1 else f"up to {rate.units} workers"
    return f"Workers of {tag!r} run on {rate.price.shape}, {on_one} on each."


def most_units(workers: WorkerRange | None) -> int:
    """Return the maximum number of a pool's workers per machine."""
    most = None if workers is None else workers.maximum
    return MOST_UNITS if most is None else max(1, min(MOST_UNITS, most))


def warnings_about(
    package: str, region: str | None, spec: DeploymentSpec, quote: Quote
) -> list[Diagnostic]:
    """Return warnings for unknown names in ``prices`` and for missing prices."""
    path = ("targets", spec.target_name)
    found = [
        Diagnostic(
            "W_NOT_APPLIED",
            (*path, "prices", name),
            f"the price has no effect: {name!r} is neither a component nor a known type of machine",
            hint="use the name of a component, or of a type that `scalable prices` shows",
            severity="warning",
        )
        for name in unknown_names(package, spec)
    ]
    unpriced = [
        tag
        for tag in spec.components
        if tag not in quote.rates and tag not in spec.prices and spec.price_per_core_hour is None
    ]
    if unpriced:
        where = f"in region {region}" if region else "without a region"
        found.append(
            Diagnostic(
                "W_NO_PRICE",
                path,
                f"no price is known for workers of {', '.join(unpriced)} {where}: plans do not "
                "include their cost",
                hint="write `prices` in the target",
                severity="warning",
            )
        )
    return found
