"""The session that a reader of chunks has before there is a chunk."""

from __future__ import annotations

import pytest

from tests.sources.support import config, execute, opened, query
from tidemill.model.snapshot import Chunk
from tidemill.sources.postgres.client import CopySession


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


def test_a_chunk_takes_few_turns_of_server_and_reader(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs both of them time, and a table of a hundred chunks a tenth of a second."""
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 3)")
    with opened(config(database, "public.t")) as source:
        source.setup()
        reader = source.snapshot_reader()
    (table,) = reader.tables()
    asked: list[str] = []
    ask = CopySession.ask

    def note(session: CopySession, command: str) -> list[tuple[object, ...]]:
        asked.append(command)
        return ask(session, command)

    monkeypatch.setattr(CopySession, "ask", note)
    for lower, upper, rows in ((None, ("1",), 1), (("1",), ("3",), 2)):
        asked.clear()
        with reader.read(Chunk(table.name, 0, lower=lower, upper=upper), table, []) as reading:
            assert sum(block.rows for block in reading.blocks()) == rows
    assert len(asked) == 3, "begin and lock, what is seen, and the end; the COPY is read from the bare socket"
    reader.close()
