"""The objects of one delivery while they are made: small ones in memory, large ones already on their way in parts.

Nothing appears in the bucket before `finish`. An object is put with If-None-Match; one that is there already with the
same bytes is a replay's and as good, one with other bytes is a leftover that no manifest names, and is replaced. A
large object is completed from its parts (multipart), which cannot be conditional everywhere: its name is its content's.
"""

from __future__ import annotations

import io
import itertools
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.contracts import Format
from tidemill.model.block import Block
from tidemill.sinks._shared.lines import windows

if TYPE_CHECKING:
    from tidemill.sinks.s3 import S3Config

log = logging.getLogger("tidemill.sinks.s3")

_PART = 8 << 20  # of a multipart upload, and what an object may hold in memory before it becomes one
_AT_A_TIME = 8  # uploads


class Upload(io.RawIOBase):
    """A binary stream whose content becomes an object."""

    def __init__(self, store: Any, name: str) -> None:
        super().__init__()
        self._store = store
        self._name = name
        self._chunks: list[bytes] = []
        self._writer: Any = None
        self.size = 0
        self.held = 0  # bytes in memory, as far as we know

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        import obstore

        chunk = bytes(data)
        self.size += len(chunk)
        if self._writer is not None:
            self._writer.write(chunk)
            return len(chunk)
        self._chunks.append(chunk)
        self.held += len(chunk)
        if self.held > _PART:
            self._writer = obstore.open_writer(self._store, self._name, buffer_size=_PART, max_concurrency=4)
            for held in self._chunks:
                self._writer.write(held)
            self._chunks, self.held = [], _PART
        return len(chunk)

    def put(self) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        if self._writer is not None:
            self._writer.close()
            return
        content = b"".join(self._chunks)
        try:
            obstore.put(self._store, self._name, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            if bytes(obstore.get(self._store, self._name).bytes()) != content:
                log.info("replacing an object that no manifest names: %s", self._name)
                obstore.put(self._store, self._name, content, use_multipart=False)


class _Object:
    """One object under way, with what its manifest entry says."""

    def __init__(self, store: Any, prefix: str, path: str, block: Block, format: Format, config: S3Config, source: str):
        self.upload = Upload(store, prefix + path)
        outer = config.outer_compression
        self._stream = pa.PythonFile(self.upload, "w")
        self._sink = pa.CompressedOutputStream(self._stream, outer) if outer else self._stream
        self._batches = format.open(self._sink, block.table, source, config.compression)
        self.rows = 0
        self.facts: dict[str, Any] = {
            "path": path, "tables": [], "first_offset": int(block.offsets()[0]), "last_offset": 0,
        }  # fmt: skip

    def write(self, block: Block) -> None:
        self._batches.write(block)
        self.rows += block.rows
        if block.table.full_name not in self.facts["tables"]:
            self.facts["tables"].append(block.table.full_name)
        self.facts["last_offset"] = max(self.facts["last_offset"], int(block.offsets()[-1]))

    def close(self) -> dict[str, Any]:
        self._batches.close()
        if self._sink is self._stream:
            self._stream.flush()
        else:
            self._sink.close()
        return {**self.facts, "rows": self.rows, "bytes": self.upload.size}


class Objects:
    """`files` are the finished ones, for the manifest. Names and cuts follow from the events alone (invariant 5)."""

    def __init__(self, store: Any, config: S3Config, format: Format, source: str, token: str) -> None:
        self.files: list[dict[str, Any]] = []
        self._store = store
        self._config = config
        self._format = format
        self._source = source
        self._token = token
        self._open: dict[tuple[Any, ...], _Object] = {}
        self._count: dict[str, int] = {}
        self._closed: list[_Object] = []

    def write(self, folder: str, block: Block) -> None:
        """Rows of one folder, in order. Rolls to the next object by rows, bytes and commit time."""
        for window in windows(block):
            for bucket, part in self._buckets(window):
                table = (block.table.full_name, block.table.version) if self._format.schema_in_file else ()
                self._write((folder, *table, bucket), folder, part)

    @property
    def held(self) -> int:
        return sum(o.upload.held for o in (*self._open.values(), *self._closed))

    @property
    def names(self) -> list[str]:
        return sorted(o.facts["path"] for o in (*self._open.values(), *self._closed))

    def finish(self) -> None:
        """Puts everything that was begun, several at a time."""
        for key in list(self._open):
            self._close(key)
        with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="s3") as threads:
            list(threads.map(lambda o: o.upload.put(), self._closed))
        self._closed = []

    def _write(self, key: tuple[Any, ...], folder: str, block: Block) -> None:
        limit = self._config.max_rows
        at = 0
        while at < block.rows:
            one = self._open.get(key)
            if one is None:
                one = self._open[key] = self._begin(folder, block)
            part = Block(block.table, block.batch.slice(at, min(limit - one.rows, block.rows - at)))
            one.write(part)
            at += part.rows
            if one.rows >= limit or one.upload.size >= self._config.max_bytes:
                self._close(key)

    def _begin(self, folder: str, block: Block) -> _Object:
        """`[<folder>/]<start>-<end>[-<table>-v<version>]-<number><suffix>`; numbers count its objects there."""
        number = self._count[folder] = self._count.get(folder, -1) + 1
        table = (
            f"-{self._config.escape(block.table.name)}-v{block.table.version}" if self._format.schema_in_file else ""
        )
        packed = {"gzip": ".gz", "zstd": ".zst"}.get(self._config.outer_compression or "", "")
        place = f"{folder}/" if folder else ""
        path = f"{place}{self._token}{table}-{number:05}{self._format.suffix}{packed}"
        return _Object(self._store, self._config.root, path, block, self._format, self._config, self._source)

    def _close(self, key: tuple[Any, ...]) -> None:
        one = self._open.pop(key)
        self.files.append(one.close())
        self._closed.append(one)

    def _buckets(self, block: Block) -> list[tuple[int, Block]]:
        """By commit time: an object holds events of one interval only. The same whenever it is written."""
        seconds = self._config.max_seconds
        if seconds is None:
            return [(0, block)]
        times = block.batch.column("commit_time").cast(pa.int64()).fill_null(0).to_numpy()
        numbers = times // (seconds * 1_000_000)
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), block.rows]
        return [
            (int(numbers[low]), Block(block.table, block.batch.slice(low, high - low)))
            for low, high in itertools.pairwise(bounds)
        ]
