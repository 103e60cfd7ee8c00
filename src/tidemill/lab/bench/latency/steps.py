"""Every step of an event's way, from the traces of one pipeline (docs/traces.md): capture, driver and lanes tell when
each began and ended, by the clock of the one machine that they share.

    sent        the server has the commit on disk, decoded it, and its WAL sender has sent it
    read        the socket, and capture's wake-up
    decoded     bytes are columns
    logged      written to the log, durable and visible
    noticed     the driver is awake and has admitted the batch
    pinned      its bounds are on disk, and the loop has it
    dispatched  a standing lane has it
    loaded      the lane has read the log's blocks
    encoded     events are bytes
    answered    the sink has them, and has said so
    returned    the receipts are at the driver, and what they brought is kept
    saved       the checkpoint is on disk

A batch is in the trace of its first append: steps before the driver's are those of that append. Percentiles are over
batches, each step by itself: medians need not add up to the median of the whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tidemill.lab.servers.collector import ReceivedSpan

STEPS = (
    "sent", "read", "decoded", "logged", "noticed", "pinned", "dispatched", "loaded", "encoded", "answered",
    "returned", "saved",
)  # fmt: skip


def steps_of(spans: Iterable[ReceivedSpan]) -> dict[str, list[float]]:
    """Milliseconds, by step: a number for each batch whose trace came whole."""
    traces: dict[str, list[ReceivedSpan]] = defaultdict(list)
    for span in spans:
        traces[span.trace].append(span)
    found: dict[str, list[float]] = {step: [] for step in STEPS}
    for trace in traces.values():
        by_name = {span.name: span for span in trace}
        if by_name.keys() >= _NEEDED:
            for step, nanoseconds in _measure(by_name, trace):
                found[step].append(nanoseconds / 1e6)
    return found


_NEEDED = {
    "change", "server.send", "capture.read", "capture.decode", "capture.append", "stream.batch", "stream.pin",
    "stream.deliver", "lane.deliver", "sink.write", "stream.checkpoint",
}  # fmt: skip


def _measure(by_name: Mapping[str, ReceivedSpan], trace: Sequence[ReceivedSpan]) -> Iterator[tuple[str, float]]:
    change, batch, deliver = by_name["change"], by_name["stream.batch"], by_name["stream.deliver"]
    lane = max((span for span in trace if span.name == "lane.deliver"), key=lambda span: span.end)
    writes = [span for span in trace if span.name == "sink.write" and span.parent == lane.id]
    write = max(writes, key=lambda span: span.end)
    encode, answer = (write.attributes[f"tidemill.{name}_seconds"] * 1e9 for name in ("encode", "write"))
    # A record is visible before its index is durable: the driver may have it while capture still waits for the disk.
    logged = min(by_name["capture.append"].end, batch.start)
    yield "sent", by_name["server.send"].end - change.start
    yield "read", by_name["capture.read"].end - by_name["server.send"].end
    yield "decoded", by_name["capture.decode"].end - by_name["capture.read"].end
    yield "logged", logged - by_name["capture.decode"].end
    yield "noticed", batch.start - logged
    yield "pinned", deliver.start - batch.start
    yield "dispatched", lane.start - deliver.start
    yield "loaded", max(0.0, lane.end - lane.start - encode - answer)
    yield "encoded", encode
    yield "answered", answer
    yield "returned", by_name["stream.checkpoint"].start - lane.end
    yield "saved", by_name["stream.checkpoint"].end - by_name["stream.checkpoint"].start
