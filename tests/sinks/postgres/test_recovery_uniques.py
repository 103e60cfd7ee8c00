"""A recovery at a target that has unique values besides its key: a row that the source lost, or changed, in the gap
still has a value that another row has by now. The copy brings both, in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.sinks.state.support import DELETE, INSERT, UPDATE, Destination, T, postgres_destination, row
from tests.support.changes import Change, changes
from tests.support.origin import session
from tests.support.seed import dice
from tidemill.errors import Poisoned
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.block import Op

SINCE = 10
READ = Op.READ
CONSTRAINT = "ALTER TABLE t ADD CONSTRAINT one UNIQUE (name) DEFERRABLE INITIALLY DEFERRED"
# Of each the second row of a pair cannot come while the first one is there.
UNIQUES = {
    "deferred constraint": CONSTRAINT,
    "constraint": "ALTER TABLE t ADD CONSTRAINT one UNIQUE (name)",
    "index": "CREATE UNIQUE INDEX one ON t (name)",
    "expression": "CREATE UNIQUE INDEX one ON t (lower(name))",
    "partial": "CREATE UNIQUE INDEX one ON t (name) WHERE note <> ''",
    "composite": "CREATE UNIQUE INDEX one ON t (note, name)",
    "several": "CREATE UNIQUE INDEX one ON t (name); CREATE UNIQUE INDEX two ON t (name, note)",
}


@pytest.fixture
def there(postgres18: Postgres) -> Iterator[tuple[Destination, psycopg.Connection[Any]]]:
    with postgres18.database("recovering_uniques") as dsn, session(dsn) as db:
        made = postgres_destination(dsn, db)
        made.write(changes(T, *[(INSERT, None, row(n, f"value {n}")) for n in range(1, 5)]))
        yield made, db
        made.close()


There = tuple[Destination, psycopg.Connection[Any]]


def recover(there: Destination, *events: Change, **options: Any) -> None:
    sink = there.sink()
    sink.begin_recovery([T], "orders", SINCE)
    for number, event in enumerate(events):  # a delivery each, so that nothing is there together
        block = changes(T, event, first=SINCE + number, **options)
        there.write(block, start=SINCE + number, sink=sink)
    sink.end_recovery(T, "orders", SINCE, remove=True)


@pytest.mark.parametrize("unique", UNIQUES.values(), ids=UNIQUES)
def test_a_value_of_a_row_that_was_lost_in_the_gap_is_taken_by_another(there: There, unique: str) -> None:
    sinks, db = there
    db.execute(unique)
    recover(sinks, *[(READ, None, row(n, value)) for n, value in ((1, "value 1"), (7, "value 3"), (8, "value 4"))])
    assert sinks.rows() == [(1, "value 1", "n"), (7, "value 3", "n"), (8, "value 4", "n")]


@pytest.mark.parametrize("unique", UNIQUES.values(), ids=UNIQUES)
def test_rows_that_exchanged_their_values_in_the_gap_come_in_any_order(there: There, unique: str) -> None:
    """Row 1 takes the value of row 2, whose own read is still to come."""
    sinks, db = there
    db.execute(unique)
    recover(sinks, *[(READ, None, row(n, f"value {n % 4 + 1}")) for n in range(1, 5)])
    assert sinks.rows() == [(n, f"value {n % 4 + 1}", "n") for n in range(1, 5)]


def test_a_row_that_was_written_since_keeps_its_value_and_the_other_is_refused(there: There) -> None:
    """The source never had both: what is written since is never removed for another row."""
    sinks, db = there
    db.execute("CREATE UNIQUE INDEX one ON t (name)")
    with pytest.raises(Poisoned, match="refus"):
        recover(sinks, (READ, None, row(1, "value 1")), (READ, None, row(7, "value 1")))
    assert (1, "value 1", "n") in sinks.rows()


def test_without_a_recovery_no_row_gives_way(there: There) -> None:
    sinks, db = there
    db.execute("CREATE UNIQUE INDEX one ON t (name)")
    with pytest.raises(Poisoned, match="refus"):
        sinks.write(changes(T, (INSERT, None, row(7, "value 1")), first=SINCE), start=SINCE)
    assert len(sinks.rows()) == 4


def test_a_key_that_moves_and_an_update_with_holes_take_values_of_lost_rows(there: There) -> None:
    sinks, db = there
    db.execute("CREATE UNIQUE INDEX one ON t (name)")
    sink = sinks.sink()
    sink.begin_recovery([T], "orders", SINCE)
    for number, event in enumerate(
        ((UPDATE, {"id": 1}, row(9, "value 2", None)), (UPDATE, None, row(3, "value 4", None)))
    ):
        block = changes(T, event, first=SINCE + number, unchanged={0: ["note"]})
        sinks.write(block, start=SINCE + number, sink=sink)
    sink.end_recovery(T, "orders", SINCE, remove=True)
    assert sinks.rows() == [(3, "value 4", "n"), (9, "value 2", "n")]


def test_a_unique_value_of_a_column_that_is_not_ours_is_left_alone(there: There) -> None:
    sinks, db = there
    db.execute("ALTER TABLE t ADD COLUMN mine int GENERATED ALWAYS AS IDENTITY, ADD CONSTRAINT one UNIQUE (mine, name)")
    recover(sinks, *[(READ, None, row(n, f"value {n}")) for n in (2, 4)])
    assert sinks.rows() == [(2, "value 2", "n"), (4, "value 4", "n")]


@pytest.mark.parametrize("unique", [CONSTRAINT, UNIQUES["expression"]], ids=["constraint", "expression"])
def test_random_gaps_end_as_the_source(there: There, unique: str) -> None:
    """The oracle is a table with the same rule. What comes since the recovery began: reads of all rows, each at a
    moment of its own, and the changes beside them."""
    sinks, db = there
    db.execute(unique)
    for run in range(12):
        chance = dice("recovery uniques", run, unique)
        db.execute("TRUNCATE t")
        source = {n: f"Value {n}" for n in range(1, 6)}
        begin = 1000 * (run + 1)
        sinks.write(changes(T, *[(INSERT, None, row(n, v)) for n, v in source.items()], first=begin), start=begin)
        sink = sinks.sink()
        sink.begin_recovery([T], "orders", since := begin + 100)
        for _ in range(chance.randrange(8)):
            _change(chance, source)
        events: list[Change] = []
        left = list(range(1, 10))
        chance.shuffle(left)
        written: set[int] = set()
        while left:
            if chance.random() < 0.4:
                event = _change(chance, source)
                written |= {change["id"] for change in (event[1], event[2]) if change is not None}
                events.append(event)
            elif (key := left.pop()) in source and key not in written:
                events.append((READ, None, row(key, source[key])))
        for number, event in enumerate(events):
            sinks.write(changes(T, event, first=since + number), start=since + number, sink=sink)
        sink.end_recovery(T, "orders", since, remove=True)
        found = [(n, v) for n, v, _ in sinks.rows()]
        assert found == sorted(source.items()), f"run {run}: {events}"


def _change(chance: random.Random, source: dict[int, str]) -> Change:
    """One statement that the source takes: no value twice."""
    free_keys = [n for n in range(1, 10) if n not in source]
    value = chance.choice([v for v in (f"Value {n}" for n in range(1, 13)) if v not in source.values()])
    if not source or (free_keys and chance.random() < 0.4):
        key = chance.choice(free_keys)
        source[key] = value
        return INSERT, None, row(key, value)
    key = chance.choice(list(source))
    if chance.random() < 0.5:
        del source[key]
        return DELETE, row(key), None
    source[key] = value
    return UPDATE, None, row(key, value)
