"""A range of the log with a copy in it, delivered again: updates in it may be older than the rows that they change."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.sources.support import execute, query
from tests.support.copying import copying
from tests.support.verified import SinkServers
from tidemill.config import Pipeline
from tidemill.lab.servers.postgres import Postgres
from tidemill.log import Tail, acknowledge
from tidemill.log.copying import read_copying
from tidemill.log.store import open_store
from tidemill.model.delivery import Checkpoint
from tidemill.service.redelivery import replay
from tidemill.service.redelivery.replay import plan_range, replay_range
from tidemill.service.snapshot import requests
from tidemill.service.verify.audit import VerifyOptions, verify


def note_delivered(pipeline: Pipeline, tail: Tail) -> None:
    with closing(pipeline.build_checkpoints()) as store:
        store.save(pipeline.name, Checkpoint(tail.offset, tail.position), expect=0)
    acknowledge(pipeline.log_uri, tail)


@pytest.mark.parametrize("kind", ["postgres", "clickhouse", "starrocks"])
def test_a_new_sink_gets_rows_that_changed_before_their_copy_came(
    kind: str, request: pytest.FixtureRequest, postgres18: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_BATCH_EVENTS", 30)  # the rows come later than the updates
    servers = SinkServers(request)
    sink: dict[str, Any] = servers.sink(kind, tmp_path)
    settings: dict[str, Any] = {"chunk_rows": 20, "max_connections": 1, "max_rows_per_second": 150}
    with postgres18.database(f"replayed_{kind}") as database, closing(servers):
        execute(
            database, "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
            "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
            "INSERT INTO t SELECT i, 0, repeat(md5(i::text), 100) FROM generate_series(1, 200) i",
        )  # fmt: skip
        with copying(database, tmp_path, "public.t", sinks=[sink], **settings) as copy:
            copy.until(lambda: copy.tables() and copy.tables()["public.t"].adopted >= 2)
            execute(database, "UPDATE t SET n = 1 WHERE id > 180", "UPDATE t SET n = 2 WHERE id > 190")
            copy.until_done()
            copy.until(lambda: None not in read_copying(open_store(copy.pipeline.log_uri)).values())
            pipeline, tail = copy.pipeline, copy.log.tail()
        note_delivered(pipeline, tail)
        replayed = replay_range(pipeline, plan_range(pipeline, "0", None, sink=None))
        assert replayed.through == tail.offset
        (verdict,) = verify(pipeline, options=VerifyOptions(wait_seconds=0))
        assert (verdict.is_equal, verdict.rows) == (True, 200)
        assert query(database, "SELECT count(*) FROM t WHERE n = 2") == [(10,)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_later_copy_that_is_given_up_takes_nothing_back_of_what_the_one_before_brought(
    postgres18: Postgres, tmp_path: Path, lost: bool
) -> None:  # fmt: skip
    """A sink that is away, or new, meets updates of the first copy that are older than their rows. `lost`: with the
    state store."""
    settings: dict[str, Any] = {"chunk_rows": 10, "max_connections": 1, "max_rows_per_second": 60}
    with postgres18.database(f"given_up_{lost}".lower()) as database:
        execute(
            database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 100)",
        )  # fmt: skip
        with copying(database, tmp_path, "public.t", **settings) as copy:
            copy.until_done()
            store = open_store(copy.pipeline.log_uri)
            copy.until(lambda: read_copying(store).get("public.t"))
            first = read_copying(store)
            requests.start(copy.pipeline, [], "")
            copy.until(lambda: read_copying(store) == {"public.t": None})
            if not lost:
                requests.cancel(copy.pipeline)
                copy.until(lambda: read_copying(store) == first, f"{first}: {read_copying(store)}")
        if lost:
            with closing(copy.pipeline.build_state()) as state:
                known = state.confirmed("copied")
            for file in (tmp_path / "state").glob("state.sqlite*"):
                file.unlink()
            if known is not None:  # a quiet stream was confirmed beyond the log's end: not what this is about
                with closing(copy.pipeline.build_state()) as state:
                    state.confirm("copied", known.position, known.offset)
            with copying(database, tmp_path, "public.t", **settings):
                assert read_copying(store) == first
