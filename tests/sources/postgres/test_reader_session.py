"""The session that a reader of chunks has before there is a chunk."""

from __future__ import annotations

from tests.sources.support import config, execute, opened, query
from tidemill.model.snapshot import Chunk


def test_a_reader_that_got_ready_reads_on_the_session_that_it_has(database: str) -> None:
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    settings = config(database, "public.t")
    with opened(settings) as source:
        source.setup()
        reader = source.snapshot_reader()
    (table,) = reader.tables()
    sessions = (
        "SELECT array_agg(pid ORDER BY pid)::text FROM pg_stat_activity"
        f" WHERE application_name = '{settings.application_name}'"
    )
    reader.get_ready()
    before = query(database, sessions)
    reader.get_ready()
    assert query(database, sessions) == before
    with reader.read(Chunk(table.name, 0), table, []) as reading:
        assert sum(block.rows for block in reading.blocks()) == 1
    assert query(database, sessions) == before
    reader.close()
