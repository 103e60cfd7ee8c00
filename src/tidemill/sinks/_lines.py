"""JSON lines of a delivery, a bounded piece at a time: what the plain sinks write."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

import pyarrow as pa
from pydantic import Field

from tidemill.component import SinkConfig
from tidemill.formats.json import JsonFormat
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Receipt

WINDOW = 16_384
"""Rows encoded at once: about 10 MB of text, which the allocator reuses without asking the kernel for new pages."""


class LinesConfig(SinkConfig):
    format: Literal["json"] = Field(default="json", description="Wire format of an event.")
    envelope: Literal["native", "debezium"] = Field(
        default="native", description="What stands around a row: docs/events.md."
    )


class Encoding:
    """Encodes one delivery's blocks, and counts what becomes the receipt."""

    def __init__(self, delivery: Delivery, envelope: str) -> None:
        self.events = 0
        self.bytes = 0
        self.seconds = 0.0
        self._delivery = delivery
        self._format = JsonFormat(envelope)
        self._began = time.perf_counter()

    def lines(self, block: Block) -> Iterator[pa.Buffer]:
        for window in windows(block):
            began = time.perf_counter()
            text = self._format.batch(window, self._delivery.source)
            self.seconds += time.perf_counter() - began
            self.events += window.rows
            self.bytes += text.size
            yield text

    def receipt(self, sink: str) -> Receipt:
        writing = time.perf_counter() - self._began - self.seconds
        return Receipt(
            sink, self._delivery.lane, self.events, self.bytes, encode_seconds=self.seconds, write_seconds=writing
        )  # fmt: skip


def windows(block: Block) -> Iterator[Block]:
    for at in range(0, block.rows, WINDOW):
        yield block if block.rows <= WINDOW else Block(block.table, block.batch.slice(at, WINDOW))
