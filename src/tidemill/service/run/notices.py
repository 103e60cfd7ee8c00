"""What sinks have to say of their tables although they took everything: it comes with receipts, and stands in status.

A sink says it again whenever a worker looks at the table, so this file only bridges the time until then: a pipeline
that starts shows what its sinks said last. `notices.json` in the pipeline's state directory, replaced atomically.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import orjson

from tidemill.disk.replace import replace_file
from tidemill.telemetry import events

Said = dict[str, dict[str, list[dict[str, str]]]]
"""Sink -> table -> notices."""


class SinkNotices:
    """Batches report from the threads of Spark's streams."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changing = threading.Lock()
        try:
            self._said: Said = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError):  # sinks will say it again
            self._said = {}

    def take(self, sink: str, packed: str | None, pipeline: str) -> None:
        """`packed` as in a receipt. What is new is an event of the log, once."""
        if not packed:
            return
        with self._changing:
            before = self._said.get(sink, {})
            now = before | orjson.loads(packed)
            now = {table: said for table, said in now.items() if said}
            if now == before:
                return
            known = [notice for said in before.values() for notice in said]
            self._said = {**self._said, sink: now}
            self._save()
        for notice in (notice for said in now.values() for notice in said if notice not in known):
            events.warn("sink.rows_left_behind", pipeline=pipeline, sink=sink, table=notice["subject"],
                        what=notice["what"], fix=notice["fix"])  # fmt: skip

    def standing(self) -> Iterator[dict[str, str]]:
        said = self._said
        return (notice for tables in said.values() for notices in tables.values() for notice in notices)

    def _save(self) -> None:
        try:
            replace_file(self._path, orjson.dumps(self._said))
        except OSError as error:  # it is a status; a full disk must not stop deliveries for it
            events.warn("pipeline.notices_not_written", error=error.strerror)
