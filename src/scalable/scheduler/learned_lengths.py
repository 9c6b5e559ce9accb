"""Lengths of the tasks of a scheduler, for the order of its calls, learned from calls that end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scalable.scaling.order import Length
from scalable.scaling.task_model import MOST_KINDS, Expectation, Kind, Sample, TaskModel
from scalable.scheduler.ledger import Call, EndedCall

#: Number of ended calls of each task that are all learned from; of the later ones, which change a
#: mean little, one in so many.
ALL_LEARNED, LEARNED_SHARE = 64, 16


class LearnedLengths:
    """Expected lengths of tasks; they stay the same until :meth:`read` is called.

    Attributes
    ----------
    model
        Task model that learns from the calls that end.
    """

    def __init__(self) -> None:
        self.model = TaskModel()
        # (tag, name) -> length.
        self._lengths: dict[tuple[str, str], Length] = {}

    def expect(self, expectations: Mapping[str, Sequence[Any]]) -> None:
        """Take expected lengths for calls of which none has ended.

        Parameters
        ----------
        expectations
            Task name -> (tag, expected seconds, expected bytes) of one call; None for an unknown
            amount.
        """
        self.model = TaskModel(
            {
                (tag, task): Expectation(duration_s, memory)
                for task, (tag, duration_s, memory) in expectations.items()
            }
        )
        self.read()

    def of(self, call: Call) -> Length:
        """Return the length of a call's task; the call keeps it."""
        length = call.length
        if length is None:
            named = call.tag or "", call.name
            length = self._lengths.get(named)
            if length is None and len(self._lengths) >= MOST_KINDS:
                # As in the model, later ones only count for their component.
                named = call.tag or "", ""
                length = self._lengths.get(named)
            if length is None:
                length = self._lengths[named] = Length(Kind(*named), self.model)
            call.length = length
        return length

    def learn(self, end: EndedCall) -> bool:
        """Learn from a call that succeeded; return whether the length of its task has changed."""
        length = end.call.length or self.of(end.call)
        if length.calls >= ALL_LEARNED and (length.calls + 1) % LEARNED_SHARE:
            length.calls += 1
            return False
        if not end.ran:
            return False
        began, ended, _, _, memory, bundle, *_ = end.measured
        if bundle is not None:
            for duration in bundle["quantiles_s"][1:-1]:
                self.model.observe(Sample(length.kind, duration, memory))
        elif began is not None and ended is not None:
            self.model.observe(Sample(length.kind, ended - began, memory))
        return length.ended(self.model)

    def read(self) -> None:
        """Take the lengths of the model from now on."""
        for length in self._lengths.values():
            length.read(self.model)
