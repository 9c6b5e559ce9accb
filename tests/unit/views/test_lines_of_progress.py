"""Progress as lines: a table for a terminal, one line for a log."""

import pytest
from made_overviews import HOSTILE, NOW, overview, pool, task

from scalable.model.overview import PredictedEnd, TaskCounts
from scalable.views.cluster_text import live_lines, progress_line
from scalable.views.tables import clock, width_of


def texts(*given, width=80, height=24, elapsed_s=12.0):
    return [line for line, _ in live_lines(given, width, height, elapsed_s)]


def test_a_terminal_shows_the_numbers_of_the_overview():
    lines = texts(overview(pools={"small": pool()}))
    assert lines[0] == "climate on slurm/hpc - running - 12.0 s"
    assert lines[1].startswith("24 of 56 tasks (42 %); end in 1 m 30 s, at ")
    assert lines[2].startswith("Cost: 1.25 USD so far")
    assert lines[3] == "Tasks: 2 running, 30 queued, 23 done, 1 failed; 3 workers, 1 client"
    assert lines[4].split() == [
        "task", "pool", "progress", "running", "queued", "done", "failed", "mean", "queue",
    ]  # fmt: skip
    assert lines[5].split()[:2] == ["fit", "small"]
    assert lines[5].split()[3:] == ["2", "30", "18", "0", "2.0", "s", "-"]
    assert lines[6].split()[3:] == ["0", "0", "5", "1", "0.50", "s", "-"]


def test_bars_are_shortened_before_their_middle_is_cut_out():
    tasks = (task("simulate", "model", running=2, queued=27, done=1),)
    lines = {width: texts(overview(tasks=tasks, pools={}), width=width) for width in (120, 67, 65)}
    bars = {width: told[-1].split()[2] for width, told in lines.items()}
    assert len(bars[120]) == 12
    assert 8 <= len(bars[65]) < len(bars[67]) < 12
    assert not any("…" in bar for bar in bars.values())


def test_a_pool_that_has_no_workers_says_why():
    assert "big: the quota is used up" in texts(overview())


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60), (79, 4), (30, 1)])
def test_ten_thousand_names_fit_a_terminal_and_none_is_lost(width, height):
    tasks = tuple(task(f"name-{n}", queued=1, names=50) for n in range(200))
    lines = texts(overview(tasks=tasks), width=width, height=height)
    assert 1 <= len(lines) <= max(1, height - 2)
    assert all(width_of(line) <= max(width, 79) for line in lines)
    if height >= 24:
        shown = sum("name-" in line for line in lines)
        assert 0 < shown < 200
        left = 200 - shown
        assert lines[-1].strip() == f"{50 * left} more names: {left} queued"


def test_hostile_names_stay_in_their_line():
    tasks = tuple(task(name, running=1) for name in HOSTILE)
    for line in [*texts(overview(tasks=tasks)), progress_line([overview(tasks=tasks)])]:
        assert line.isprintable(), repr(line)
    assert len(progress_line([overview(tasks=tasks)])) < 500


def test_several_clusters_share_the_terminal():
    lines = texts(overview(), overview(cluster={"name": "second", "state": "running"}), height=24)
    assert len(lines) <= 22
    assert [line for line in lines if line.startswith(("climate on", "second -"))][1:] == [
        "second - running - 12.0 s"
    ]


def test_a_log_gets_workers_calls_and_end_in_one_line():
    at, low, high = (clock(NOW + left_s, NOW) for left_s in (90, 60, 150))
    end = f"in 1 m 30 s, at {at} ({low} to {high})"
    assert progress_line([overview()]) == (
        f"24 of 56 tasks (42 %) | end {end} | small: 2/2 workers | "
        "big: 1/4 workers | fit: 18 done, 2 running, 30 queued | score: 5 done, 1 failed"
    )


def test_a_log_names_the_first_task_names_and_counts_the_others():
    tasks = tuple(task(f"name-{n}", done=2, failed=1) for n in range(12))
    line = progress_line([overview(tasks=tasks, end=PredictedEnd(), pools={})])
    assert line.count("name-") == 5
    assert line.endswith(" | 7 more names: 14 done, 7 failed")


def test_a_cluster_without_calls_has_no_end():
    idle = overview(tasks=(), end=PredictedEnd(NOW, NOW, NOW))
    assert idle.counts == TaskCounts()
    assert progress_line([idle]) == "small: 2/2 workers | big: 1/4 workers"
    assert "no tasks" in texts(idle)


def test_a_log_of_several_clusters_names_them():
    second = overview(cluster={"name": "second"}, pools={}, tasks=())
    assert progress_line([overview(pools={}, tasks=()), second]) == "climate:  || second: "
