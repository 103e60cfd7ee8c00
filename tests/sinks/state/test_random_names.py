"""Columns come, go and get other names, several times in one transaction, and only the catalog of later tells which is
which. Whatever happens, a copy has the source's values, or a notice says that it may not."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from tests.sinks.state.following import Origin, said, same, write
from tests.sinks.state.support import Destination
from tests.support.seed import WHOLE, dice

_COLUMNS = itertools.count(1)


def transaction(chance: Random, columns: list[str]) -> str:
    """Its statements; `columns` are those beside the key, and are kept as they are then."""
    made = []
    for _ in range(chance.randint(2, 6)):
        what = chance.choice(["add", "rename", "rename", "drop", "default", "fill", "fill", "fill"])
        at, new = chance.randrange(len(columns)), f"c{next(_COLUMNS)}"
        old, number = columns[at], chance.randrange(100)
        match what:
            case "add":
                rule = chance.choice(["", f"DEFAULT '{number}'", f"NOT NULL DEFAULT '{number}'"])
                made.append(f"ALTER TABLE t ADD COLUMN {new} text {rule}")
                columns.append(new)
            case "rename":
                made.append(f"ALTER TABLE t RENAME COLUMN {old} TO {new}")
                columns[at] = new
            case "drop" if len(columns) > 2:
                made.append(f"ALTER TABLE t DROP COLUMN {old}")
                del columns[at]
            case "default":
                made.append(f"ALTER TABLE t ALTER COLUMN {old} SET DEFAULT 'd{number}'")
            case _:
                made.append(f"UPDATE t SET {old} = 'v{number}' WHERE id = {chance.randint(1, 5)}")
    return "; ".join(made)


@pytest.mark.parametrize("number", range(20 if WHOLE else 2))
def test_what_a_copy_does_not_know_of_renamed_columns_is_said(
    postgres_origin: Origin, target: Destination, number: int
) -> None:
    origin, chance, columns = postgres_origin, dice("names", number), ["name", "note"]
    origin.do("INSERT INTO t SELECT n, 'a' || n, 'b' || n FROM generate_series(1, 5) n")
    write(target, *origin.blocks(), allow_destructive_ddl=True)
    told: dict[str, list[str]] = {}
    statements: list[str] = []
    for _ in range(5):
        statements.append(transaction(chance, columns))
        origin.do(statements[-1])
        told |= said(write(target, *origin.blocks(), allow_destructive_ddl=True))
    assert any(told.values()) or same(origin, target, ", ".join(["id", *columns])), statements
