"""Looks at the catalog that wait, fail or come too often hold up nobody."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests.sources.postgres.publication.support import TABLE, Make
from tests.sources.support import config
from tests.support.capturing import eventually
from tidemill.sources.postgres.publication import watch as watching


def test_tables_that_are_locked_are_added_later_and_hold_up_neither_others_nor_looks(
    watched: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_SHARE", 20)
    it = watched("public.*")
    locked = {f"u{number}" for number in range(4)}
    it.execute(TABLE)
    with it.running() as run:
        it.execute("INSERT INTO t VALUES (1)")
        eventually(lambda: run.events == 1, run)  # from here on only the watch adds tables
    it.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in locked), "CREATE TABLE v (id int PRIMARY KEY)")
    with psycopg.connect(it.dsn) as other:
        other.execute(f"LOCK TABLE {', '.join(locked)} IN SHARE MODE".encode())
        with it.running():
            assert it.members() == {"t", "v"}
            it.looked()
            assert {n.subject for n in it.notices("table-unpublished")} == {f"public.{name}" for name in locked}
            other.commit()
            eventually(lambda: it.members() == {"t", "v", *locked})


def test_a_look_that_waits_for_ever_does_not_hold_up_the_stream_or_its_end(watched: Make) -> None:
    it = watched("t")
    it.execute(TABLE)
    with it.running() as run, psycopg.connect(it.dsn) as other:
        it.looked()
        other.execute("LOCK TABLE pg_catalog.pg_publication_rel IN ACCESS EXCLUSIVE MODE")
        it.execute("SELECT pg_logical_emit_message(true, 'x', 'y')")
        eventually(lambda: run.events == 1, run)
        run.stop.set()
        eventually(lambda: it.source._watch._thread is None)


def test_a_catalog_that_cannot_be_read_for_a_while_does_not_end_a_healthy_stream(watched: Make) -> None:
    it = watched("t", lock_timeout_seconds=0.1)
    it.execute(TABLE)
    with it.running() as run:
        it.looked()
        with psycopg.connect(it.dsn) as other:
            other.execute("LOCK TABLE pg_catalog.pg_publication_rel IN ACCESS EXCLUSIVE MODE")
            failed = it.source._watch.failed_looks
            eventually(lambda: it.source._watch.failed_looks > failed + 1, run)
            it.execute("SELECT pg_logical_emit_message(true, 'x', 'y')")
            eventually(lambda: run.events == 1, run)
        it.execute("CREATE TABLE u (id int PRIMARY KEY)")
        it.looked()
        assert not run.failure


def broken_comparison(*arguments: Any) -> None:
    raise KeyError("leaf")


def test_a_look_that_breaks_is_a_failed_look_and_the_next_one_is_made(
    watched: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = watched("public.*")
    with it.running() as run:
        with monkeypatch.context() as broken:
            broken.setattr(watching, "Comparison", broken_comparison)
            broken.setattr(watching, "_BLIND_SECONDS", 0.0)
            it.execute(TABLE)
            it.notice("catalog-unwatched", it.config.publication_name, "KeyError: 'leaf'")
            failed = it.source._watch.failed_looks
            eventually(lambda: it.source._watch.failed_looks > failed, run)
        it.looked()
        assert it.notices() == []
        assert it.members() == {"t"}
        assert not run.failure


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_watch_that_has_ended_begins_again_with_the_next_connection(
    watched: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = watched("t")
    it.execute(TABLE)
    with it.running() as run:
        look, ends = it.source._watch._look, iter([True])
        monkeypatch.setattr(it.source._watch, "_look", lambda *given: sys.exit() if next(ends, False) else look(*given))
        eventually(lambda: run.last_error, run)
        assert "the thread that watches the publication has ended" in run.last_error[0].what
        it.looked()


class Recorded(threading.Event):
    """Nobody waits for it; how long they would have is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


def test_a_stream_that_hints_all_the_time_does_not_take_more_than_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_SHARE", 20)
    monkeypatch.setattr(watching, "connect", lambda config: SimpleNamespace(close=lambda: None))
    watch, stop = watching.PublicationWatch(config("dbname=none", catalog_seconds=3600)), Recorded()
    reading = iter([0.5, 0.25, 3600.0, 0.0])

    def look(db: Any, stop: threading.Event) -> None:
        watch._reading_seconds = next(reading)
        watch.hint()
        if not watch._reading_seconds:
            stop.set()

    monkeypatch.setattr(watch, "_look", look)
    watch.hint()
    watch._run(stop)
    assert stop.waits == [0.0, 10.0, 5.0, 30.0]
