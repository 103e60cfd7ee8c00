"""A collector of traces: an OTLP/HTTP receiver that decodes what comes with the protocol's own messages."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tidemill.lab.servers.http_receiver import Receiver


@dataclass(frozen=True)
class ReceivedSpan:
    service: str
    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    failed: str


class Collector:
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.url = receiver.url

    def spans(self) -> list[ReceivedSpan]:
        found = []
        for received in list(self._receiver.taken):
            zipped = received.headers.get("content-encoding") == "gzip"
            request = ExportTraceServiceRequest.FromString(gzip.decompress(received.body) if zipped else received.body)
            for resource in request.resource_spans:
                service = {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"]
                found += [_read(service, span) for scope in resource.scope_spans for span in scope.spans]
        return found


def _read(service: str, span: Any) -> ReceivedSpan:
    attributes = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
    return ReceivedSpan(
        service, span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
        span.start_time_unix_nano, span.end_time_unix_nano, attributes,
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        span.status.message if span.status.code == 2 else "",
    )  # fmt: skip


@contextmanager
def collecting() -> Iterator[Collector]:
    with Receiver() as receiver:
        yield Collector(receiver)
