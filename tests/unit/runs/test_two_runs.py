"""Two runs in one table."""

from made_runs import call, made_record

from scalable.runs.report.comparison import render_two_runs
from scalable.runs.report.run_report import report_on


def test_two_runs_are_rows_of_one_table():
    one = report_on(made_record([call(0, "my_sim")], manifest_lock="a" * 64))
    calls = [call(number, "my_sim", duration_s=2.0) for number in range(3)]
    failed = call(4, "late", state="failed")
    other = report_on(made_record([*calls, failed], manifest_lock="b" * 64))
    compared = one.compared_with(other)
    assert compared["tasks of my_sim"] == (1, 3)
    assert compared["median_s of my_sim"] == (1.0, 2.0)
    assert compared["tasks of late"] == (None, 1)
    assert compared["workers of a"] == (2, 2)
    rows = [line.split() for line in render_two_runs(compared).splitlines()[4:]]
    assert ["tasks", "of", "my_sim", "1", "3", "3.00"] in rows
    assert ["median", "of", "my_sim", "1.0", "s", "2.0", "s", "2.00"] in rows
    assert ["tasks", "of", "late", "-", "1", "-"] in rows
    assert ["failed", "0", "1", "-"] in rows
    assert "manifest" in compared
    assert "manifest" not in one.compared_with(one)
