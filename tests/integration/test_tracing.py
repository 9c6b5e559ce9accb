"""Spans of a run, its calls and its decisions, with the exporter of the user's own provider."""

import sys
from types import SimpleNamespace

import pytest

from scalable import ScalableSession
from scalable.telemetry.tracing import VARIABLE, RunTrace, Work, present_context

trace = pytest.importorskip("opentelemetry.trace")
pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

MANIFEST = """\
version: 1
project: {name: tests}
targets: {local: {provider: local, max_workers: 2, processes: false}}
components: {small: {cpus: 1, memory: 300M}}
"""


def double(x):
    return 2 * x


def fail(x):
    raise ValueError(f"no {x}")


@pytest.fixture
def provider(monkeypatch):
    """A provider that only this test sees, as if the user had set it; its exporter."""
    made, exporter = TracerProvider(), InMemorySpanExporter()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made)
    monkeypatch.delenv(VARIABLE, raising=False)
    return SimpleNamespace(made=made, exporter=exporter)


def session_in(place):
    (place / "scalable.yaml").write_text(MANIFEST)
    return ScalableSession.from_yaml(place / "scalable.yaml", "local")


def test_a_run_has_a_span_and_below_it_one_for_each_call_and_decision(tmp_path, provider):
    session = session_in(tmp_path)
    with (
        provider.made.get_tracer("users").start_as_current_span("users own") as outer,
        session as client,
    ):
        futures = [client.submit(double, n, tag="small", pure=False) for n in range(3)]
        client.gather(futures)
        assert client.submit(fail, 7, tag="small").exception() is not None
        with client.pool("small", task="pooled") as pool:
            assert list(pool.map(double, range(5))) == [0, 2, 4, 6, 8]
        session.scale({"small": 1})
        session.scale({"small": 2})
    spans = provider.exporter.get_finished_spans()
    (run,) = [span for span in spans if span.name == "run tests"]
    assert run.parent.span_id == outer.get_span_context().span_id
    assert run.attributes["scalable.target"] == "local"
    below = [span for span in spans if span is not run and span.name != "users own"]
    assert {span.parent.span_id for span in below} == {run.context.span_id}
    assert {span.context.trace_id for span in below} == {run.context.trace_id}
    assert all(run.start_time <= s.start_time <= s.end_time <= run.end_time for s in below)

    doubled = [span for span in below if span.name == "double"]
    assert len(doubled) == 3
    assert all(span.status.is_unset for span in doubled)
    assert {span.attributes["scalable.tag"] for span in doubled} == {"small"}
    assert all(span.attributes["scalable.worker"].startswith("small") for span in doubled)
    (failed,) = [span for span in below if span.name == "fail"]
    assert not failed.status.is_ok
    assert failed.status.description == "ValueError: no 7"
    (event,) = failed.events
    assert event.attributes["exception.type"] == "ValueError"
    pooled = [span.attributes.get("scalable.calls", 1) for span in below if span.name == "pooled"]
    assert sum(pooled) == 5
    scaled = [span for span in below if span.name == "scale-up small"]
    assert scaled[-1].attributes["scalable.to"] == 2
    assert scaled[-1].attributes["scalable.source"] == "manual"


def test_without_a_provider_nothing_is_recorded(monkeypatch):
    monkeypatch.setattr(trace, "get_tracer_provider", trace.NoOpTracerProvider)
    assert RunTrace.begin("run", {}, present_context()) is None


def test_where_nobody_has_imported_opentelemetry_it_is_not_imported(monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    assert present_context() is None
    assert RunTrace.begin("run", {}, None) is None
    assert not [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]


def test_the_context_of_the_process_that_started_this_one_is_the_parent(provider, monkeypatch):
    monkeypatch.setenv(VARIABLE, f"00-{'ab' * 16}-{'cd' * 8}-01")
    begun = RunTrace.begin("run", {"scalable.run": "half \ud800"}, present_context())
    begun.add(Work("call", None, None), {})
    begun.end()
    begun.end()
    call, run = provider.exporter.get_finished_spans()
    assert f"{run.context.trace_id:x}" == "ab" * 16
    assert f"{run.parent.span_id:x}" == "cd" * 8
    assert call.parent.span_id == run.context.span_id
    assert run.attributes["scalable.run"] == "half ?"
