"""The terminal application at 80x24, over a source that a test makes."""

import asyncio
from dataclasses import replace
from unittest import mock

import pytest
from made_overviews import HOSTILE, NOW, events, failure, overview, pool, task, workers

from scalable.clusters.discovery import RunningClusters
from scalable.errors import ClusterError
from scalable.model.clusters import ClusterStatus
from scalable.model.overview import Events, RunningTask
from scalable.views.columns import tables_of

pytest.importorskip("textual")

from textual.widgets import Input, Static, TabbedContent

from scalable.watch.top import Confirm, Details, Grid, Question, TopApp, Watched, details_of


class Made:
    """What the application calls, as a test makes it, and a record of what it was told to do."""

    def __init__(self, now=None, told=None, staff=None):
        self.overview, self.events = now or overview(), told or events()
        self.staff = workers() if staff is None else staff
        self.error, self.did, self.asked = None, [], []

    def look(self, name, since):
        self.asked += [name, since]
        if self.error is not None:
            raise self.error
        return self.overview, self.events if not since else Events(seq=self.events.seq)

    def workers_of(self, name):
        return self.staff

    def explain(self, name, about):
        self.asked.append(about)
        return [f"[bold]{about}[/] waits for a slot"]

    def beyond_most(self, name, counts):
        return (9, "max_workers 4") if sum(counts.values()) > 4 else None

    def scale(self, name, counts):
        self.did.append(counts)

    def drain(self, name, workers):
        self.did += workers

    def running_clusters(self):
        made = ClusterStatus("climate", "id-1", "slurm", "hpc", "running", embedded=True)
        return RunningClusters((made,), {"id-1": "run-1"})


def shown(app):
    """Return the text on the screen."""
    lines = [
        "".join(segment.text for segment in strip)
        for strip in app.screen._compositor.render_strips(app.screen.size)
    ]
    assert all(line.isprintable() for line in lines), [s for s in lines if not s.isprintable()]
    return "\n".join(lines)


async def until(pilot, holds):
    """Wait until something holds; a minute at most."""
    for _ in range(1200):
        if holds():
            return
        await pilot.pause(0.05)
    pytest.fail(f"it does not come to hold:\n{shown(pilot.app)}")


def run(source, story, name="climate", every_s=2.0, size=(80, 24)):
    """Run a story with the application; the story gets the pilot."""

    async def go():
        app = TopApp(name, every_s=every_s)
        app.animation_level = "none"  # each step of an animation draws the whole screen
        async with app.run_test(size=size) as pilot:
            wanted = "run" if name is None else "Tasks: "
            await until(pilot, lambda: wanted in shown(app))
            await story(pilot, app)

    called = {name: getattr(source, name) for name in ("look", "workers_of", "running_clusters")}
    with mock.patch.multiple("scalable.watch.top", control=source, **called):
        asyncio.run(go())


def test_the_first_screen_fits_and_each_tab_shows_its_part():
    async def story(pilot, app):
        text = shown(app)
        for words in ("climate on slurm/hpc - running", "2 running, 30 queued, 23 done, 1 failed",
                      "in 1 m 30 s", "1.25 USD so far", "0 to any", "the quota is used up",
                      "fit", "score", "6 Use", "Drain worker"):  # fmt: skip
            assert words in text, text
        grid = app.screen.query_one("#tasks", Grid)
        assert [row.cells[3:6] for row in grid.table.rows] == [("2", "30", "18"), ("0", "0", "5")]
        assert grid.max_scroll_x == 0  # it fits
        assert app.screen.query_one(TabbedContent).size.width == 80
        assert app.screen.query_one("#summary", Static).size.height == 4
        assert "30 tasks wait" not in text  # there are too few free lines for decisions
        for key, words in (
            ("2", "small-0001"),
            ("3", "no value"),
            ("4", "30 tasks wait"),
            ("5", "hpc"),
            ("6", "0 of 2 slots used, 21 tasks queued"),
            ("1", "score"),
        ):
            await pilot.press(key)
            await until(pilot, lambda words=words: words in shown(app))

    run(Made(), story)


