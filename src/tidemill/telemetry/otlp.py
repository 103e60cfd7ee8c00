"""Exports spans over OpenTelemetry's protocol, OTLP over HTTP. Imported only where traces are asked for (tracer.py).

Spans go into the library's bounded queue, which a thread empties: whoever records one waits for nothing, and a
collector that does not answer costs spans and one warning.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from tidemill.telemetry import events
from tidemill.telemetry.spans import Span
from tidemill.telemetry.tracer import ENDPOINTS

_PREFIX = "tidemill."  # of every attribute's name
_CLOSE_SECONDS = 2.0
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpTracer:
    """A `Tracer`. Sampler, resource, endpoint and the queue's limits are those of the OTEL_* variables."""

    def __init__(self) -> None:
        _silence()
        self._ids = _ChosenIds()
        self._processor = BatchSpanProcessor(_NoticingExporter(OTLPSpanExporter()))
        self._provider = TracerProvider(resource=_resource(), id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("tidemill")

    def is_sampled(self, trace: int) -> bool:
        sampled = self._provider.sampler.should_sample(None, trace, "change").decision
        return sampled is not Decision.DROP

    def record(self, trace: int, spans: Iterable[Span]) -> None:
        for span in spans:
            parent = set_span_in_context(NonRecordingSpan(_context(trace, span.parent))) if span.parent else None
            self._ids.choose(trace, span.id)
            made = self._tracer.start_span(
                span.name,
                context=parent,
                attributes={_PREFIX + name: value for name, value in span.attributes.items()},
                links=[Link(_context(*link)) for link in span.links],
                start_time=span.start,
            )
            if span.error:
                made.set_status(Status(StatusCode.ERROR, span.error))
            made.end(max(span.start, span.end))

    def close(self) -> None:
        """The library itself would wait for half a minute: a collector that is gone must not delay a stop."""
        closing = threading.Thread(target=self._processor.shutdown, name="close-tracer", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


class _ChosenIds(IdGenerator):
    """Ours follow from the log: the next span of this thread gets the ids that were chosen for it."""

    def __init__(self) -> None:
        self._next = threading.local()

    def choose(self, trace: int, span: int) -> None:
        self._next.trace, self._next.span = trace, span

    def generate_trace_id(self) -> int:
        return int(self._next.trace)

    def generate_span_id(self) -> int:
        return int(self._next.span)


class _NoticingExporter(SpanExporter):
    """Warns when exports begin to fail, and says when they succeed again. Used by the library's one thread."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                events.warn("telemetry.spans_not_exported", collector=_collector(), spans=len(spans))
            self._lost += len(spans)
        elif self._lost:
            events.emit("telemetry.spans_exported_again", lost=self._lost)
            self._lost = 0
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _resource() -> Resource:
    """The service is `tidemill`, unless a variable gives it another name."""
    asked = Resource.create()
    named = not str(asked.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return asked if named else asked.merge(Resource({SERVICE_NAME: "tidemill"}))


def _collector() -> str:
    """Without what may stand before its name: a password."""
    asked = next(filter(None, map(os.environ.get, ENDPOINTS)), "localhost:4318")
    return asked.partition("//")[2].partition("/")[0].rpartition("@")[2] or asked.rpartition("@")[2]


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=True, trace_flags=_SAMPLED)


def _silence() -> None:
    """The library logs every failed export, with a traceback; our event says it once."""
    logger = logging.getLogger("opentelemetry")
    logger.handlers[:] = [logging.NullHandler()]
    logger.propagate = False
