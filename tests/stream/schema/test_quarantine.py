"""Tables in quarantine, from the log to what lanes give to sinks, with a real log and a real state store. What a
source, Spark and destinations add is shown by tests/service/schema/test_schema_changes.py."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.support.changes import changes, column, structure
from tests.support.seed import WHOLE, dice
from tidemill.capture.requeue import Requeuer
from tidemill.capture.snapshot import ChunkAdopter
from tidemill.config.spec.ddl import Ddl
from tidemill.contracts.schema_change_store import ChangeStatus, Decision
from tidemill.log import LogConfig, LogReader, LogWriter, acknowledge
from tidemill.model.barrier import Barrier
from tidemill.model.block import Block, Op
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.model.table import Table
from tidemill.service.schema.barriers import policy_of_changes
from tidemill.state import open_store
from tidemill.stream.batch.plan import Lane, Plan
from tidemill.stream.lane.deliver import _Share
from tidemill.stream.schema.barrier import BarrierSettings, SchemaBarrier

QUARANTINE = {"policies": [{"tables": ["public.items"], "action": "quarantine"}]}
ID = column("id", "integer", pa.int32(), nullable=False)
COLUMNS = [column(f"c{number}", "text", pa.string()) for number in range(20)]
LANES = 2


def items(columns: int, *, version: int = 0) -> Table:
    """The table with so many columns beside its key."""
    return structure("items", ID, *COLUMNS[:columns], version=version or columns)


OTHERS = structure("others", ID, COLUMNS[0])


class Mill:
    """Capture's log, and groups of sinks that deliver it; an event is known by its `serial`, the number that its row
    has. Every object may be thrown away and made anew: what must be remembered is on disk."""

    writer: LogWriter

    def __init__(self, directory: Path, groups: tuple[str, ...] = ("mill",), **ddl: Any) -> None:
        self.directory, self.ddl = directory, ddl or QUARANTINE
        self.reached = dict.fromkeys(groups, 0)
        self.got: dict[str, list[tuple[str, int]]] = {group: [] for group in groups}
        self.sent: list[tuple[str, int]] = []
        self.stop = threading.Event()
        self.state = open_store(str(directory / "state.sqlite"))
        self.store = self.state.schema_changes
        self.begin_capture()
        for group in groups:
            self.begin(group)

    def begin_capture(self, **log: Any) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
        uri = str(self.directory / "log")
        self.writer = LogWriter.open(uri, LogConfig.model_validate({"fsync": False, "segment_bytes": 2000, **log}))
        self.log = LogReader(uri)
        self.requeuer = Requeuer(self.writer, LogReader(uri), self.store, "mill", self.stop)

    def begin(self, group: str = "mill") -> None:
        settings = BarrierSettings("mill", "shop", group, [], policy_of_changes(Ddl.model_validate(self.ddl)))
        self.barriers = getattr(self, "barriers", {}) | {
            group: SchemaBarrier(self.store, self.log, settings, self.stop)
        }

    def append(self, *tables: Table, barrier: Barrier = Barrier.NONE, op: Op = Op.INSERT) -> None:
        """One transaction, with a row of each table."""
        blocks, first = list[Block](), self.writer.tail.offset
        for number, table in enumerate(tables):
            serial = len(self.sent)
            self.sent.append((table.name, serial))
            row = None if op is Op.TRUNCATE else {c.name: str(serial) for c in table.columns} | {"id": serial}
            blocks.append(changes(table, (op, None, row), first=number, position=f"{first}."))
        through = Position(f"0/{first + len(tables):X}")
        self.writer.append(Committed(tuple(blocks), len(tables), ((len(tables), through),), barrier))

    def requeue(self) -> None:
        self.requeuer._next = 0.0
        self.requeuer.turn()

    def deliver(self, group: str = "mill", *, events: int = 1 << 30) -> None:
        """The next batch, over all lanes."""
        start, barrier = self.reached[group], self.barriers[group]
        end = self.log.plan(start, max_events=events, max_bytes=1 << 30)
        if end == start:
            return
        assert barrier.cross(start, end)
        plan = Plan("mill", "shop", "", group, "", (), **barrier.seen)
        shares = [
            _Share(self.log, Lane(start, end, lane, LANES, "hash"), Plan.from_json(plan.to_json()).quarantines)
            for lane in range(LANES)
        ]
        rows = [row for share in shares for block in share.blocks() for row in _rows(block)]
        self.got[group] += [(table, serial) for _, table, serial in sorted(rows)]
        self.reached[group] = end

    def deliver_all(self) -> None:
        for group in self.reached:
            while self.reached[group] < self.log.tail().offset:
                self.deliver(group)

    def of(self, table: str, group: str = "mill") -> list[int]:
        return [serial for name, serial in self.got[group] if name == table]

    def decide(self, number: int, decision: Decision = Decision.APPROVED) -> None:
        self.store.decide("mill", number, decision, "ann", "", "2026-01-31")

    def decide_all(self) -> None:
        for each in self.store.quarantines("mill"):
            self.decide(each.number)

    def settle(self) -> None:
        """Until nothing waits any more."""
        while True:
            self.deliver_all()
            self.decide_all()
            self.requeue()
            waiting = any(each.is_open for each in self.store.quarantines("mill"))
            if not waiting and all(at == self.log.tail().offset for at in self.reached.values()):
                return

    def statuses(self) -> list[ChangeStatus]:
        return [each.status for each in reversed(self.store.changes("mill"))]

    def close(self) -> None:
        self.writer.close()
        self.state.close()


def _rows(block: Block) -> Iterator[tuple[int, str, int]]:
    """Offset, table and serial of each; the serial of a TRUNCATE is -1."""
    after = block.struct("after")
    serials = after["id"].to_pylist() if after is not None else [-1] * block.rows
    yield from zip(block.offsets().tolist(), [block.table.name] * block.rows, serials, strict=True)


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[Mill]:
    made = Mill(tmp_path)
    yield made
    made.close()


def test_a_table_waits_at_its_change_while_others_go_on_and_comes_in_order_when_it_is_approved(mill: Mill) -> None:
    mill.append(items(1), OTHERS)
    mill.append(items(2), OTHERS, barrier=Barrier.SCHEMA_CHANGE)
    mill.append(items(2), OTHERS)
    mill.deliver_all()
    mill.requeue()
    assert (mill.of("items"), mill.of("others")) == ([0], [1, 3, 5])
    assert mill.statuses() == [ChangeStatus.QUARANTINED]
    mill.decide(1)
    mill.append(OTHERS)
    mill.requeue()
    mill.append(items(2))  # after the end: it need not wait
    mill.deliver_all()
    assert (mill.of("items"), mill.of("others")) == ([0, 2, 4, 7], [1, 3, 5, 6])
    assert mill.statuses() == [ChangeStatus.APPROVED]  # there is no sink that could say more
    (done,) = mill.store.quarantines("mill")
    assert (done.first, done.ended, done.lost_at) == (2, 9, "")
    mill.begin()  # a checkpoint that was moved back: the same batches again
    mill.reached["mill"], again = 0, len(mill.got["mill"])
    mill.deliver_all()
    assert [each[1] for each in mill.got["mill"][again:] if each[0] == "items"] == [0, 2, 4, 7]


def test_a_change_that_comes_while_the_table_waits_is_asked_about_when_its_rows_come(mill: Mill) -> None:
    mill.append(items(1))
    for columns in (2, 3):
        mill.append(items(columns), barrier=Barrier.SCHEMA_CHANGE)
    mill.append(items(3), barrier=Barrier.TRUNCATE, op=Op.TRUNCATE)
    mill.append(items(3))
    mill.deliver_all()
    assert (mill.of("items"), mill.statuses()) == ([0], [ChangeStatus.QUARANTINED])
    mill.decide(1)
    mill.requeue()
    mill.append(items(3))
    mill.deliver_all()
    assert (mill.of("items"), mill.statuses()) == ([0, 1], [ChangeStatus.APPROVED, ChangeStatus.QUARANTINED])
    mill.decide(2, Decision.REJECTED)
    mill.begin()
    mill.requeue()
    mill.deliver_all()
    assert mill.of("items") == [0, 1, 2, -1, 4, 5]
    assert mill.log.barrier_at(mill.log.tail().offset - 4) & Barrier.SCHEMA_CHANGE


def test_the_log_is_kept_from_what_waits_and_counts_it(mill: Mill) -> None:
    mill.append(items(1), OTHERS)
    mill.append(items(2), OTHERS)
    for _ in range(10):
        mill.append(OTHERS)
    mill.deliver_all()
    acknowledge(str(mill.directory / "log"), mill.writer.tail)
    mill.requeue()
    waiting = sum(entry.bytes for entry in mill.log.entries(2))
    assert (mill.writer.kept_bytes(), mill.requeuer.tables) == (waiting, {"public.items": 2})
    mill.begin_capture()  # a new process counts the same
    mill.requeue()
    assert mill.writer.kept_bytes() == waiting
    mill.decide(1)
    mill.requeue()
    mill.requeue()
    assert (mill.writer.kept_bytes(), mill.requeuer.tables) == (mill.writer.undelivered_bytes(), {})


def test_rows_that_went_with_their_log_are_named_and_the_table_goes_on(
    mill: Mill, caplog: pytest.LogCaptureFixture
) -> None:
    mill.append(items(1), OTHERS)
    mill.append(items(2), OTHERS)
    mill.deliver_all()
    mill.writer.close()
    tail = mill.log.tail()
    for path in (mill.directory / "log").iterdir():
        if path.is_file():
            path.unlink()
    uri = str(mill.directory / "log")
    mill.writer = LogWriter.open(uri, LogConfig.model_validate({"fsync": False}), base=tail)
    mill.log = LogReader(uri)
    mill.begin()
    mill.requeuer = Requeuer(mill.writer, LogReader(uri), mill.store, "mill", mill.stop)
    mill.decide(1)
    mill.requeue()
    (done,) = mill.store.quarantines("mill")
    assert (bool(done.lost_at), done.is_open) == (True, False)
    assert "ddl.quarantined_rows_lost" in caplog.messages
    mill.append(items(2))
    mill.deliver_all()
    assert mill.of("items") == [0, 4]


def test_a_chunk_of_a_snapshot_is_compared_with_what_came_and_not_with_what_comes_again(mill: Mill) -> None:
    for columns in (1, 2, 2):
        mill.append(items(columns), OTHERS)
    mill.deliver_all()
    mill.decide(1)
    mill.requeue()
    nobody = cast(Any, None)
    adopter: Any = ChunkAdopter(nobody, mill.writer, mill.log, nobody, nobody, "mill")
    window = adopter._events(3, "public.items")
    assert [int(block.offsets()[0]) for block in window] == [2, 4]  # the append that holds the place counts


def test_a_state_store_that_was_lost_does_not_take_what_waits_along_in_silence(
    mill: Mill, caplog: pytest.LogCaptureFixture
) -> None:
    for columns in (1, 2):
        mill.append(items(columns), OTHERS)
    mill.deliver_all()
    mill.requeue()
    mill.state.forget("mill")
    mill.begin_capture()
    for _ in range(2):
        mill.requeue()
    assert [each.message for each in caplog.records if "forgotten" in each.message] == ["ddl.quarantine_forgotten"]


@pytest.mark.parametrize("number", range(6 if WHOLE else 3))
def test_whatever_happens_each_group_gets_each_tables_events_once_and_in_order(tmp_path: Path, number: int) -> None:
    chance = dice(f"quarantine {number}")
    mill = Mill(tmp_path, ("mill", "mill:slow"))
    columns = 1
    mill.append(items(1), OTHERS)
    for _ in range(120):
        match chance.choice(
            ["append", "append", "append", "change", "deliver", "deliver", "decide", "requeue", "again"]
        ):
            case "append":
                mill.append(*chance.sample([items(columns), OTHERS], chance.randint(1, 2)))
            case "change":
                columns = columns % 19 + 1
                told = chance.choice([Barrier.SCHEMA_CHANGE, Barrier.NONE])
                mill.append(items(columns, version=len(mill.sent) + 2), barrier=told)
            case "deliver":
                mill.deliver(chance.choice(["mill", "mill", "mill:slow"]), events=chance.choice([1, 3, 1 << 30]))
            case "decide":
                mill.decide_all()
            case "requeue":
                mill.requeue()
            case "again":
                mill.begin_capture()
                mill.begin(chance.choice(["mill", "mill:slow"]))
    mill.settle()
    for group in mill.got:
        for table in ("items", "others"):
            assert mill.of(table, group) == [serial for name, serial in mill.sent if name == table], (group, table)
    mill.close()


POINTS = [
    "ddl.recorded", "ddl.quarantined", "log.staged", "requeue.staged", "log.adopt_linked", "log.adopted",
    "log.staging_unsealed", "requeue.appended", "requeue.noted", "requeue.ended", "ddl.kept",
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS if WHOLE else dice("quarantine").sample(POINTS, 3))
def test_a_kill_at_any_step_loses_no_row_and_repeats_none_beyond_the_batch(tmp_path: Path, point: str) -> None:
    mill = Mill(tmp_path)
    mill.append(items(1), OTHERS)
    mill.append(items(2), OTHERS, barrier=Barrier.SCHEMA_CHANGE)
    mill.append(items(2))
    mill.deliver(events=2)
    mill.close()
    program = "from tests.stream.schema.test_quarantine import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env={**os.environ, "TIDEMILL_CRASH_AT": point}, timeout=120
    )
    assert done.returncode == -9
    left = Mill(tmp_path)
    left.reached["mill"], left.sent, left.got["mill"] = 2, mill.sent, mill.got["mill"]  # the last checkpoint
    left.settle()
    left.append(items(2))
    left.deliver_all()
    assert (left.of("items"), left.of("others")) == ([0, 2, 4, 5], [1, 3])
    left.close()


def main() -> None:
    """Capture and driver in one process that is killed."""
    mill = Mill(Path(sys.argv[1]))
    mill.reached["mill"] = 2
    mill.settle()
