"""Rows of task names for readers that record them over time."""

from scalable.scheduler import overviews
from scalable.scheduler.overviews import LASTING_ROWS, NameCounts
from unit.scheduler.test_task_log import FakeScheduler


def lasting(counts, names):
    return [counts.row_for(name, "small").lasting for name in names]


def test_no_name_moves_to_another_row_while_names_come(monkeypatch):
    monkeypatch.setattr(overviews, "LASTING_ROWS", 3)
    counts, names, before = NameCounts(FakeScheduler()), [], []
    for number in range(40):
        names.append(f"{chr(97 + number % 26)}-{number}")
        found = lasting(counts, names)
        assert found[:-1] == before
        before = found
    assert len(set(before)) <= 7


def test_the_number_of_lasting_rows_is_bounded():
    names = [f"{n:x}".translate(str.maketrans("0123456789", "ghijklmnop")) for n in range(2000)]
    assert len(set(lasting(NameCounts(FakeScheduler()), names))) <= 2 * LASTING_ROWS + 1


def test_names_with_the_same_beginning_share_a_row_after_the_first_ones(monkeypatch):
    monkeypatch.setattr(overviews, "LASTING_ROWS", 1)
    found = lasting(NameCounts(FakeScheduler()), ["fit", "load-1", "load-2"])
    assert found == ["fit", "load-*", "load-*"]
