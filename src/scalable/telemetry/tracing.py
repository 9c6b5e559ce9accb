"""The trace of a run for OpenTelemetry: a span of the run, and spans below it.

Only the interface of OpenTelemetry is used; the user's own provider and exporter get the spans.
Where nobody has imported OpenTelemetry nobody has set a provider: then nothing is imported here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

#: Variable with the trace context of the process that started this one, in the form of W3C's
#: header ``traceparent``.
VARIABLE = "TRACEPARENT"
#: Longest text of an attribute.
LONGEST_TEXT = 500

Attributes = Mapping[str, str | int | float]


class Work(NamedTuple):
    """A piece of work that has ended, for a span of its own.

    Attributes
    ----------
    name
        Name of the span.
    began, ended
        Times in seconds since 1970; None for what never began, and then for now.
    failure
        Class and message of the exception with which it failed, or None.
    """

    name: str
    began: float | None
    ended: float | None
    failure: tuple[str, str] | None = None


def present_context() -> Context | None:
    """Return the trace context in which this thread works, or in which its process was started.

    None if there is none, or OpenTelemetry is not imported.
    """
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if trace.get_current_span().get_span_context().is_valid:
        return context.get_current()
    if told := os.environ.get(VARIABLE):
        return TraceContextTextMapPropagator().extract({"traceparent": told})
    return None


class RunTrace:
    """The span of a run that goes on, below which spans of calls and decisions are made.

    Made by :meth:`begin`.
    """

    def __init__(self, tracer: Tracer, span: Span, below: Context) -> None:
        self._tracer = tracer
        self._span = span
        self._below = below

    @classmethod
    def begin(cls, name: str, attributes: Attributes, parent: Context | None) -> Self | None:
        """Begin the span of a run.

        Parameters
        ----------
        name, attributes
            Name and attributes of the span.
        parent
            Context of the process that started the run, from :func:`present_context`; None for a
            new trace.

        Returns
        -------
        RunTrace or None
            None where no provider is set, or the provider records no span of this run.
        """
        if "opentelemetry.trace" not in sys.modules:
            return None
        from opentelemetry import trace
        from opentelemetry.context import Context

        provider = trace.get_tracer_provider()
        tracer = provider.get_tracer("scalable", metadata.version("scalable"))
        above = Context() if parent is None else parent
        span = tracer.start_span(_text(name), context=above, attributes=_plain(attributes))
        if not span.is_recording():
            return None
        return cls(tracer, span, trace.set_span_in_context(span, above))

    def add(self, work: Work, attributes: Attributes) -> None:
        """Add the span of a piece of work that has ended."""
        from opentelemetry.trace import Status, StatusCode

        now = time.time()
        began, ended = work.began or now, work.ended or now
        span = self._tracer.start_span(
            _text(work.name),
            context=self._below,
            attributes=_plain(attributes),
            start_time=int(began * 1e9),
        )
        if work.failure is not None:
            kind, message = work.failure
            names = {"exception.type": _text(kind), "exception.message": _text(message)}
            span.add_event("exception", names, int(ended * 1e9))
            span.set_status(Status(StatusCode.ERROR, _text(f"{kind}: {message}")))
        span.end(int(ended * 1e9))

    def end(self) -> None:
        """End the span of the run; ending it twice is harmless."""
        if self._span.is_recording():
            self._span.end()


def _plain(attributes: Attributes) -> dict[str, str | int | float]:
    return {key: _text(v) if isinstance(v, str) else v for key, v in attributes.items()}


def _text(text: str) -> str:
    """Return a text of bounded length that can be encoded."""
    return text[:LONGEST_TEXT].encode(errors="replace").decode()
