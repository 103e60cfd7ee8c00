"""A delivery in a wire format, a bounded piece at a time: what the plain sinks write."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pyarrow as pa

from tidemill.contracts import BatchWriter, Format
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Receipt

WINDOW = 16_384
"""Rows encoded at once: about 10 MB of text, which the allocator reuses without asking the kernel for new pages."""

_THREADS = 2
_SHARE = 8192  # rows of a window that a thread is worth


class Encoding:
    """Encodes one delivery's blocks, and counts what becomes the receipt."""

    def __init__(self, delivery: Delivery, format: Format) -> None:
        self.events = 0
        self.bytes = 0
        self.seconds = 0.0
        self.format = format
        self.delivery = delivery
        self._began = time.perf_counter()

    def pieces(self, block: Block) -> Generator[pa.Buffer, None, None]:
        """Each holds whole events and can be read by itself. Those of a large block are encoded side by side, and
        before they are asked for: over a backlog, as of a copy, one lane would leave all cores but one idle."""
        began = time.perf_counter()
        with closing(self._encode(block)) as encoded:
            for rows, text in encoded:
                self.seconds += time.perf_counter() - began
                self.events += rows
                self.bytes += text.size
                yield text
                began = time.perf_counter()

    def _encode(self, block: Block) -> Generator[tuple[int, pa.Buffer], None, None]:
        source, encode = self.delivery.source, self.format.batch
        alone = self.delivery.lanes < (os.cpu_count() or 1)  # else other lanes keep the other cores busy
        if block.rows < 2 * _SHARE or not self.format.concurrent or not alone:
            for window in windows(block):
                yield window.rows, encode(window, source)
            return
        shares = windows(block, -(-block.rows // (block.rows // _SHARE)))
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="encode") as threads:
            begun: deque[tuple[int, Future[pa.Buffer]]] = deque()
            for window in shares:
                begun.append((window.rows, threads.submit(encode, window, source)))
                if len(begun) > _THREADS:
                    rows, text = begun.popleft()
                    yield rows, text.result()
            for rows, text in begun:
                yield rows, text.result()

    def receipt(self, sink: str) -> Receipt:
        writing = time.perf_counter() - self._began - self.seconds
        return Receipt(
            sink, self.delivery.lane, self.events, self.bytes, encode_seconds=self.seconds, write_seconds=writing
        )  # fmt: skip


class FileWriter:
    """One file on a stream that it closes. Encoding and writing alternate inside the format, and count as encoding."""

    def __init__(self, stream: Any, batches: BatchWriter, encoding: Encoding) -> None:
        self._stream = stream
        self._batches = batches
        self._encoding = encoding

    def write(self, block: Block) -> None:
        for window in windows(block):
            began = time.perf_counter()
            self._batches.write(window)
            self._encoding.seconds += time.perf_counter() - began
            self._encoding.events += window.rows

    def close(self) -> None:
        self._batches.close()
        self._encoding.bytes += self._stream.tell()  # before compression of the whole stream
        self._stream.close()


def windows(block: Block, most: int = WINDOW) -> Iterator[Block]:
    for at in range(0, block.rows, most):
        yield block if block.rows <= most else Block(block.table, block.batch.slice(at, most))