def test_a_tall_screen_shows_last_failures_decisions_and_use():
    async def story(pilot, app):
        text = shown(app)
        for words in ("Last failures:", "no value", "Last decisions:", "30 tasks wait",
                      "0 of 2 slots used, 21 tasks queued"):  # fmt: skip
            assert words in text, text
        grid = app.screen.query_one("#tasks", Grid)
        assert grid.cursor_foreground_priority == "renderable"  # its colours stay

    run(Made(), story, size=(140, 45))


def test_rows_are_sorted_turned_filtered_and_chosen_by_pool():
    async def story(pilot, app):
        grid = app.screen.query_one("#tasks", Grid)

        def names():
            return [row.cells[0] for row in grid.table.rows]

        await pilot.press("s", "r")  # by name, the last first
        await until(pilot, lambda: names() == ["score", "fit"])
        assert "task▼" in shown(app)
        await pilot.press("p")
        await until(pilot, lambda: names() == ["fit"])
        assert "only pool small" in shown(app)
        await pilot.press("p", "p", "slash")
        await until(pilot, lambda: isinstance(app.screen, Question))
        await pilot.press(*"SCO", "enter")
        await until(pilot, lambda: names() == ["score"])

    run(Made(), story)


def test_a_worker_is_drained_only_after_a_yes():
    source = Made()

    async def story(pilot, app):
        await pilot.press("d")
        assert not isinstance(app.screen, Confirm)  # no worker is chosen
        await pilot.press("2")
        await until(pilot, lambda: "small-0001" in shown(app))
        await pilot.press("down", "d", "n")
        await until(pilot, lambda: not isinstance(app.screen, Confirm))
        assert source.did == []
        await pilot.press("d")
        await until(pilot, lambda: "Drain worker small-0001?" in shown(app))
        await pilot.press("y")
        await until(pilot, lambda: source.did == ["small-0001"])

    run(source, story)


def test_a_pool_is_scaled_only_after_a_yes_which_tells_of_the_limit():
    source = Made()

    async def story(pilot, app):
        await pilot.press("down", "c")  # the row of a task of the pool "big"
        await until(pilot, lambda: isinstance(app.screen, Question))
        assert app.screen.query_one(Input).value == "4"
        await pilot.press("backspace", "7", "enter")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
        text = " ".join(shown(app).replace("│", " ").split())
        assert "Set pool big from 4 to 7 workers?" in text
        assert "no longer follows its load" in text
        assert "A total of 9 workers exceeds max_workers 4." in text
        assert source.did == []
        await pilot.press("y")
        await until(pilot, lambda: source.did == [{"big": 7}])

    run(source, story)


def test_the_details_of_a_task_name_its_running_calls():
    running = RunningTask("fit-1", "fit", "small", "small-7", 12.0)
    other = RunningTask("score-1", "score", "big", "big-7", 1.0)
    watched, now = Watched(), overview(running=(running, other))
    watched.take(now, events())
    table = tables_of(now, "top")["tasks"]
    title, parts, about = details_of("tasks", table.rows[0], table, watched)
    assert (title, about) == ("task fit", "fit")
    assert dict(parts)["Longest-running tasks"] == "fit-1 on small-7, for 12.0 s"


def test_enter_shows_a_failure_whole_and_a_task_with_its_explanation():
    hostile = failure("score", 1, "[red]no\x1b[31m value")
    source = Made(told=events(failures=[hostile]))

    async def story(pilot, app):
        await pilot.press("down", "enter")
        await until(pilot, lambda: "waits for a slot" in shown(app))
        assert "[bold]score[/] waits for a slot" in shown(app)
        assert "Arguments: (3,)" in shown(app)
        await pilot.press("escape", "3")
        await until(pilot, lambda: "ValueError" in shown(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Details))
        await until(pilot, lambda: "[red]no\ufffd[31m value" in shown(app))

    run(source, story)


