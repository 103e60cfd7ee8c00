"""What a lane of a traced run notes of its steps: a span for each, never for a row or a block.

lane.deliver
├─ lane.read       one pass over the lane's blocks; `seconds` is the part of it in which blocks were read
├─ lane.process    where there are processors
└─ sink.write      per sink, its own retries included; it ends with the receipt
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import orjson

from tidemill.model.block import Block
from tidemill.stream.batch.plan import LaneResult
from tidemill.telemetry.spans import LaneSpans


def time_reads(blocks: Callable[[], Iterator[Block]], spans: LaneSpans) -> Callable[[], Iterator[Block]]:
    """Blocks are read as they are asked for, between the steps of who writes them."""

    def read() -> Iterator[Block]:
        start, count, rows, seconds = time.time_ns(), 0, 0, 0.0
        left = blocks()
        try:
            while True:
                began = time.perf_counter()
                block = next(left, None)
                seconds += time.perf_counter() - began
                if block is None:
                    return
                count, rows = count + 1, rows + block.rows
                yield block
        finally:
            spans.add("lane.read", start, blocks=count, rows=rows, seconds=seconds)

    return read


@contextmanager
def time_step(name: str, spans: LaneSpans | None) -> Iterator[None]:
    if spans is None:
        yield
        return
    start = time.time_ns()
    try:
        yield
    except Exception as error:
        spans.add(name, start, error=str(getattr(error, "code", type(error).__name__)))
        raise
    spans.add(name, start)


@contextmanager
def time_write(kind: str, sink: str, spans: LaneSpans) -> Iterator[list[LaneResult]]:
    """The caller puts the result into the list."""
    start, done = time.time_ns(), list[LaneResult]()
    yield done
    receipt = done[0].receipt
    error = "" if receipt.ok else str(orjson.loads(receipt.error_data or "{}").get("code", "failed"))
    spans.add(
        "sink.write", start, error, sink=sink, type=kind, events=receipt.events, bytes=receipt.bytes,
        skipped=receipt.skipped, retries=receipt.retries, encode_seconds=receipt.encode_seconds,
        write_seconds=receipt.write_seconds,
    )  # fmt: skip
