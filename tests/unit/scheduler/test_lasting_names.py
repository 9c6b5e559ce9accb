"""Rows of task names for readers that record them over time."""

from scalable.model.overview import TaskCounts, TaskOverview, TaskSums
from scalable.quantiles import Sum
from scalable.scheduler import overviews
from scalable.scheduler.overviews import LASTING_ROWS, LastingNames


def rows(names, done=1):
    sums = TaskSums(duration_s=Sum(1, 1.0))
    return [TaskOverview(name, "small", TaskCounts(done=done), sums) for name in names]


def test_no_number_of_ended_calls_falls_while_names_come(monkeypatch):
    monkeypatch.setattr(overviews, "LASTING_ROWS", 3)
    lasting, names, before = LastingNames(), [], {}
    for number in range(40):
        names.append(f"{chr(97 + number % 26)}-{number}")
        found = {row.name: row.counts.done for row in lasting.of(rows(reversed(names)))}
        assert sum(found.values()) == len(names)
        assert all(found[name] >= done for name, done in before.items())
        before = found
    assert len(before) <= 7


def test_the_number_of_rows_is_bounded_and_no_call_is_left_out():
    found = LastingNames().of(
        rows([f"{n:x}".translate(str.maketrans("0123456789", "ghijklmnop")) for n in range(2000)])
    )
    assert len(found) <= 2 * LASTING_ROWS + 1
    assert sum(row.counts.done for row in found) == sum(row.names for row in found) == 2000
    assert sum(row.sums["duration_s"].total for row in found) == 2000.0


def test_names_with_the_same_beginning_share_a_row_after_the_first_ones(monkeypatch):
    monkeypatch.setattr(overviews, "LASTING_ROWS", 1)
    found = LastingNames().of(rows(["fit", "load-1", "load-2"]))
    assert {row.name: row.counts.done for row in found} == {"fit": 1, "load-*": 2}
