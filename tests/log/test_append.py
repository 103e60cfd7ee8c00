"""Appending and reading back, in every place a log can live."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log.conftest import OpenStore
from tests.log.look import events, offsets
from tests.support.blocks import make_block, make_change, make_table, position
from tests.support.waiting import until
from tidemill.errors import BadAppend, ConfigError, LogError, LogFull, is_retryable
from tidemill.log import BlockRef, LogConfig, LogReader, LogWriter, Tail, acknowledge
from tidemill.log.local import LocalStore
from tidemill.log.store import masked_uri, open_store
from tidemill.model.block import META
from tidemill.model.change import Committed
from tidemill.model.position import Position

SMALL = LogConfig(segment_bytes=20_000)
TABLES = (make_table(), make_table("items"))


def test_what_was_appended_is_read_back_with_dense_offsets(place: OpenStore) -> None:
    writer = LogWriter.open(place(), SMALL)
    first = writer.append(make_change(3, 2, tables=TABLES))
    second = writer.append(make_change(4, tables=TABLES, number=3, first_id=100))
    assert (first.base, first.end, second.base, second.end) == (0, 5, 5, 9)
    assert writer.tail == Tail(9, position(3))

    reader = LogReader(place())
    found = events(reader)
    assert [e["offset"] for e in found] == list(range(9))
    assert [e["table"] for e in found] == ["orders", "items"] * 2 + ["orders"] + ["orders", "items"] * 2
    assert [e["ordinal"] for e in found] == [0, 1, 2, 0, 1, 0, 1, 2, 3]
    assert [e["position"] for e in found] == [position(1)] * 3 + [position(2)] * 2 + [position(3)] * 4
    assert [e["after"]["id"] for e in found if e["table"] == "orders"] == [0, 1, 2, 100, 101]
    assert reader.tail() == writer.tail
    writer.close()


def test_a_block_comes_back_equal_to_what_went_in_apart_from_its_offsets(place: OpenStore) -> None:
    writer = LogWriter.open(place(), SMALL, base=Tail(1000, position(1)))
    change = make_change(50)
    writer.append(change)
    [ref] = LogReader(place()).refs(1000, 1050)
    block = LogReader(place()).read(BlockRef.from_json(ref.to_json()))
    written = change.blocks[0]
    assert block.table == written.table
    assert block.batch.schema.names[:6] == META.names
    assert block.batch.drop_columns(["offset"]).equals(written.batch.drop_columns(["offset"]), check_metadata=True)
    assert block.batch.column("offset").to_pylist() == list(range(1000, 1050))
    assert (ref.table, ref.version, ref.fingerprint, ref.rows) == ("public.orders", 1, written.table.fingerprint, 50)
    writer.close()


def test_a_reader_sees_appends_as_they_come_over_many_segments(place: OpenStore) -> None:
    writer = LogWriter.open(place(), SMALL)
    reader = LogReader(place())
    assert reader.tail() == Tail(0, Position(""))
    for number in range(1, 21):
        writer.append(make_change(10, number=number))
        assert reader.tail() == Tail(number * 10, position(number))
    assert len(reader._index.bases()) > 3
    assert offsets(reader) == list(range(200))
    assert [entry.base for entry in reader.entries(95)] == list(range(90, 200, 10))
    writer.close()


def test_the_same_offsets_give_the_same_events_after_reopening(place: OpenStore) -> None:
    for number in range(1, 13):
        writer = LogWriter.open(place(), SMALL)
        assert writer.tail.offset == (number - 1) * 7
        writer.append(make_change(5, 2, number=number, tables=TABLES, first_id=number))
        writer.close()
    once, again = LogReader(place()), LogReader(place())
    assert events(once, 20, 60) == events(again, 20, 60)
    assert offsets(again, 20, 60) == list(range(20, 60))


def test_a_clipped_reference_reads_only_its_rows(place: OpenStore) -> None:
    writer = LogWriter.open(place(), SMALL)
    writer.append(make_change(10, tables=TABLES))
    reader = LogReader(place())
    refs = reader.refs(3, 6)
    assert [(ref.first, ref.last) for ref in refs] == [(3, 6), (3, 6)]
    assert offsets(reader, 3, 6) == [3, 4, 5]
    assert [reader.read(ref).rows for ref in reader.refs(3, 4)] == [0, 1]
    writer.close()


def test_an_empty_log_begins_at_the_checkpoint(place: OpenStore) -> None:
    base = Tail(500, Position("0/ABC"))
    writer = LogWriter.open(place(), SMALL, base=base)
    reader = LogReader(place())
    assert (writer.tail, reader.tail(), reader.head()) == (base, base, 500)
    assert reader.plan(500, max_events=10, max_bytes=1 << 20) == 500
    assert reader.position_at(500) == "0/ABC"
    writer.append(make_change(2))
    assert reader.tail() == Tail(502, position(1))
    assert reader.position_at(500) == reader.position_at(501) == "0/ABC"
    writer.close()
    assert LogWriter.open(place(), SMALL, base=base).tail.offset == 502


def test_a_log_that_was_lost_inside_a_transaction_gives_its_events_the_same_offsets_again(place: OpenStore) -> None:
    """With respect_source_tx off, a checkpoint may stand inside a transaction; the source sends all of it again."""
    before = LogWriter.open(place(), SMALL, base=Tail(100, position(1)))
    before.append(make_change(3, 10, number=2))
    reader = LogReader(place())
    end = reader.plan(103, max_events=4, max_bytes=1 << 30, respect_tx=False)
    mark = reader.mark_at(end)
    assert (end, mark) == (107, Tail(103, position(2)))
    was = {event["offset"]: (event["position"], event["ordinal"]) for event in events(reader)}
    before.close()
    for name in place().names():
        place().remove(name)

    writer = LogWriter.open(place(), SMALL, base=mark, delivered=end)
    assert writer.tail == mark
    writer.close()
    writer = LogWriter.open(place(), SMALL, base=mark, delivered=end)  # once more, before the transaction came
    writer.append(make_change(10, number=3))
    found = {event["offset"]: (event["position"], event["ordinal"]) for event in events(LogReader(place()))}
    assert found == {offset: was[offset] for offset in range(103, 113)}
    writer.close()


def test_transactions_without_events_move_the_position_and_leave_no_append(place: OpenStore) -> None:
    writer = LogWriter.open(place(), SMALL)
    writer.append(make_change(3))
    entry = writer.append(Committed((), 0, ((0, position(9)),)))
    assert (entry.base, entry.rows) == (3, 0)
    assert writer.tail == Tail(3, position(9))
    reader = LogReader(place())
    assert reader.tail() == Tail(3, position(9))
    assert reader.position_at(3) == position(9)
    assert len(list(reader.entries())) == 1
    writer.close()
    writer = LogWriter.open(place(), SMALL)
    assert writer.tail == Tail(3, position(9))
    writer.append(make_change(1, number=12))
    assert LogReader(place()).position_at(3) == position(9)
    assert LogReader(place()).tail() == Tail(4, position(12))
    writer.close()


class AfterPowerFailure(LocalStore):
    """A stand-in for a disk that keeps only what it was asked to write through."""

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        if durable:
            super().replace(name, data)


def test_where_a_stream_began_outlives_a_power_failure(tmp_path: Path) -> None:
    writer = LogWriter.open(AfterPowerFailure(str(tmp_path)), SMALL)
    writer.append(Committed((), 0, ((0, position(9)),)))
    writer.close()
    assert LogWriter.open(str(tmp_path), SMALL).tail == Tail(0, position(9))


def test_the_position_at_an_offset_is_of_the_last_whole_transaction_before_it(place: OpenStore) -> None:
    writer = LogWriter.open(place(), SMALL)
    writer.append(make_change(3, 2, number=1))
    writer.append(make_change(4, number=3))
    reader = LogReader(place())
    found = [reader.position_at(offset) for offset in range(10)]
    assert found == ["", "", "", *[position(1)] * 2, *[position(2)] * 4, position(3)]
    writer.close()


def test_capture_is_pushed_back_until_the_stream_has_delivered(place: OpenStore) -> None:
    config = LogConfig(segment_bytes=20_000, max_bytes=30_000)
    writer = LogWriter.open(place(), config)
    while writer.undelivered_bytes() < 30_000:
        writer.append(make_change(10))
    before = writer.tail
    with pytest.raises(LogFull) as caught:
        writer.append(make_change(10))
    assert is_retryable(caught.value)
    assert writer.tail == before
    assert LogReader(place()).tail() == before

    writer.close()
    writer = LogWriter.open(place(), config)
    with pytest.raises(LogFull):
        writer.append(make_change(10))
    acknowledge(place(), Tail(10, position(1)))
    writer.close()
    writer = LogWriter.open(place(), config)
    assert writer.acknowledged() == Tail(10, position(1))
    writer.append(make_change(10))
    acknowledge(place(), writer.tail)
    writer.close()
    writer = LogWriter.open(place(), config)
    assert writer.undelivered_bytes() == 0
    writer.close()


def test_an_append_larger_than_the_limit_passes_when_there_is_room(place: OpenStore) -> None:
    writer = LogWriter.open(place(), LogConfig(max_bytes=1))
    writer.append(make_change(1000))
    with pytest.raises(LogFull):
        writer.append(make_change(1))
    writer.close()


def test_the_acknowledgement_is_seen_by_a_writer_that_runs(tmp_path: Path) -> None:
    writer = LogWriter.open(str(tmp_path), LogConfig(max_bytes=1))
    writer.append(make_change(5))
    assert writer.acknowledged() is None
    acknowledge(str(tmp_path), Tail(5, position(1)))
    assert writer.acknowledged() == Tail(5, position(1))
    writer.append(make_change(5))
    acknowledge(str(tmp_path), Tail(7, position(1)))
    assert writer.acknowledged() == Tail(7, position(1))
    assert writer.undelivered_bytes() > 0
    writer.close()


def test_objects_that_wait_for_delivery_are_counted_and_appends_to_a_directory_are_not(place: OpenStore) -> None:
    writer = LogWriter.open(place(), SMALL)
    objects = not place().appends
    for number in range(1, 4):
        writer.append(make_change(10, number=number))
    assert writer.waiting_appends() == 3 * objects
    acknowledge(place(), Tail(25, position(2)))
    until(lambda: writer.waiting_appends() == 1 * objects)  # an object is looked at a few times a second
    writer.close()


def test_acknowledgements_that_follow_each_other_at_once_are_all_seen_and_make_no_new_file(tmp_path: Path) -> None:
    """Times of files are as coarse as the clock's tick: of two changes within one, a look at them shows the first."""
    writer = LogWriter.open(str(tmp_path), SMALL)
    (tmp_path / "acknowledged.json").write_text('{"offset": 3, "position": "0/3"}')  # of an earlier version
    assert writer.acknowledged() == Tail(3, Position("0/3"))
    acknowledge(str(tmp_path), Tail(4, position(1)))
    there = (tmp_path / "acknowledged.json").stat().st_ino
    for number in range(5, 300):
        acknowledge(str(tmp_path), Tail(number, position(number)))
        assert writer.acknowledged() == Tail(number, position(number))
    assert (tmp_path / "acknowledged.json").stat().st_ino == there
    acknowledge(str(tmp_path), Tail(5, Position("x" * 5000)))  # back, by an operator; sets of GTIDs may be long
    assert writer.acknowledged() == Tail(5, Position("x" * 5000))
    writer.close()


