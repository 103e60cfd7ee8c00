"""Reads back what an s3 sink has, for `tidemill verify`. As readers do: the objects that manifests name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa

from tidemill.net.s3 import explain_errors
from tidemill.sinks.s3.resume import MANIFESTS


class ObjectEvents:
    """Objects of JSON lines in `folder`, or in all folders where it is None: their path depends on the rows."""

    def __init__(self, store: Any, root: str, folder: str | None, where: str) -> None:
        self._store, self._root, self._folder, self._where = store, root, folder, where
        self._read: set[str] = set()

    def fresh(self) -> Iterator[bytes]:
        import obstore

        with explain_errors(self._where):
            listed = obstore.list(self._store, f"{self._root}{MANIFESTS}/").collect()
            for name in sorted({meta["path"] for meta in listed} - self._read):
                document = orjson.loads(bytes(obstore.get(self._store, name).bytes()))
                for file in document["files"]:
                    path = file["path"]
                    if self._folder is None or path.rpartition("/")[0] == self._folder:
                        content = bytes(obstore.get(self._store, f"{self._root}{path}").bytes())
                        yield from _unpack(path, content).splitlines()
                self._read.add(name)

    def close(self) -> None:
        self._read.clear()


def _unpack(path: str, content: bytes) -> bytes:
    codec = "gzip" if path.endswith(".gz") else "zstd" if path.endswith(".zst") else None
    if codec is None:
        return content
    with pa.CompressedInputStream(pa.BufferReader(content), codec) as stream:
        return bytes(stream.read())