def test_a_scheduler_that_goes_is_named_and_its_return_is_noticed():
    source = Made()

    async def story(pilot, app):
        source.error = ClusterError("the scheduler does not answer")
        await until(pilot, lambda: "No answer since" in shown(app))
        assert "2 running, 30 queued" in shown(app)  # the last state
        before, source.error = len(source.asked), None
        again = replace(source.overview, tasks=(task("new", done=1),))
        source.overview = replace(again, cluster={**again.cluster, "started_at": NOW + 9})
        source.events = events(seq=1, failures=[])
        await until(pilot, lambda: "No answer" not in shown(app) and "new" in shown(app))
        await pilot.press("3")
        await until(pilot, lambda: not app.screen.query_one("#failures", Grid).table.rows)
        # All events of the other scheduler are asked for.
        await until(pilot, lambda: 0 in source.asked[before:])

    run(source, story, every_s=0.3)


def test_no_name_is_executed_or_breaks_the_screen():
    hostile = overview(
        tasks=tuple(task(name, name, done=1) for name in HOSTILE),
        pools={name: pool(reason=name) for name in HOSTILE},
        cluster={**overview().cluster, "name": HOSTILE[0], "reason": HOSTILE[1]},
    )
    failures = [{**failure(name, 1, name), "failure_class": name} for name in HOSTILE]
    staff = [replace(workers(1)[0], name=name, tag=name, tasks=(name,)) for name in HOSTILE]

    async def story(pilot, app):
        for key in ("2", "3", "enter", "escape", "1", "down", "enter", "escape"):
            await pilot.press(key)
            assert len(shown(app).split("\n")) == 24
        assert "[bold red]markup[/]" in shown(app)

    run(Made(hostile, events(failures=failures), staff), story)


def test_many_names_and_workers_can_be_scrolled_and_filtered():
    many = overview(tasks=tuple(task(f"name-{n:05d}", done=n) for n in range(1_100)))

    source = Made(many, staff=workers(300))

    async def story(pilot, app):
        grid = app.screen.query_one("#tasks", Grid)
        assert "100 more rows" in shown(app)
        await pilot.press("end")
        await until(pilot, lambda: "name-00999" in shown(app))
        await pilot.press("slash", *"01099", "enter")
        await until(pilot, lambda: [row.cells[0] for row in grid.table.rows] == ["name-01099"])
        await pilot.press("slash", "ctrl+u", "enter")
        await until(pilot, lambda: len(grid.table.rows) == 1_000)
        await pilot.press("2")
        await until(pilot, lambda: "small-0000" in shown(app))
        await pilot.press("end")
        await until(pilot, lambda: "small-0299" in shown(app))
        app.screen._look()  # a further look keeps the place
        looks = len(source.asked)
        await until(pilot, lambda: len(source.asked) > looks)
        assert app.screen.query_one("#workers", Grid).chosen.cells[0] == "small-0299"

    run(source, story)


def test_without_a_name_all_that_live_are_listed_and_enter_opens_one():
    source = Made()

    async def story(pilot, app):
        assert "climate" in shown(app)
        assert "embedded" in shown(app)
        await pilot.press("enter")
        await until(pilot, lambda: "Tasks: " in shown(app))
        assert "id-1" in source.asked
        await pilot.press("escape")
        await until(pilot, lambda: "clusters and sessions" in shown(app))

    run(source, story, name=None)


def test_an_answer_that_arrives_while_the_screen_is_closed_is_dropped():
    source = Made()

    async def story(pilot, app):
        await app.screen.remove_children()  # as at its end, before its questions are cancelled
        await until(pilot, lambda: not [each for each in app.workers if each.is_running])

    run(source, story, every_s=0.05)


def test_a_tab_shows_its_table_in_full_when_it_opens():
    async def story(pilot, app):
        await pilot.press("4")
        await until(pilot, lambda: "30 tasks wait" in shown(app))
        await pilot.press("3")
        await until(pilot, lambda: "no file" in shown(app))
        assert "ValueError" in shown(app)

    run(Made(), story, every_s=1000.0)  # nothing is drawn again
