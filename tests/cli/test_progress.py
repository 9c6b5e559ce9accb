"""How far a run is, and how that is shown in a log."""

import pytest

from scalable.cli.output import Output
from scalable.cli.workflow import Followed
from scalable.model.overview import Overview, TaskCounts, TaskOverview
from scalable.records.overview_file import OverviewFile
from scalable.session import progress
from scalable.session.progress import Display, LineDisplay


def overview(done=0, name="fit"):
    return Overview(at=1.0, tasks=(TaskOverview(name, "big", TaskCounts(done=done)),))


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_runs_are_known_from_when_they_are_listed(tmp_path):
    listing = tmp_path / "listing"
    followed = Followed(listing, tmp_path / "shown")
    assert (followed.runs(), followed.overviews()) == ([], [])
    listing.write_text("/runs/one\n/runs/tw")
    assert list(map(str, followed.runs())) == ["/runs/one"]
    listing.write_text("/runs/one\n/runs/two\n/runs/one\n")
    assert list(map(str, followed.runs())) == ["/runs/one", "/runs/two"]


def test_sessions_are_followed_until_the_last_has_ended(tmp_path):
    (tmp_path / "shown").touch()
    file = OverviewFile(tmp_path / "shown")
    followed = Followed(tmp_path / "listing", tmp_path / "shown")
    file.show("a", overview(1))
    file.show("b", overview(2))
    assert [each.counts.done for each in followed.overviews()] == [1, 2]
    file.end("a")
    assert [each.counts.done for each in followed.overviews()] == [2]
    file.end("b")
    assert [each.counts.done for each in followed.overviews()] == [2], "the last one stays"
    (tmp_path / "shown").unlink()
    assert [each.counts.done for each in followed.overviews()] == [2]


def test_a_log_gets_a_line_every_ten_seconds_and_the_last_state(clock, capsys):
    moments = [(0.4, 0), (3, 1), (9, 2), (12, 3), (15, 3), (23, 3), (24, 4)]
    with LineDisplay() as display:
        for clock.now, done in moments:
            display.update([overview(done)])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "[   0 s] fit: no tasks",
        "[  12 s] 3 of 3 tasks (100 %) | fit: 3 done",
        "[  23 s] 3 of 3 tasks (100 %) | fit: 3 done",
        "[  24 s] 4 of 4 tasks (100 %) | fit: 4 done",
    ]


def test_a_log_of_a_run_without_a_cluster_stays_empty(clock, capsys):
    with LineDisplay() as display:
        display.update([])
    assert capsys.readouterr() == ("", "")


def test_a_log_that_nobody_reads_harms_nothing(clock, tmp_path):
    stream = (tmp_path / "log").open("w")
    stream.close()
    with LineDisplay(stream) as display:
        display.update([overview(1)])


@pytest.mark.parametrize("form", ["json", "quiet"])
def test_programs_see_no_progress(form, capsys, tmp_path):
    for out in (Output(form), Output(form, tmp_path / "file")):
        display = out.progress()
        assert type(display) is Display
        with display:
            display.update([overview(1)])
    assert capsys.readouterr() == ("", "")


def test_people_see_lines_where_there_is_no_terminal(tmp_path):
    assert type(Output().progress()) is LineDisplay
    assert type(Output(None, tmp_path / "file").progress()) is LineDisplay
