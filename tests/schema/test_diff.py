"""What changed between two versions of a table, and that a rename is never guessed."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.schema.diff import Diff, diff

INT = DataType("int", pa.int32(), JsonForm.NUMBER)
BIG = DataType("bigint", pa.int64(), JsonForm.NUMBER)
TEXT = DataType("text", pa.string(), JsonForm.STRING)
ID, NOTE, TOTAL = Column("id", INT, nullable=False), Column("note", TEXT), Column("total", INT)
OLD = Table("shop", "shop", "orders", (ID, NOTE, TOTAL), ("id",))


def _with(*columns: Column, renamed: tuple[tuple[str, str], ...] = ()) -> Table:
    return replace(OLD, columns=columns, renamed=renamed)


def test_the_same_columns_are_no_difference() -> None:
    assert diff(OLD, OLD) == Diff()
    assert not diff(OLD, OLD)


def test_another_order_is_no_difference_to_who_goes_by_name() -> None:
    assert not diff(OLD, _with(TOTAL, ID, NOTE))


def test_columns_that_came_and_went_are_listed_in_the_order_of_their_table() -> None:
    more = Column("more", TEXT)
    found = diff(OLD, _with(more, ID, Column("last", INT)))
    assert found.added == (more, Column("last", INT))
    assert found.dropped == (NOTE, TOTAL)
    assert (found.renamed, found.changed) == ((), ())


def test_a_changed_type_nullability_or_generation_is_a_change() -> None:
    for column in (Column("total", BIG), replace(TOTAL, nullable=False), replace(TOTAL, generated=True)):
        assert diff(OLD, _with(ID, NOTE, column)) == Diff(changed=((TOTAL, column),))


def test_one_column_gone_and_one_come_are_no_rename_unless_the_table_says_so() -> None:
    remark = Column("remark", TEXT)
    guessed = diff(OLD, _with(ID, remark, TOTAL))
    assert (guessed.added, guessed.dropped, guessed.renamed) == ((remark,), (NOTE,), ())
    found = diff(OLD, _with(ID, remark, TOTAL, renamed=(("note", "remark"),)))
    assert found == Diff(renamed=((NOTE, remark),))


def test_a_column_that_was_renamed_and_changed_is_in_both() -> None:
    column = Column("sum", BIG)
    found = diff(OLD, _with(ID, NOTE, column, renamed=(("total", "sum"),)))
    assert found == Diff(renamed=((TOTAL, column),), changed=((TOTAL, column),))


def test_a_rename_of_columns_that_are_not_there_counts_for_nothing() -> None:
    found = diff(OLD, _with(ID, NOTE, TOTAL, Column("x", INT), renamed=(("gone", "x"), ("note", "y"))))
    assert found == Diff(added=(Column("x", INT),))


def test_columns_that_exchange_their_names_keep_their_values() -> None:
    swapped = _with(ID, Column("total", TEXT), Column("note", INT), renamed=(("note", "total"), ("total", "note")))
    assert diff(OLD, swapped) == Diff(renamed=((NOTE, swapped.columns[1]), (TOTAL, swapped.columns[2])))


def test_a_new_column_may_have_the_name_that_another_one_gave_up() -> None:
    remark, note = Column("remark", TEXT), Column("note", INT)
    found = diff(OLD, _with(ID, remark, TOTAL, note, renamed=(("note", "remark"),)))
    assert found == Diff(renamed=((NOTE, remark),), added=(note,))


def test_what_the_source_knows_a_column_by_tells_more_than_its_name() -> None:
    def known(name: str, number: int) -> Column:
        return Column(name, TEXT, origin=f"16384.{number}")

    old = _with(known("id", 1), known("a", 2), known("b", 3))
    assert diff(old, _with(known("id", 1), known("b", 2), known("a", 3))).renamed == (
        (known("a", 2), known("b", 2)),
        (known("b", 3), known("a", 3)),
    )
    again = diff(old, _with(known("id", 1), known("a", 2), known("b", 4)))
    assert again == Diff(replaced=((known("b", 3), known("b", 4)),))
    # Long ago "a" was "c", and a column of that name is there again: that is not the one.
    late = diff(old, _with(known("id", 1), known("a", 2), known("c", 5), renamed=(("c", "a"),)))
    assert (late.added, late.dropped, late.renamed) == ((known("c", 5),), (known("b", 3),), ())


def test_a_rename_is_also_told_by_the_table_where_the_source_did_not_know_the_column_before() -> None:
    old = _with(replace(ID, origin="1.1"), NOTE, replace(TOTAL, origin="1.3"))
    remark = Column("remark", TEXT, origin="1.2")
    columns = (replace(ID, origin="1.1"), remark, replace(TOTAL, origin="1.3"))
    assert diff(old, _with(*columns, renamed=(("note", "remark"),))) == Diff(renamed=((NOTE, remark),))
    assert diff(old, _with(*columns)) == Diff(added=(remark,), dropped=(NOTE,))
    # What is known to be another column is none that was renamed.
    known = _with(replace(ID, origin="1.1"), replace(NOTE, origin="1.4"), replace(TOTAL, origin="1.3"))
    assert diff(known, _with(*columns, renamed=(("note", "remark"),))).renamed == ()


def test_another_table_of_the_same_name_goes_by_the_names_of_its_columns() -> None:
    old = _with(*(replace(c, origin=f"1.{n}") for n, c in enumerate(OLD.columns)))
    assert not diff(old, _with(*(replace(c, origin=f"2.{n}") for n, c in enumerate(OLD.columns))))
