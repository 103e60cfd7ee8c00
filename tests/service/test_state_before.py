"""A state directory of the version before the tree was redrawn is opened, and the pipeline goes on from it.

`state_before/` was written by that version; its SQLite files are kept as SQL. How its log is read: `tests/log`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.blocks import make_table
from tidemill.capture.confirmed import import_confirmed, read_confirmed
from tidemill.checkpoints.sqlite import SqliteCheckpoints
from tidemill.dlq import DeadLetters
from tidemill.model.position import Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.service.run.notices import SinkNotices
from tidemill.state import open_store

BEFORE = Path(__file__).parent / "state_before"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for file in BEFORE.iterdir():
        if file.suffix == ".sql":
            with closing(sqlite3.connect(tmp_path / f"{file.stem}.sqlite")) as db:
                db.executescript(file.read_text())
        else:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_structures_keep_their_numbers_and_new_ones_go_on_from_them(directory: Path) -> None:
    whole, key = make_table(), make_table(key=("id", "name"))
    with closing(SchemaRegistry(directory / "registry.sqlite", create=False)) as schemas:
        assert [table.version for table in schemas.versions("public.orders")] == [1, 2]
        assert schemas.register(whole, Position("0/50")).sequence == 1
        assert schemas.register(replace(whole, columns=whole.columns[:-1]), Position("0/50")).sequence == 2
        assert schemas.register(key, Position("0/60")).version == 3
        assert schemas.recall("postgres.witness") == b'{"lsn": 32}'


def test_dead_letters_are_there_with_their_attempts_and_can_be_sent_again(directory: Path) -> None:
    with closing(DeadLetters(directory / "dlq.sqlite")) as store:
        first, second = store.dead_letters()
        assert (first.offset, first.attempts, first.reason) == (5, 2, "still too large")
        whole = store.dead_letter(second.number)
        assert whole is not None
        assert (whole.event_id, whole.payload) == ("src:0/7:0", b"x" * 10)
        assert store.put([whole]).new == ()  # a replay brings it again
        store.remove([first.number])
        assert store.count() == {"s": 1}


def test_the_checkpoint_goes_on_from_its_version(directory: Path) -> None:
    with closing(SqliteCheckpoints(SqliteCheckpoints.Config(), directory)) as checkpoints:
        last = checkpoints.load("p")
        assert last is not None
        assert (last.offset, last.position, last.version) == (20, "0/40", 2)
        assert checkpoints.save("p", replace(last, offset=30), expect=2).version == 3


def test_the_position_confirmed_to_the_source_moves_into_the_store(directory: Path) -> None:
    with closing(open_store(str(directory / "state.sqlite"))) as state:
        assert read_confirmed(state, "p", directory, logged=12) == "0/30"
        import_confirmed(state, "p", directory)
        assert not (directory / "told.json").exists()
        assert read_confirmed(state, "p", directory, logged=12) == "0/30"


def test_what_sinks_said_of_their_tables_still_stands(directory: Path) -> None:
    assert [notice["subject"] for notice in SinkNotices(directory / "notices.json").standing()] == ["public.orders"]