def test_a_torn_acknowledgement_leaves_the_one_before(tmp_path: Path) -> None:
    for number in (1, 2):
        acknowledge(str(tmp_path), Tail(number, position(number)))
    path = tmp_path / "acknowledged.json"
    data = path.read_bytes()
    at = data.index(b'"offset":2')
    path.write_bytes(data[: at + 9] + b"7" + data[at + 10 :])
    writer = LogWriter.open(str(tmp_path), SMALL, base=Tail(2, position(2)))
    assert writer.acknowledged() == Tail(1, position(1))
    writer.close()


def test_a_second_writer_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    writer = LogWriter.open(str(tmp_path), SMALL)
    with pytest.raises(LogError, match=r"another process writes this log \(pid \d+\)"):
        LogWriter.open(str(tmp_path), SMALL)
    writer.close()
    LogWriter.open(str(tmp_path), SMALL).close()


@pytest.mark.parametrize("place", ["objects in memory", "objects on disk"], indirect=True)
def test_an_older_writer_of_objects_stops_when_a_newer_one_has_taken_over(place: OpenStore) -> None:
    older = LogWriter.open(place(), SMALL)
    older.append(make_change(2))
    newer = LogWriter.open(place(), SMALL)
    with pytest.raises(LogError, match="taken over"):
        older.append(make_change(5))
    newer.append(make_change(3, number=2))
    assert LogReader(place()).tail() == Tail(5, position(2))
    assert offsets(LogReader(place())) == [0, 1, 2, 3, 4]


def test_an_append_whose_rows_do_not_add_up_is_refused(tmp_path: Path) -> None:
    writer = LogWriter.open(str(tmp_path), SMALL)
    with pytest.raises(BadAppend, match="3 rows"):
        writer.append(Committed((make_block(3),), 4, ((4, position(1)),)))
    assert writer.tail.offset == 0
    writer.close()


def test_an_offset_outside_the_log_is_an_error_and_never_a_jump(place: OpenStore) -> None:
    writer = LogWriter.open(place(), SMALL, base=Tail(100, position(1)))
    writer.append(make_change(5))
    reader = LogReader(place())
    with pytest.raises(LogError, match="ends at 105"):
        reader.plan(106, max_events=1, max_bytes=1)
    with pytest.raises(LogError, match="begins at 100"):
        reader.refs(99, 105)
    writer.close()


def test_a_uri_that_nothing_understands_is_a_configuration_error_without_its_secrets() -> None:
    with pytest.raises(ConfigError) as caught:
        open_store("nowhere://user:hunter2@host/path?secret=1")
    assert "hunter2" not in caught.value.where
    assert masked_uri("s3://key:hunter2@bucket/a?region=x") == "s3://bucket/a"
