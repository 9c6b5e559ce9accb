"""Lengths of tasks whose names have no end."""

from types import SimpleNamespace

from scalable.scaling.task_model import MOST_KINDS
from scalable.scheduler.learned_lengths import LearnedLengths


def call(tag, name):
    return SimpleNamespace(tag=tag, name=name, length=None)


def test_each_task_has_a_length_of_its_own_until_there_are_too_many():
    lengths = LearnedLengths()
    first = [lengths.of(call("a", f"job-{n}")) for n in range(MOST_KINDS)]
    assert len(set(map(id, first))) == MOST_KINDS
    later = [lengths.of(call("a", f"late-{n}")) for n in range(1000)]
    assert len(set(map(id, later))) == 1
    assert later[0] not in first
    assert lengths.of(call("b", "late-1")) is not later[0]
    assert lengths.of(call("a", "job-7")) is first[7]
    assert len(lengths._lengths) == MOST_KINDS + 2
