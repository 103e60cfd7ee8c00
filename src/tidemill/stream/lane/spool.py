"""What processors made of a lane's share of a batch, kept until every sink has it: a bounded part in memory, the rest
in a file of the worker that has no name, so that nothing is left of it whatever happens to the worker."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import pyarrow as pa

from tidemill.log import codec
from tidemill.model.block import Block

MEMORY_BYTES = 64 << 20


class Spool:
    """Filled once, then read by any number of threads, each from the beginning."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._left = memory_bytes
        self._blocks: list[Block | tuple[int, int]] = []  # a block, or where its bytes are in the file
        self._file: IO[bytes] | None = None
        self._end = 0

    def fill(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            size = int(block.batch.nbytes)
            if size <= self._left:
                self._left -= size
                self._blocks.append(block)
            else:
                self._blocks.append(self._write(block))

    def blocks(self) -> Iterator[Block]:
        """In the order in which they came."""
        for one in self._blocks:
            yield one if isinstance(one, Block) else self._read(*one)

    @property
    def bytes_on_disk(self) -> int:
        return self._end

    def close(self) -> None:
        self._blocks.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, block: Block) -> tuple[int, int]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="tidemill-spool-", buffering=0)  # noqa: SIM115  closed by `close`
        start = self._end
        for piece in codec.dump(block):
            view = memoryview(piece).cast("B")
            while len(view):
                written = self._file.write(view)
                view = view[written or 0 :]
            self._end += len(memoryview(piece).cast("B"))
        return start, self._end - start

    def _read(self, start: int, size: int) -> Block:
        assert self._file is not None
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            found = os.preadv(self._file.fileno(), [view[at:]], start + at)
            if not found:
                raise OSError("the spool of this batch is shorter than it was written")
            at += found
        return codec.load(pa.py_buffer(data))
