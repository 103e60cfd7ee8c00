"""Tables that come to a pipeline whose `tables` is a pattern, while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.sources.support import execute
from tests.support.copying import copying
from tidemill.contracts import Notice
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.snapshot import requests as snapshot_requests
from tidemill.service.snapshot.plan import ASKED, NEVER_RAN


@pytest.fixture
def database(postgres18: Postgres) -> Iterator[str]:
    with postgres18.database("patterned") as dsn:
        yield dsn


def test_a_table_that_was_copied_on_request_is_not_copied_again_by_the_next_start(
    database: str, tmp_path: Path
) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    with copying(database, tmp_path, "public.*") as copy:

        def marks() -> list[Notice]:
            return [notice for notice in copy.source.notices() if notice.code == "table-incomplete"]

        copy.until_done()
        execute(database, "CREATE TABLE b AS SELECT 2 AS id", "ALTER TABLE b ADD PRIMARY KEY (id)")
        copy.until(lambda: [notice.subject for notice in marks()] == ["public.b"])
        [notice] = marks()
        assert "This notice goes when all of its rows are in the change log" in notice.fix
        assert "tidemill recover" not in notice.fix, "nobody has to accept what goes by itself"
        snapshot_requests.start(copy.pipeline, ["public.b"], "")
        copy.until(lambda: set(copy.tables()) == {"public.b"})
        copy.until_done()
        copy.until(lambda: not marks())
    with copying(database, tmp_path, "public.*") as copy:
        time.sleep(1)
        with closing(copy.pipeline.build_state()) as state:
            assert [each.why for each in state.snapshots.records("copied")] == [ASKED, NEVER_RAN]
        assert copy.log.tail().offset == 2
