"""Dead letters and rewinds of an older structure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.sinks.state.following import Origin, same, write
from tests.sinks.state.support import Destination
from tests.support.changes import delivery
from tidemill.errors import Refused
from tidemill.model.block import Block
from tidemill.model.table import Table

CHANGES = {  # statements, and the columns afterwards
    "added": (["ALTER TABLE t ADD COLUMN level int DEFAULT 5"], "id, name, note, level"),
    "renamed": (["ALTER TABLE t RENAME COLUMN name TO label"], "id, label, note"),
    "name reused": (
        ["ALTER TABLE t RENAME COLUMN name TO label", "ALTER TABLE t ADD COLUMN name text DEFAULT 'n'"],
        "id, label, note, name",
    ),
    "names exchanged": (
        [
            "ALTER TABLE t RENAME COLUMN name TO third",
            "ALTER TABLE t RENAME COLUMN note TO name",
            "ALTER TABLE t RENAME COLUMN third TO note",
        ],
        "id, name, note",
    ),
    "dropped and added": (
        ["ALTER TABLE t DROP COLUMN name", "ALTER TABLE t ADD COLUMN name text DEFAULT 'n'"], "id, name, note",
    ),
    "key retyped": (
        ["ALTER TABLE t ALTER COLUMN id TYPE bigint", "ALTER TABLE t ADD COLUMN level int DEFAULT 5"],
        "id, name, note, level",
    ),
}  # fmt: skip


def _send_again(there: Destination, dead_letter: list[Block], newest: Table | None = None) -> None:
    for block in dead_letter:
        again = delivery(block, start=int(block.offsets()[0]))
        there.sink().write(dataclasses.replace(again, redelivered=True, newest=newest))


def _change_after_a_dead_letter(
    origin: Origin, there: Destination, *statements: str
) -> tuple[list[Block], list[Block]]:
    """Row 1 and the change of structure are delivered, row 2 between them is not. Returns its blocks, then those of
    the change."""
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    origin.do("INSERT INTO t VALUES (2, 'letter', 'x')")
    dead_letter = origin.blocks()
    origin.do(*statements)
    since = origin.blocks()
    write(there, *since)
    return dead_letter, since


@pytest.mark.parametrize("change", CHANGES)
def test_a_dead_letter_of_an_older_structure_has_its_values_where_its_columns_are_now(
    postgres_origin: Origin, target: Destination, change: str
) -> None:
    statements, columns = CHANGES[change]
    dead_letter, _ = _change_after_a_dead_letter(postgres_origin, target, *statements)
    structure = _structure(target)
    _send_again(target, dead_letter)
    assert _structure(target) == structure
    both = (postgres_origin.rows(columns), target.rows(columns))
    (here,), (there,) = ([row for row in rows if row[0] == 2] for rows in both)
    assert there == here


def test_a_row_from_before_several_changes_has_what_the_source_gave_it_in_each_new_column(
    postgres_origin: Origin, target: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(target, *origin.blocks())
    origin.do("INSERT INTO t VALUES (2, 'letter', 'x')")
    dead_letter = origin.blocks()
    for statement in (
        "ALTER TABLE t ADD COLUMN level int DEFAULT 5",
        "ALTER TABLE t ADD COLUMN more text DEFAULT 'm'",
        "ALTER TABLE t RENAME COLUMN level TO degree",
        "ALTER TABLE t ALTER COLUMN degree TYPE bigint",
    ):
        origin.do(statement, "UPDATE t SET note = 'n' WHERE id = 1")
        write(target, *origin.blocks())
    _send_again(target, dead_letter)
    assert same(origin, target, "id, name, note, degree, more")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("emptied", [False, True], ids=["over what is there", "into an emptied table"])
def test_a_rewind_over_a_change_of_structure_ends_with_the_rows_of_the_source(
    postgres_origin: Origin, target: Destination, change: str, emptied: bool
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)", "UPDATE t SET note = 'm' WHERE id = 2")
    first = origin.blocks()
    write(target, *first)
    statements, columns = CHANGES[change]
    origin.do(*statements, "DELETE FROM t WHERE id = 2")
    second = origin.blocks()
    write(target, *second)
    structure = _structure(target)
    if emptied:
        target.run("DELETE FROM t")
    elif change == "dropped and added":
        target.run("UPDATE t SET name = 'n'")  # as the notice asks for
    write(target, *first, *second, rewind="apply")
    assert _structure(target) == structure
    assert same(origin, target, columns)


def _structure(target: Destination) -> list[tuple[Any, ...]]:
    return target.rows("attnum AS id, attname::text", table="pg_attribute WHERE attrelid = 't'::regclass")


@pytest.mark.parametrize("there", ["clickhouse"], indirect=True)
@pytest.mark.parametrize("change", ["name reused", "names exchanged", "dropped and added"])
def test_a_dead_letter_whose_names_are_other_columns_now_is_refused(
    postgres_origin: Origin, there: Destination, change: str
) -> None:
    dead_letter, _ = _change_after_a_dead_letter(postgres_origin, there, *CHANGES[change][0])
    before = there.rows("id, name, note")
    with pytest.raises(Refused, match="name"):
        _send_again(there, dead_letter)
    assert there.rows("id, name, note") == before


@pytest.mark.parametrize("there", ["starrocks"], indirect=True)
@pytest.mark.parametrize("change", [name for name in CHANGES if name != "key retyped"])
def test_a_dead_letter_of_an_older_structure_is_refused_where_the_target_cannot_tell(
    postgres_origin: Origin, there: Destination, change: str
) -> None:
    statements, columns = CHANGES[change]
    dead_letter, since = _change_after_a_dead_letter(postgres_origin, there, *statements)
    before = there.rows(columns)
    with pytest.raises(Refused, match="older structure"):
        _send_again(there, dead_letter, since[-1].table)
    assert there.rows(columns) == before


def test_a_dead_letter_from_before_a_column_was_dropped_or_got_no_value_is_taken(
    postgres_origin: Origin, there: Destination
) -> None:
    change = "ALTER TABLE t DROP COLUMN note, ADD COLUMN more int"
    dead_letter, since = _change_after_a_dead_letter(postgres_origin, there, change)
    _send_again(there, dead_letter, since[-1].table)
    assert same(postgres_origin, there, "id, name, more")
