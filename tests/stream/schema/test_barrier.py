"""The barrier of schema changes with a real log, a real state store and a real PostgreSQL sink; batches are delivered
here, in order, as the loop does. What Spark adds is shown by tests/service/schema/test_schema_changes.py."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.support.changes import changes, column, structure
from tests.support.seed import WHOLE, dice
from tidemill.config.spec.ddl import Ddl
from tidemill.contracts.schema_change_store import ChangeStatus, Decision, StoredChange
from tidemill.errors import Poisoned, SchemaChangeHalted, SchemaChangeNotApplied
from tidemill.lab.servers.postgres import Postgres
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.barrier import Barrier
from tidemill.model.block import Op
from tidemill.model.change import Committed
from tidemill.model.delivery import Delivery
from tidemill.model.position import Position
from tidemill.model.table import Column, Table
from tidemill.service.schema.barriers import policy_of_changes
from tidemill.sinks.postgres import PostgresSink, PostgresSinkConfig
from tidemill.state import open_store
from tidemill.stream.lane.views import seen_by
from tidemill.stream.schema.barrier import BarrierSettings, SchemaBarrier

_names = itertools.count(1)
INSERT, UPDATE = Op.INSERT, Op.UPDATE


def text(name: str) -> Column:
    return column(name, "text", pa.string())


ID, NAME, NOTE = column("id", "integer", pa.int32(), nullable=False), text("name"), text("note")
OLD = structure("items", ID, NAME)
WIDER = structure("items", ID, NAME, NOTE, version=2)
PAIR = ("copy", "second")
RENAMED = structure("items", ID, text("title"), NOTE, version=3, renamed=[("name", "title")])


class Bench:
    """A log, its state, and one sink, or a second one beside it; `deliver` crosses the barrier and writes what is left
    of the log, in one batch per append."""

    sinks: tuple[PostgresSink, ...] = ()

    def __init__(self, directory: Path, dsn: str, **ddl: Any) -> None:
        self.dsn = dsn
        self.writer = LogWriter.open(str(directory / "log"), LogConfig.model_validate({"fsync": False}))
        self.log = LogReader(str(directory / "log"))
        self.state = open_store(str(directory / "state.sqlite"))
        self.store = self.state.schema_changes
        self.stopping, self.waited = threading.Event(), list[StoredChange | None]()
        self.begin(**ddl)

    def begin(self, *names: str, sink: dict[str, Any] | None = None, **ddl: Any) -> None:
        """A new start of the stream, with these settings."""
        self.close_sinks()
        configs = [
            {"id": name, "dsn": self.dsn, "table": f"{name}.items", **(sink or {})} for name in names or ("copy",)
        ]
        settings = BarrierSettings(
            "mill", "shop", "mill", [("postgres", each) for each in configs], policy_of_changes(Ddl.model_validate(ddl))
        )
        self.barrier = SchemaBarrier(self.store, self.log, settings, self.stopping, self.waited.append)
        self.sinks = tuple(PostgresSink(PostgresSinkConfig.model_validate(each)) for each in configs)

    def append(self, table: Table, *rows: tuple[Op, Any, Any], barrier: bool = False) -> None:
        kind = Barrier.SCHEMA_CHANGE if barrier else Barrier.NONE
        place = f"0/{self.writer.tail.offset + 1:X}."
        block, last = changes(table, *rows, position=place), Position(f"{place}{len(rows) - 1:X}")
        self.writer.append(Committed((block,), len(rows), ((len(rows), last),), kind))

    def insert(self, table: Table, *values: Any, barrier: bool = False) -> None:
        row = dict(zip([c.name for c in table.columns], values, strict=True))
        self.append(table, (INSERT, None, row), barrier=barrier)

    def deliver(self, start: int = 0) -> bool:
        """False if it was asked to stop at the barrier."""
        reached = self.db("SELECT coalesce(max(upto), 0) FROM reached")[0][0] if start == 0 else start
        for entry in list(self.log.entries(reached)):
            if not self.barrier.cross(entry.base, entry.end):
                return False
            blocks = [self.log.read(ref) for ref in self.log.refs(entry.base, entry.end)]
            delivery = Delivery("mill", "shop", entry.base, entry.end, 0, 1, lambda blocks=blocks: iter(blocks))  # type: ignore[misc]
            for sink in self.sinks:
                sink.write(seen_by(delivery, self.barrier.views.get(sink.config.id, {})))
            self.db(f"INSERT INTO reached VALUES ({entry.end})")
        return True

    def db(self, statement: str) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as db:
            found = db.execute(statement.encode())
            return found.fetchall() if found.description else []

    def rows(self, schema: str = "copy") -> list[Any]:
        return self.db(f"SELECT * FROM {schema}.items ORDER BY id")

    def columns(self) -> list[str]:
        found = self.db(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'copy' ORDER BY ordinal_position"
        )
        return [name for (name,) in found]

    def statuses(self) -> list[ChangeStatus]:
        return [each.status for each in reversed(self.store.changes("mill"))]

    def decide(self, decision: Decision, number: int = 1) -> None:
        self.store.decide("mill", number, decision, "ann", "", "2026-01-31")

    def close_sinks(self) -> None:
        for sink in self.sinks:
            sink.close()

    def close(self) -> None:
        self.close_sinks()
        self.writer.close()
        self.state.close()


@pytest.fixture
def bench(tmp_path: Path, postgres18: Postgres) -> Iterator[Bench]:
    with postgres18.database(f"barrier_{next(_names)}") as dsn:
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute("CREATE TABLE reached (upto int)")
        made = Bench(tmp_path, dsn)
        yield made
        made.close()


def test_a_change_is_made_once_before_the_rows_whether_the_log_marks_it_or_not(bench: Bench) -> None:
    bench.insert(OLD, 1, "a")
    bench.insert(WIDER, 2, "b", "n")  # not marked: the table changed while capture was down
    bench.insert(WIDER, 3, "c", "n")
    bench.insert(RENAMED, 4, "d", "n", barrier=True)
    bench.deliver()
    assert bench.rows() == [(1, "a", None), (2, "b", "n"), (3, "c", "n"), (4, "d", "n")]
    assert bench.columns() == ["id", "title", "note"]
    first, second = reversed(bench.store.changes("mill"))
    assert (first.kinds, first.status, first.actor, first.offset) == (("add_column",), "applied", "policy", 1)
    assert (second.kinds, second.offset) == (("rename_column",), 3)
    assert [first.position, second.position] == ["0/2.0", "0/4.0"]  # of the rows that have it, not of those before
    assert first.outcomes["copy"].statements[0] == 'ALTER TABLE "copy"."items" ADD COLUMN "note" text'


def test_what_was_known_survives_a_restart_and_rows_that_come_again_are_no_change(bench: Bench) -> None:
    bench.insert(OLD, 1, "a")
    bench.insert(WIDER, 2, "b", "n")
    bench.deliver()
    bench.begin()
    for start in (0, 1):  # an operator moved the checkpoint back
        assert bench.barrier.cross(start, 2)
    assert (bench.statuses(), bench.columns()) == ([ChangeStatus.APPLIED], ["id", "name", "note"])


def test_a_halted_change_stops_until_it_is_approved_and_nothing_of_it_was_made(bench: Bench) -> None:
    bench.begin(policies=[{"tables": ["public.items"], "action": "halt"}])  # its first row is no reason
    bench.insert(OLD, 1, "a")
    bench.insert(WIDER, 2, "b", "n")
    for _ in range(2):
        with pytest.raises(SchemaChangeHalted, match=r"1 of public.items \(add column\): the policy") as halted:
            bench.deliver()
    assert "tidemill ddl approve" in halted.value.fix
    assert (bench.rows(), bench.statuses()) == ([(1, "a")], [ChangeStatus.PENDING])
    bench.decide(Decision.APPROVED)
    bench.deliver()
    assert (bench.rows(), bench.statuses()) == ([(1, "a", None), (2, "b", "n")], [ChangeStatus.APPLIED])


def test_the_gate_waits_for_a_decision_and_lets_go_when_the_pipeline_stops(bench: Bench) -> None:
    bench.begin(gate=True)
    bench.insert(OLD, 1, "a")
    bench.insert(WIDER, 2, "b", "n")
    bench.stopping.set()
    assert not bench.deliver()
    waiting, over = bench.waited
    assert waiting is not None
    assert waiting.outcomes["copy"].statements[0] == 'ALTER TABLE "copy"."items" ADD COLUMN "note" text'
    assert over is None
    bench.stopping.clear()
    threading.Timer(0.5, bench.decide, [Decision.APPROVED]).start()
    assert bench.deliver()
    assert (bench.rows()[-1], bench.statuses()) == ((2, "b", "n"), [ChangeStatus.APPLIED])


def test_a_rejected_change_stops_or_is_ignored_and_a_new_key_always_stops(bench: Bench) -> None:
    bench.begin(gate=True)
    bench.insert(OLD, 1, "a")
    bench.insert(WIDER, 2, "b", "n")
    bench.stopping.set()
    bench.deliver()
    bench.stopping.clear()
    bench.decide(Decision.REJECTED)
    with pytest.raises(SchemaChangeHalted, match="ann rejected it") as halted:
        bench.deliver()
    assert "on_reject: ignore" in halted.value.fix
    assert "ddl approve" not in halted.value.fix, "it was decided"
    bench.begin(gate=True, on_reject="ignore")
    bench.deliver()
    assert (bench.rows(), bench.statuses()) == ([(1, "a"), (2, "b")], [ChangeStatus.IGNORED])
    bench.insert(structure("items", ID, NAME, NOTE, key=("id", "name"), version=3), 3, "c", "n")
    bench.stopping.set()
    bench.deliver()
    bench.stopping.clear()
    bench.decide(Decision.REJECTED, 2)
    with pytest.raises(SchemaChangeHalted):
        bench.deliver()


def test_a_change_that_was_made_by_hand_is_not_made_again(bench: Bench) -> None:
    bench.begin(gate=True)
    bench.insert(OLD, 1, "a")
    bench.insert(WIDER, 2, "b", "n")
    bench.stopping.set()
    bench.deliver()
    bench.stopping.clear()
    bench.db("ALTER TABLE copy.items ADD note varchar(10)")
    bench.decide(Decision.MADE)
    bench.deliver()
    assert bench.rows() == [(1, "a", None), (2, "b", "n")]
    kind = "SELECT atttypmod FROM pg_attribute WHERE attrelid = 'copy.items'::regclass AND attname = 'note'"
    assert bench.db(kind) == [(14,)]
    (change,) = bench.store.changes("mill")
    assert change.outcomes["copy"].statements == (), "nothing was run"


def numbered(*names: str) -> tuple[Column, ...]:
    """Columns as a source has them that knows which is which: id, and others by the name that they had first."""
    numbers = {"name": "1.2", "note": "1.3"}
    return replace(ID, origin="1.1"), *(replace(text(now), origin=numbers[first]) for first, now in map(pair, names))


def pair(text: str) -> tuple[str, str]:
    first, _, now = text.partition(" as ")
    return first, now or first


@pytest.mark.parametrize(
    ("after", "by_hand"),
    [
        (("name as note", "note as name"), ("RENAME name TO x", "RENAME note TO name", "RENAME x TO note")),
        (("name as note",), ("DROP note", "RENAME name TO note")),
    ],
    ids=["exchanged", "replaced"],
)
def test_columns_that_were_moved_by_hand_are_not_moved_once_more(
    bench: Bench, after: tuple[str, ...], by_hand: tuple[str, ...]
) -> None:
    """Their names do not tell that it was done."""
    options = {"allow_destructive_ddl": True}
    bench.begin(gate=True, sink=options)
    bench.insert(structure("items", *numbered("name", "note")), 1, "a", "n")
    bench.insert(structure("items", *numbered(*after), version=2), 2, *"bc"[: len(after)])
    bench.stopping.set()
    bench.deliver()
    bench.stopping.clear()
    for statement in by_hand:
        bench.db(f"ALTER TABLE copy.items {statement}")
    bench.decide(Decision.MADE)
    bench.begin(gate=True, sink=options)
    bench.deliver()
    assert bench.db("SELECT id, note FROM copy.items ORDER BY id") == [(1, "a"), (2, "b")]
    (change,) = bench.store.changes("mill")
    assert (change.status, change.outcomes["copy"].statements) == (ChangeStatus.APPLIED, ())


@pytest.mark.parametrize(
    ("old", "new", "row"),
    [
        (OLD, structure("items", ID, text("title"), version=2, renamed=[("name", "title")]), (2, "b")),
        (
            structure("items", ID, column("name", "integer", pa.int32())),
            structure("items", ID, column("name", "bigint", pa.int64()), version=2),
            (2, 2**40),
        ),
    ],
    ids=["renamed", "widened"],
)
def test_what_was_said_to_be_made_by_hand_and_was_not_is_made_by_the_next_delivery(
    bench: Bench, old: Table, new: Table, row: tuple[int, Any]
) -> None:
    bench.begin(gate=True)
    bench.insert(old, 1, None)
    bench.insert(new, *row)
    bench.stopping.set()
    bench.deliver()
    bench.stopping.clear()
    bench.decide(Decision.MADE)
    bench.deliver()
    assert (bench.columns(), bench.rows()) == ([c.name for c in new.columns], [(1, None), row])


def test_ignored_changes_leave_the_table_as_it_was_and_later_ones_are_made_on_that(bench: Bench) -> None:
    kinds = ["add_column", "rename_column", "drop_column"]
    bench.begin(policies=[{"kinds": kinds, "action": "ignore"}], sink={"allow_destructive_ddl": True})
    bench.insert(OLD, 1, "a")
    bench.insert(WIDER, 2, "b", "n")
    bench.insert(RENAMED, 3, "c", "n")
    bench.deliver()
    assert (bench.columns(), bench.rows()) == (["id", "name"], [(1, "a"), (2, "b"), (3, "c")])
    without = structure("items", ID, NOTE, version=4)  # the column that was renamed is gone, the hidden one is not
    wider = structure("items", column("id", "bigint", pa.int64(), nullable=False), NOTE, version=5)
    bench.insert(without, 4, "n")
    bench.append(without, (UPDATE, None, {"id": 1, "note": "n"}))
    bench.insert(wider, 2**40, "n")
    bench.begin(policies=[{"kinds": kinds, "action": "ignore"}], sink={"allow_destructive_ddl": True})
    bench.deliver()
    assert bench.columns() == ["id", "name"]
    assert bench.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, None), (2**40, None)]
    assert bench.statuses() == [ChangeStatus.IGNORED] * 3 + [ChangeStatus.APPLIED]


def test_one_transaction_may_have_any_number_of_changes_that_are_ignored(bench: Bench) -> None:
    bench.begin(policies=[{"action": "ignore"}])
    bench.insert(OLD, 1, "a")
    tables = [structure("items", ID, NAME, *(text(f"c{n}") for n in range(count)), version=count + 1)
              for count in range(1, 40)]  # fmt: skip
    blocks = [
        changes(table, (INSERT, None, {c.name: "x" for c in table.columns} | {"id": number}), first=number - 2)
        for number, table in enumerate(tables, 2)
    ]
    places = ((len(blocks), Position("0/FF")),)
    bench.writer.append(Committed(tuple(blocks), len(blocks), places, Barrier.SCHEMA_CHANGE))
    bench.deliver()
    assert (bench.columns(), len(bench.rows())) == (["id", "name"], 40)


def test_a_value_that_does_not_fit_the_type_that_stayed_is_named(bench: Bench) -> None:
    bench.begin(policies=[{"kinds": ["change_type"], "action": "ignore"}])
    number = structure("items", ID, column("name", "integer", pa.int32()))
    larger = structure("items", ID, column("name", "bigint", pa.int64()), version=2)
    bench.insert(number, 1, 7)
    bench.insert(larger, 2, 8)
    bench.deliver()
    bench.insert(larger, 3, 2**40)
    with pytest.raises(Poisoned, match="event 2: column"):
        bench.deliver()
    assert bench.rows() == [(1, 7), (2, 8)]


def test_what_the_sink_refuses_stops_the_pipeline_unless_it_is_only_tried(bench: Bench) -> None:
    number = structure("items", ID, column("name", "integer", pa.int32()))
    day = structure("items", ID, column("name", "date", pa.date32()), version=2)
    bench.insert(number, 1, 7)
    bench.insert(day, 2, date(2026, 1, 31))
    for _ in range(2):
        with pytest.raises(SchemaChangeNotApplied, match="could not make schema change 1") as failed:
            bench.deliver()
    assert "allow_destructive_ddl" in failed.value.fix
    assert (bench.rows(), bench.statuses()) == ([(1, 7)], [ChangeStatus.FAILED])
    bench.begin(policies=[{"action": "try_evolve"}])
    with pytest.raises(Poisoned):  # a day is no number
        bench.deliver()
    assert bench.statuses() == [ChangeStatus.IGNORED]
    kept = bench.store.change("mill", 1)
    assert kept is not None
    assert "became date at the source" in kept.outcomes["copy"].error


def test_of_a_change_that_a_sink_refuses_in_part_the_rest_is_made_before_the_next_change(bench: Bench) -> None:
    """Both stand in one transaction, so that no lane comes between them."""
    bench.begin(policies=[{"kinds": ["change_type"], "action": "try_evolve"}])
    day = column("n", "date", pa.date32())
    bench.insert(structure("items", ID, column("n", "integer", pa.int32()), NOTE), 1, 7, "kept")
    second = structure("items", ID, day, text("label"), version=2, renamed=[("note", "label")])
    third = structure("items", ID, day, text("label"), text("extra"), version=3)
    blocks = (
        changes(second, (INSERT, None, {"id": 2, "n": None, "label": "b"})),
        changes(third, (INSERT, None, {"id": 3, "n": None, "label": "c", "extra": "e"}), first=1),
    )
    bench.writer.append(Committed(blocks, 2, ((2, Position("0/FF")),), Barrier.SCHEMA_CHANGE))
    bench.deliver()
    assert bench.columns() == ["id", "n", "label", "extra"]
    assert bench.rows() == [(1, 7, "kept", None), (2, None, "b", None), (3, None, "c", "e")]
    first, _ = reversed(bench.store.changes("mill"))
    made = first.outcomes["copy"]
    assert (made.status, len(made.statements)) == (ChangeStatus.APPLIED, 1)
    assert "became date at the source" in made.error


def test_a_sink_that_is_away_at_a_change_is_waited_for_and_then_stops_the_pipeline(bench: Bench) -> None:
    bench.insert(OLD, 1, "a")
    bench.deliver()
    bench.insert(WIDER, 2, "b", "n")
    bench.begin(flush_timeout_seconds=1, sink={"dsn": "postgresql://127.0.0.1:1/nobody"})
    with pytest.raises(SchemaChangeNotApplied, match='sink "copy" could not make'):
        bench.barrier.cross(1, 2)
    assert bench.statuses() == [ChangeStatus.FAILED]
    bench.begin()
    bench.deliver()
    assert (bench.rows()[-1], bench.statuses()) == ((2, "b", "n"), [ChangeStatus.APPLIED])


def test_a_batch_is_overdue_only_right_before_a_change(bench: Bench) -> None:
    bench.begin(flush_timeout_seconds=5)
    bench.insert(OLD, 1, "a")
    bench.insert(OLD, 2, "b")
    bench.insert(WIDER, 3, "c", "n", barrier=True)
    assert bench.barrier.overdue(2, 6.0)
    assert not bench.barrier.overdue(2, 4.0)
    assert not bench.barrier.overdue(1, 6.0)


STEPS = [
    "state.before_commit", "ddl.recorded", "ddl.decided", "ddl.applied_at_sink", "ddl.noted_of_sink",
    "ddl.applied_at_sink:2", "ddl.applied", "state.before_commit:2", "ddl.kept",
]  # fmt: skip
"""Of a change that two sinks make. The first commit is that of its record, the second that of what the sinks have."""

GATED = ["ddl.planned", "ddl.decided", "ddl.noted_of_sink"]


def kills() -> list[tuple[str, bool]]:
    chance = dice("schema barrier")
    steps, gated = (STEPS, GATED) if WHOLE else (chance.sample(STEPS, 2), chance.sample(GATED, 1))
    return [*((point, False) for point in steps), *((point, True) for point in gated)]


@pytest.mark.parametrize(("point", "gate"), kills())
def test_a_kill_around_any_step_leaves_a_change_that_the_next_start_finishes(
    bench: Bench, point: str, gate: bool
) -> None:
    bench.begin(*PAIR, gate=gate)
    bench.insert(OLD, 1, "a")
    bench.deliver()
    bench.insert(WIDER, 2, "b", "n", barrier=True)
    if gate and point != "ddl.planned":  # it waited, and an operator decided
        bench.stopping.set()
        assert not bench.deliver()
        bench.stopping.clear()
        bench.decide(Decision.APPROVED)
    bench.writer.close()
    program = "from tests.stream.schema.test_barrier import main; main()"
    directory = str(Path(bench.log.label).parent)
    done = subprocess.run(
        [sys.executable, "-c", program, directory, bench.dsn, str(gate)],
        env={**os.environ, "TIDEMILL_CRASH_AT": point},
        timeout=120,
    )
    assert done.returncode == -9
    if point == "ddl.planned":
        (waiting,) = bench.store.changes("mill")
        assert (waiting.status, set(waiting.outcomes)) == (ChangeStatus.PENDING, set(PAIR))
        bench.decide(Decision.APPROVED)
    bench.begin(*PAIR, gate=gate)
    assert bench.deliver()
    assert bench.rows("copy") == bench.rows("second") == [(1, "a", None), (2, "b", "n")]
    (change,) = bench.store.changes("mill")
    assert {name: outcome.status for name, outcome in change.outcomes.items()} == dict.fromkeys(PAIR, "applied")
    ran = {name: outcome.statements[:1] for name, outcome in change.outcomes.items()}
    assert ran == {name: (f'ALTER TABLE "{name}"."items" ADD COLUMN "note" text',) for name in PAIR}
    assert change.actor == ("ann" if gate else "policy")


def main() -> None:
    """A driver that is killed."""
    directory, dsn, gate = sys.argv[1:]
    made = Bench.__new__(Bench)
    made.dsn, made.log = dsn, LogReader(f"{directory}/log")
    made.state = open_store(f"{directory}/state.sqlite")
    made.store, made.stopping, made.waited = made.state.schema_changes, threading.Event(), []
    made.begin(*PAIR, gate=gate == "True")
    made.deliver()
