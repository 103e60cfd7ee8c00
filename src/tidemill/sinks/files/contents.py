"""Reads back what a files sink has of one table, for `tidemill verify`. As readers do: files in order of names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from tidemill.errors import DeliveryError
from tidemill.sinks.files.client import FileStore


class FileEvents:
    """Files of JSON lines in one folder."""

    def __init__(self, store: FileStore, folder: str, where: str) -> None:
        self._store, self._folder, self._where = store, folder, where
        self._read: set[str] = set()

    def fresh(self) -> Iterator[bytes]:
        with self._explain_errors():
            for name in self._store.list(self._folder):
                if name in self._read:
                    continue
                content = self._store.get(f"{self._folder}/{name}")
                if content is not None:  # else another attempt of its batch took its place meanwhile
                    self._read.add(name)
                    yield from content.splitlines()

    def close(self) -> None:
        self._read.clear()

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise DeliveryError(
                f"the sink's files cannot be read: {type(error).__name__}", where=self._where,
                fix="Check the permissions and the reachability of the path.",
            ) from error  # fmt: skip
