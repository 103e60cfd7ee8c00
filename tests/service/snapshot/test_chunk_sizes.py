"""Chunks are small while the stream brings changes, and as large as the document says while it does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.blocks import make_block, make_change
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.log.entry import Constants
from tidemill.log.staging import Staging
from tidemill.model.position import Position
from tidemill.service.snapshot import chunk_sizes
from tidemill.service.snapshot.chunk_sizes import ChunkSizes

LARGE, SMALL = 50_000, 8192


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogWriter]:
    with closing(LogWriter.open(str(tmp_path / "log"), LogConfig())) as writer:
        yield writer


def adopt(log: LogWriter, id: str) -> None:
    manifest = Staging(log.store, id).seal([Staging(log.store, id).write("0", [make_block(3)])])
    log.adopt(manifest, Position("0/900"), constants=Constants(Position(f"snapshot:1_ab/public.t/{id}"), 0, 5))


def test_chunks_are_small_beside_changes_only(log: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ChunkSizes(LARGE, LogReader(log.store))
    adopt(log, "one")
    assert sizes.look(log.tail.offset) == LARGE, "what the copy itself brings is no change"
    log.append(make_change(3))
    adopt(log, "two")
    assert sizes.look(log.tail.offset) == SMALL
    assert sizes.look(log.tail.offset) == SMALL, "for a while"
    monkeypatch.setattr(chunk_sizes, "QUIET_SECONDS", 0.0)
    assert sizes.look(log.tail.offset) == LARGE


def test_the_first_chunks_of_a_copy_that_begins_beside_changes_are_small(
    log: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They had 50,000 rows, and some of them were read before the first look that found a change."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    log.append(make_change(3))
    sizes = ChunkSizes(LARGE, LogReader(log.store))
    assert sizes.look(log.tail.offset) == SMALL
    assert sizes.prefetch < ChunkSizes(LARGE, LogReader(log.store)).prefetch, "and fewer of them are read ahead"


def test_what_came_long_before_a_copy_says_nothing(log: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(make_change(3))
    later = time.time() + 2
    monkeypatch.setattr(time, "time", lambda: later)
    sizes = ChunkSizes(LARGE, LogReader(log.store))
    assert sizes.look(log.tail.offset) == LARGE
    adopt(log, "one")
    assert sizes.look(log.tail.offset) == LARGE


def test_a_document_that_wants_smaller_ones_gets_them(log: LogWriter) -> None:
    sizes = ChunkSizes(100, LogReader(log.store))
    assert sizes.look(log.tail.offset) == 100
    log.append(make_change(3))
    assert sizes.look(log.tail.offset) == 100
