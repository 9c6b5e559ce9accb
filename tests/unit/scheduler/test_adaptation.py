"""Pools that share a look, without a scheduler."""

from scalable.model import PoolStatus
from scalable.scaling.pool_policy import PoolDecision
from scalable.scheduler.adaptation import Adaptation, PoolAdaptive
from scalable.scheduler.managers import Demand


class Told:
    """Stands for a controller: it remembers what it is told to scale."""

    def __init__(self):
        self.scaled = {}
        self.demand = Demand()
        self.listener = None

    def pools(self):
        return {tag: PoolStatus() for tag in "ab"}

    def scale(self, counts, source, reason):
        self.scaled |= counts
        if self.listener is not None:
            self.listener()


def test_a_pool_whose_following_ends_during_a_look_is_left_alone(monkeypatch):
    monkeypatch.setattr(PoolAdaptive, "decide", lambda *_: None)
    controller = Told()
    adaptation = Adaptation(controller)
    for tag, count in (("a", 1), ("b", 2)):  # the smaller change comes first
        adaptation._pools[tag] = PoolAdaptive(adaptation, tag, 0, None)
        adaptation._pools[tag].decision = PoolDecision(count, "load")
    adaptation.look(adaptation.pools["a"])
    assert controller.scaled == {"a": 1, "b": 2}
    controller.scaled, controller.listener = {}, lambda: adaptation.end("b")
    adaptation.look(adaptation.pools["a"])
    assert controller.scaled == {"a": 1}
