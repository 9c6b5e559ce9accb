"""Clusters, executors, sessions and plans as HTML for notebooks."""

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from scalable.model import Plan, PoolStatus, ScalePlan
from scalable.model.overview import Overview, PoolOverview, TaskCounts, TaskOverview
from scalable.model.plan import FrontPoint
from scalable.runs.report.plans import ShownPlan
from scalable.views.notebooks import (
    render_cluster,
    render_executor,
    render_overview,
    render_progress,
)

HOSTILE = "<img src=x onerror=alert(1)>\"'&\x1b[31m\u202e" + "x" * 10_000
OVERVIEW = Overview(
    at=1.0,
    cluster={"name": HOSTILE, "state": "running", "target": HOSTILE, "reason": HOSTILE},
    pools={
        HOSTILE: PoolOverview(PoolStatus(2, 1, reason=HOSTILE)),
        "other": PoolOverview(PoolStatus(1, 1)),
    },
    tasks=tuple(
        TaskOverview(f"{HOSTILE[:40]}{n}", HOSTILE, TaskCounts(running=1)) for n in range(50)
    ),
    workers=2,
)
PLAN = Plan(
    HOSTILE,
    "local",
    "0" * 64,
    ScalePlan({HOSTILE: 2}),
    task_to_component={HOSTILE: HOSTILE},
    reasons=(HOSTILE,),
    front=(FrontPoint(1.0, 2.0, {HOSTILE: 2}),),
    objective=HOSTILE,
)


class _Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes = set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def body_of(html):
    """Return the page without its style, after checking that it holds nothing to run or to load."""
    found = _Elements()
    found.feed(html)
    assert not found.tags & {"script", "img", "iframe", "object", "link", "a", "form"}
    assert not [name for name in found.attributes if name.startswith("on")]
    assert not found.attributes & {"src", "href", "style"}
    assert "\x1b" not in html
    assert "\u202e" not in html
    return re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)


@pytest.mark.parametrize("render", [
    lambda: render_overview(
        HOSTILE, HOSTILE, HOSTILE, OVERVIEW, facts=[(HOSTILE, HOSTILE)], note=HOSTILE
    ),
    lambda: render_cluster(HOSTILE, HOSTILE, "running", HOSTILE, OVERVIEW),
    lambda: render_executor(HOSTILE, "running", OVERVIEW, unfinished=3, asked=[("Task", HOSTILE)]),
    lambda: render_progress([OVERVIEW, OVERVIEW]),
    lambda: ShownPlan(**vars(PLAN))._repr_html_(),
], ids=["object", "cluster", "executor", "progress", "plan"])  # fmt: skip
def test_untrusted_text_is_escaped_and_bounded(render):
    body = body_of(render())
    assert "onerror=alert(1)" in unescape(body)
    assert len(body) < 100_000
    assert "x" * 2_500 not in body


def test_many_names_are_counted_and_not_all_shown():
    body = body_of(render_progress([OVERVIEW]))
    assert body.count("<tr>") == 13
    assert "and 38 more task names" in body


def test_an_executor_shows_its_own_pool_only():
    html = body_of(render_executor("other", "running", OVERVIEW, unfinished=0, asked=[]))
    assert "other" in html
    assert html.count("<tr>") == 2, "one header, one pool, no calls"


def test_what_does_not_answer_is_said():
    html = render_cluster("PoolCluster", "climate", "running", "tls://x:1", None)
    assert "The scheduler has not answered: counts are not known." in html
    closed = render_cluster("PoolCluster", "climate", "closed", "tls://x:1", None)
    assert "not answered" not in closed
    assert 'class="state soft"' in closed
    degraded = replace(OVERVIEW, cluster={"state": "degraded"})
    html = render_cluster("PoolCluster", "climate", "running", "tls://x:1", degraded)
    assert 'class="state warn">degraded' in html
