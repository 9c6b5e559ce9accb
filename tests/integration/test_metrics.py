"""Metrics for Prometheus: the numbers of the overview, for those who have the token."""

import re
import ssl
import urllib.error
import urllib.request
from types import SimpleNamespace

import dask
import pytest
from distributed.security import Security

from scalable import ScalableSession
from scalable.harmless import LONGEST_LABEL
from scalable.manager.pool_cluster import PoolCluster
from scalable.model.overview import Overview, TaskCounts, TaskOverview
from scalable.scheduler.pool_scheduler import PoolScheduler
from scalable.watch.metrics import exposition

parser = pytest.importorskip("prometheus_client.parser")

MANIFEST = """\
version: 1
project: {name: tests}
targets: {local: {provider: local, max_workers: 2, processes: false, dashboard_address: "0"}}
components: {small: {cpus: 1, memory: 300M}, big: {cpus: 1, memory: 300M}}
"""
EVIL = '<script>alert("1")</script>\\\n\x1b[31mred\u202e' + "x" * 10_000


def double(x):
    return 2 * x


def fail(x):
    raise ValueError(f"no {x}")


def get(url, token=None, context=None):
    request = urllib.request.Request(url)
    if token is not None:
        request.add_header("Authorization", token)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """A real session after some calls: its overview, and what a scrape of it answers."""
    place = tmp_path_factory.mktemp("metrics")
    (place / "scalable.yaml").write_text(MANIFEST)
    session = ScalableSession.from_yaml(place / "scalable.yaml", "local")
    with session as client:
        good = [client.submit(double, n, tag="small", pure=False) for n in range(7)]
        bad = [client.submit(fail, n, tag="big", pure=False) for n in range(3)]
        with client.pool("big", task="pooled") as pool:
            assert sum(pool.map(double, range(20))) == 380
        evil = client.submit(double, 1, tag="small", task=EVIL, pure=False)
        client.gather([*good, evil])
        assert all(future.exception() for future in bad)
        session.scale({"small": 2})
        link = session.cluster.dashboard_link
        base, _, token = link.partition("/status?token=")

        async def ask():
            overviews = session.cluster.manager.controller.overviews
            overviews._made_at = 0.0
            return overviews.answer(lasting=True)["overview"]

        overview = Overview.from_dict(session.cluster.sync(ask))
        status, text = get(f"{base}/metrics", f"Bearer {token}")
        assert status == 200
        yield SimpleNamespace(overview=overview, text=text, base=base, token=token)


def samples(text):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text, name, **labels):
    return samples(text)[name, tuple(sorted(labels.items()))]


def test_metrics_are_the_numbers_of_the_overview(scraped):
    text, now = scraped.text, scraped.overview
    for task in now.tasks:
        if len(task.name) < LONGEST_LABEL:
            named = {"task": task.name, "pool": task.tag}
            for result in ("done", "failed", "cancelled", "cached"):
                finished = value(text, "scalable_tasks_finished_total", **named, result=result)
                assert finished == getattr(task.counts, result)
            for metric, key in (("queue", "queued_s"), ("duration", "duration_s")):
                count, total = (
                    value(text, f"scalable_task_{metric}_seconds_{part}", **named)
                    for part in ("count", "sum")
                )
                assert (count, total) == task.sums[key][:2]
    finished = "scalable_tasks_finished_total"
    assert value(text, finished, task="fail", pool="big", result="failed") == 3
    assert value(text, finished, task="pooled", pool="big", result="done") == 20
    assert value(text, "scalable_task_queue_seconds_count", task="pooled", pool="big") == 20
    assert value(text, "scalable_failures_total", failure_class="ValueError") == 3
    for tag, pool in now.pools.items():
        assert value(text, "scalable_pool_desired_workers", pool=tag) == pool.status.wanted
        assert value(text, "scalable_pool_idle_workers", pool=tag) == pool.idle
    changes = value(text, "scalable_scaling_decisions_total", pool="small", action="scale-up")
    assert changes == now.scaled["small"]["scale-up"] >= 1
    assert value(text, "scalable_managers", state="attached") == 1
    assert value(text, "scalable_workers") == now.workers


def test_metrics_follow_the_rules_of_prometheus(scraped):
    seen = set()
    for family in parser.text_string_to_metric_families(scraped.text):
        if not family.name.startswith("scalable_"):
            continue
        assert family.name not in seen
        seen.add(family.name)
        assert family.documentation.endswith(".")
        assert re.fullmatch(r"[a-z][a-z_]*[a-z]", family.name)
        assert not re.search(r"_(ms|minutes|hours|kb|mb)(_|$)", family.name)
        assert family.type in ("gauge", "counter", "summary")
        names = [(sample.name, *sorted(sample.labels.items())) for sample in family.samples]
        assert len(names) == len(set(names)), "a series is written twice"
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert not {"le", "quantile", "job", "instance"} & set(sample.labels)
    assert "scalable_tasks" in seen
    assert "dask_scheduler_workers" in scraped.text  # Dask's own are beside them
    assert "process_cpu_seconds_total" in scraped.text


def test_names_of_tasks_are_escaped_and_cut(scraped):
    evil = [task for (name, labels), _ in samples(scraped.text).items()
            if name == "scalable_tasks" for key, task in labels if key == "task" and "alert" in task]  # fmt: skip
    assert evil
    for task in evil:
        assert len(task) <= LONGEST_LABEL
        assert task.isprintable()
    for line in scraped.text.splitlines():
        assert "\x1b" not in line or not line.startswith("scalable_")


@pytest.mark.parametrize("name", ["half \ud800", "a" * 300, "\u202eright", 'q"\\'])
def test_any_name_can_be_written(name):
    rows = [
        TaskOverview(name, None, TaskCounts(done=1)),
        TaskOverview(name + "b", None, TaskCounts(done=2)),
    ]
    text = exposition(Overview(at=1.0, tasks=tuple(rows))).decode()
    ended = {key: v for key, v in samples(text).items() if ("result", "done") in key[1]}
    assert sum(ended.values()) == 3


def test_a_scrape_needs_the_token(scraped):
    for header in (
        None,
        "Bearer wrong",
        f"Basic {scraped.token}",
        "Bearer",
        "Bearer \xe9",
        scraped.token,
    ):
        assert get(f"{scraped.base}/metrics", header)[0] == 403
    assert get(f"{scraped.base}/metrics", f"bearer {scraped.token}")[0] == 200
    assert "Authorization: Bearer TOKEN" in get(f"{scraped.base}/metrics")[1]


def test_a_scrape_goes_through_tls_where_dask_is_told_so(tmp_path):
    pem = Security.temporary()
    (tmp_path / "cert.pem").write_text(pem.tls_scheduler_cert)
    (tmp_path / "key.pem").write_text(pem.tls_scheduler_key)
    told = {"cert": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem"), "ca-file": None}
    context = ssl.create_default_context(cadata=pem.tls_ca_file)
    context.check_hostname = False
    options = {"dashboard_address": ":0", "host": "127.0.0.1", "port": 0, "dashboard": False}
    with (
        dask.config.set({"distributed.scheduler.dashboard.tls": told}),
        PoolCluster(scheduler={"cls": PoolScheduler, "options": options}) as cluster,
    ):
        base, _, token = cluster.dashboard_link.partition("/status?token=")
        assert base.startswith("https://")
        status, text = get(f"{base}/metrics", f"Bearer {token}", context)
        assert status == 200
        assert value(text, "scalable_workers") == 0
        assert get(f"{base}/metrics", None, context)[0] == 403
