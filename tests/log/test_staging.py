"""Segments that others wrote beside the log: adopted in one append, wholly or not at all, and never twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from tests.log.conftest import Bucket, OpenStore
from tests.support.blocks import make_block, make_change, make_table
from tidemill.errors import BadAppend, LogError, StagingLost, is_retryable
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.log.delivered import trim
from tidemill.log.entry import Constants
from tidemill.log.objects import ObjectStore
from tidemill.log.staging import Manifest, Staged, Staging, ids
from tidemill.log.store import Store, open_store
from tidemill.model.barrier import Barrier
from tidemill.model.position import Position
from tidemill.telemetry import failpoints

CONFIG = LogConfig()
THROUGH = Position("0/900")


def stage(log: str | Store, id: str = "snap1") -> Manifest:
    """Three parts of two tables, five, four and two events, as three tasks would write them."""
    staging = Staging(log, id)
    items = make_table("items")
    parts = [
        staging.write("0", [make_block(3), make_block(2, table=items, offsets=[3, 4])]),
        staging.write("1", [make_block(4, first_id=3)]),
        staging.write("2", [make_block(2, table=items, first_id=2)]),
    ]
    return staging.seal(parts)


def events(reader: LogReader) -> list[tuple[int, str, int]]:
    """(offset, table, id) of everything in the log, by offset."""
    found = []
    for ref in reader.refs(reader.head(), reader.tail().offset):
        block = reader.read(ref)
        ids = block.batch.column("after").field("id").to_pylist()
        found += [(int(o), block.table.name, i) for o, i in zip(block.offsets().tolist(), ids, strict=True)]
    return sorted(found)


STAGED = [("orders", 0), ("orders", 1), ("orders", 2), ("items", 0), ("items", 1),
          ("orders", 3), ("orders", 4), ("orders", 5), ("orders", 6), ("items", 2), ("items", 3)]  # fmt: skip


def numbered(first: int) -> list[tuple[int, str, int]]:
    return [(first + n, table, id) for n, (table, id) in enumerate(STAGED)]


def test_what_others_staged_becomes_visible_in_one_append(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    writer.append(make_change(3))
    manifest = stage(place())
    reader = LogReader(place())
    assert reader.tail().offset == 3
    entry = writer.adopt(manifest, THROUGH)
    assert (entry.base, entry.rows, entry.marks) == (3, 11, ((11, THROUGH),))
    assert (writer.tail.offset, writer.tail.position) == (14, THROUGH)
    writer.append(make_change(2, number=9, first_id=50))
    writer.close()
    found = events(LogReader(place()))
    assert found[3:14] == numbered(3)
    assert [offset for offset, _, _ in found] == list(range(16))
    assert ids(place()) == []
    again = LogWriter.open(place(), CONFIG)
    assert again.tail.offset == 16
    again.append(make_change(1, number=10, first_id=60))
    again.close()
    assert [offset for offset, _, _ in events(LogReader(place()))] == list(range(17))


def test_a_range_inside_what_was_adopted_is_read_like_any_other(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    writer.append(make_change(3))
    writer.adopt(stage(place()), THROUGH)
    writer.close()
    reader = LogReader(place())
    found = [(int(o), b.table.name) for b in map(reader.read, reader.refs(5, 10)) for o in b.offsets().tolist()]
    assert sorted(found) == [(offset, table) for offset, table, _ in numbered(3) if 5 <= offset < 10]


def test_what_was_staged_under_several_ids_shares_an_append_and_each_keeps_its_constants(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    writer.append(make_change(3))
    staged = []
    for number, rows in enumerate((2, 1, 3)):
        staging = Staging(place(), f"s.{number}")
        parts = [staging.write("0", [make_block(rows, table=make_table(name=f"t{number}"), positions=None)])]
        constants = Constants(Position(f"snapshot:1/t{number}/0"), 0, number)
        staged.append(Staged(staging.seal(parts), constants))
    entry = writer.adopt_all(staged, THROUGH)
    assert (entry.base, entry.rows, [count for count, _ in entry.marks]) == (3, 6, [2, 3, 6])
    assert writer.find_adopted(["s.0", "s.1", "s.2", "s.3", "s"]) == {"s.0": 2, "s.1": 1, "s.2": 3}
    assert ids(place()) == []
    writer.close()
    again = LogWriter.open(place(), CONFIG)
    assert again.find_adopted(["s.2"]) == {"s.2": 3}
    again.append(make_change(1, number=10, first_id=60))
    again.close()
    reader = LogReader(place())
    blocks = [reader.read(ref) for ref in reader.refs(3, 9)]
    assert [b.batch.column("position").to_pylist() for b in blocks] == [
        [f"snapshot:1/t{number}/0"] * rows for number, rows in enumerate((2, 1, 3))
    ]
    assert [b.offsets().tolist() for b in blocks] == [[3, 4], [5], [6, 7, 8]]


def test_rows_that_lack_a_position_get_the_constants_and_the_barrier_its_kind(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    staging = Staging(place(), "s")
    manifest = staging.seal([staging.write("0", [make_block(2, positions=None)])])
    same = Constants(Position("snapshot:1/orders/0"), 42, 7)
    writer.adopt(manifest, THROUGH, constants=same, barrier=Barrier.SCHEMA_CHANGE)
    writer.close()
    reader = LogReader(place())
    batch = reader.read(reader.refs(0, 2)[0]).batch
    assert batch.column("position").to_pylist() == [same.position] * 2
    assert batch.column("tx_id").to_pylist() == [42, 42]
    assert reader.barrier_at(0) == Barrier.SCHEMA_CHANGE


def test_what_was_adopted_is_not_adopted_again(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    manifest = stage(place())
    first = writer.adopt(manifest, THROUGH)
    writer.append(make_change(1, number=2, first_id=90))
    assert writer.adopt(manifest, THROUGH) == first
    writer.close()
    again = LogWriter.open(place(), CONFIG)
    assert again.adopt(manifest, THROUGH) == first
    again.close()
    assert events(LogReader(place()))[:11] == numbered(0)
    assert LogReader(place()).tail().offset == 12


def test_an_id_that_begins_like_another_is_another(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    writer.adopt(stage(place(), "snap1"), THROUGH)
    writer.adopt(stage(place(), "snap"), THROUGH)
    writer.close()
    assert LogReader(place()).tail().offset == 22


def test_a_manifest_survives_its_file(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    manifest = stage(place())
    found = Staging(place(), "snap1").manifest()
    assert found == manifest
    assert Staging(place(), "other").manifest() is None
    writer.close()


def test_a_task_that_ran_twice_counts_once(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    staging = Staging(place(), "s")
    staging.write("0", [make_block(3)])
    second = staging.write("0", [make_block(3)])
    manifest = staging.seal([second])
    writer.adopt(manifest, THROUGH)
    staging.write("0", [make_block(3)])  # a third one, late, touches nothing that the log has
    writer.close()
    assert [offset for offset, _, _ in events(LogReader(place()))] == [0, 1, 2]
    LogWriter.open(place(), CONFIG).close()
    assert ids(place()) == []


def test_nothing_staged_moves_only_the_position(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    entry = writer.adopt(Staging(place(), "s").seal([]), THROUGH)
    assert (entry.rows, writer.tail.offset, writer.tail.position) == (0, 0, THROUGH)
    writer.close()
    assert ids(place()) == []


def test_a_part_that_is_gone_is_refused_and_nothing_is_appended(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    manifest = stage(place())
    place().remove(manifest.parts[1].file)
    with pytest.raises(StagingLost, match=r"gone or cut") as refused:
        writer.adopt(manifest, THROUGH)
    assert not is_retryable(refused.value)
    assert [name for name in place().names() if name.endswith(".seg")] == []
    writer.append(make_change(1))
    writer.close()
    assert LogReader(place()).tail().offset == 1


def test_offsets_of_a_part_count_from_its_own_first_row(place: OpenStore) -> None:
    with pytest.raises(BadAppend, match="counted from 0"):
        Staging(place(), "s").write("0", [make_block(2, offsets=[5, 6])])


@pytest.mark.parametrize("id", ["", "..", "a/b", "a-b", "ü", "x" * 101])
def test_an_id_cannot_lead_elsewhere(place: OpenStore, id: str) -> None:
    with pytest.raises(ValueError, match="not an id"):
        Staging(place(), id)


def test_opening_the_log_removes_only_what_nobody_is_at_work_on(place: OpenStore) -> None:
    LogWriter.open(place(), CONFIG).close()
    for id in ("sealed_alive", "sealed_orphan"):
        stage(place(), id)
    for id in ("open_alive", "open_orphan"):
        Staging(place(), id).write("0", [make_block(2)])
    writer = LogWriter.open(place(), CONFIG, staged=lambda id: id.endswith("alive"))
    assert ids(place()) == ["open_alive", "sealed_alive"]
    manifest = Staging(place(), "sealed_alive").manifest()
    assert manifest is not None
    writer.adopt(manifest, THROUGH)
    writer.close()
    assert events(LogReader(place())) == numbered(0)


def test_what_was_adopted_is_trimmed_with_its_segment(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    writer.adopt(stage(place()), THROUGH)
    writer.append(make_change(1, number=2, first_id=90))
    writer.close()
    assert trim(place(), 12, LogConfig(retention_seconds=0, retention_bytes=0)) > 0
    assert LogReader(place()).head() == 11
    assert len([name for name in place().names() if name.endswith(".seg")]) == 1


def test_an_append_that_the_index_could_not_take_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = str(tmp_path)
    writer = LogWriter.open(log, CONFIG)
    manifest = stage(log)
    store = writer._store
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise LogError("the disk is full")

        patch.setattr(store, "publish", full)
        with pytest.raises(LogError, match="full"):
            writer.adopt(manifest, THROUGH)
    assert list(tmp_path.glob("*.seg")) == []
    writer.append(make_change(1, first_id=70))
    writer.adopt(manifest, THROUGH)
    writer.close()
    assert events(LogReader(log))[1:] == numbered(1)


class Mute(ObjectStore):
    """Publishes, and loses the answer once."""

    mute = False

    def publish(self, name: str, at: int, record: bytes) -> None:
        super().publish(name, at, record)
        if self.mute:
            self.mute = False
            raise LogError("no answer")


def test_an_adoption_whose_answer_was_lost_is_the_same_when_it_is_asked_for_again(bucket: Bucket) -> None:
    store = bucket.open(Mute)
    writer = LogWriter.open(store, CONFIG)
    manifest = stage(bucket.open())
    store.mute = True
    with pytest.raises(LogError, match="no answer"):
        writer.adopt(manifest, THROUGH)
    writer.adopt(manifest, THROUGH)
    writer.append(make_change(1, number=2, first_id=90))
    writer.close()
    assert events(LogReader(bucket.open()))[:11] == numbered(0)
    assert LogReader(bucket.open()).tail().offset == 12


# ---------------------------------------------------------------- killed between any two steps


def open_place(kind: str, path: Path) -> Store:
    if kind == "directory":
        return open_store(str(path))
    return ObjectStore(pafs.SubTreeFileSystem(str(path), pafs.LocalFileSystem()), "log")


def die_at(step: str, kind: str, path: Path) -> int:
    """Stages and adopts between two appends in a process of its own, which ends at the step. How it ended."""
    child = os.fork()
    if not child:
        try:
            name, _, count = step.partition(":")
            failpoints._PLAN[name] = int(count or 1)
            writer = LogWriter.open(open_place(kind, path), CONFIG)
            writer.append(make_change(3, first_id=100))
            writer.adopt(stage(open_place(kind, path)), THROUGH)
            writer.append(make_change(2, number=9, first_id=200))
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


STEPS = ["log.staged:1", "log.staged:3", "log.staging_sealed", "log.adopt_linked:1", "log.adopt_linked:2",
         "log.adopt_linked:3", "log.adopted", "log.staging_unsealed",
         "log.staging_part_removed:1", "log.staging_part_removed:3"]  # fmt: skip


@pytest.mark.parametrize("alive", [True, False], ids=["its owner goes on", "its owner is gone"])
@pytest.mark.parametrize("kind", ["directory", "objects"])
@pytest.mark.parametrize("step", STEPS)
def test_a_writer_killed_at_any_step_leaves_all_of_it_or_nothing(
    tmp_path: Path, step: str, kind: str, alive: bool
) -> None:
    def store() -> Store:
        return open_place(kind, tmp_path)

    assert die_at(step, kind, tmp_path) == -signal.SIGKILL, "the step was never passed"

    visible = LogReader(store()).tail().offset
    assert visible in (3, 14)
    writer = LogWriter.open(store(), CONFIG, staged=lambda id: alive)
    assert writer.tail.offset == visible
    left = Staging(store(), "snap1").manifest()
    if visible == 14:
        assert ids(store()) == []
    elif not alive:
        assert ids(store()) == []
        left = stage(store())
    elif left is None:
        left = stage(store())  # it was not sealed: whoever is at work goes on
    if left is not None:
        writer.adopt(left, THROUGH)
    writer.append(make_change(1, number=20, first_id=300))
    writer.close()
    found = events(LogReader(store()))
    assert found[3:14] == numbered(3)
    assert [offset for offset, _, _ in found] == list(range(15))
    LogWriter.open(store(), CONFIG).close()
    assert ids(store()) == []
    segments = {ref.segment for ref in LogReader(store()).refs(0, 15)}
    if kind == "directory":
        assert segments == {name for name in store().names() if name.endswith(".seg")}, (
            "nothing is left that no index names"
        )
