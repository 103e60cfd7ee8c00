"""Two writers of one log in an object store: the newest goes on, and what it published outlives the older one's end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.log.conftest import Bucket
from tests.log.look import events, offsets
from tests.support.blocks import make_change, make_spill, position
from tidemill.errors import LogCorrupt, LogError, LogTakenOver, is_retryable
from tidemill.log import LogConfig, LogReader, objects, trim
from tidemill.log import index as module
from tidemill.log.objects import ObjectStore
from tidemill.log.writer import LogWriter
from tidemill.model.change import SpillCommitted

CONFIG = LogConfig.model_validate({})


class Asleep(ObjectStore):
    """A stand-in for a writer that was stopped between its look at the lock and its next request."""

    def check_lock(self) -> None:
        pass


@pytest.mark.parametrize("kind", [ObjectStore, Asleep])
def test_a_writer_that_wakes_up_after_another_took_over_destroys_nothing_and_stops(
    bucket: Bucket, kind: type[ObjectStore]
) -> None:
    old = LogWriter.open(bucket.open(kind), CONFIG)
    old.append(make_change(3))
    new = LogWriter.open(bucket.open(), CONFIG)
    new.append(make_change(5, number=2, first_id=100))
    before = events(LogReader(bucket.open()))
    for _ in range(2):
        with pytest.raises(LogTakenOver) as raised:
            old.append(make_change(4, number=2, first_id=900))
        assert not is_retryable(raised.value)
    old.close()
    assert events(LogReader(bucket.open())) == before
    new.append(make_change(1, number=3))
    assert offsets(LogReader(bucket.open())) == list(range(9))
    new.close()
    assert LogWriter.open(bucket.open(), CONFIG).tail.offset == 9


@pytest.mark.parametrize("kind", [ObjectStore, Asleep])
def test_a_large_transaction_of_a_writer_that_was_taken_over_from_never_shows(
    bucket: Bucket, kind: type[ObjectStore]
) -> None:
    old = LogWriter.open(bucket.open(kind), CONFIG)
    old.spill(make_spill(7, 3))
    new = LogWriter.open(bucket.open(), CONFIG)
    new.spill(make_spill(7, 2))
    with pytest.raises(LogError):
        old.commit_spill(SpillCommitted(7, position(9), 7, 0, position(9)))
    old.close()
    new.commit_spill(SpillCommitted(7, position(1), 7, 0, position(1)))
    assert [event["position"] for event in events(LogReader(bucket.open()))] == [position(1)] * 2


def test_data_that_another_writer_is_about_to_publish_is_left_alone(bucket: Bucket) -> None:
    store = bucket.open(Asleep)
    old = LogWriter.open(store, CONFIG)
    stopped = store.publish
    pieces: list[tuple[str, int, bytes]] = []
    store.publish = lambda *record: pieces.append(record)  # type: ignore[method-assign]
    old.append(make_change(3))
    new = LogWriter.open(bucket.open(), CONFIG)  # meanwhile, and it has nothing to append yet
    stopped(*pieces[0])
    assert offsets(LogReader(bucket.open())) == [0, 1, 2]
    with pytest.raises(LogTakenOver, match="another writer"):
        new.append(make_change(2))  # its offsets are taken: it must look again where the log ends
    assert LogWriter.open(bucket.open(), CONFIG).tail.offset == 3


def test_a_reader_whose_segments_were_all_trimmed_between_two_looks_finds_the_tail(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)
    writer = LogWriter.open(bucket.open(), CONFIG)
    writer.append(make_change(3))
    reader = LogReader(bucket.open())
    assert reader.tail().offset == 3
    for _ in range(3):
        writer.append(make_change(3))
    trim(bucket.open(), 12, CONFIG)
    assert reader.tail().offset == 12
    writer.append(make_change(3))
    assert (reader.tail().offset, reader.head()) == (15, 9)


class Interrupted(ObjectStore):
    """A stand-in for a writer that is stopped after one request, while `meanwhile` happens."""

    at: str = ""
    """The request: "names", "lock", or "put": before that of a record, when everything was looked at."""
    calls = 0
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def lock(self) -> None:
        super().lock()
        self._reached("lock")

    def names(self) -> list[str]:
        found = super().names()
        self._reached("names")
        return found

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        if name.endswith(".idx"):
            self._reached("put")
        super().replace(name, data, durable=durable)

    def _reached(self, point: str) -> None:
        if point == self.at:
            self.calls -= 1
            if self.calls == 0:
                self.meanwhile()


@pytest.mark.parametrize(("at", "calls"), [("names", 1), ("lock", 1), ("names", 2), ("names", 3)])
def test_a_writer_that_is_stopped_while_it_opens_the_log_leaves_the_spills_of_a_newer_one(
    bucket: Bucket, at: str, calls: int
) -> None:
    first = LogWriter.open(bucket.open(), CONFIG)
    first.append(make_change(3))
    first.spill(make_spill(6, 2))
    new: list[LogWriter] = []

    def take_over() -> None:
        new.append(LogWriter.open(bucket.open(), CONFIG))
        new[0].append(make_change(4, number=2))
        new[0].spill(make_spill(9, 5))

    store = bucket.open(Interrupted)
    store.at, store.calls, store.meanwhile = at, calls, take_over
    if (at, calls) == ("names", 1):  # before its lock: then it is the newest, and the other one stops
        LogWriter.open(store, CONFIG)
        with pytest.raises(LogTakenOver):
            new[0].append(make_change(1, number=8))
    else:
        with pytest.raises(LogTakenOver):
            LogWriter.open(store, CONFIG).append(make_change(1, number=8))
        new[0].commit_spill(SpillCommitted(9, position(9), 9, 0, position(9)))
        assert offsets(LogReader(bucket.open())) == list(range(12))
    assert not any(name.startswith("spill-6") for name in bucket.open().names())


@pytest.mark.parametrize("late", [4, 6], ids=["shorter", "longer"])
@pytest.mark.parametrize("appends", [1, 2, 3])
def test_a_record_that_comes_late_and_replaces_a_newer_one_stops_everybody(
    bucket: Bucket, late: int, appends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(objects, "_REMEMBERED_SECONDS", 0.0)
    store = bucket.open(Interrupted)
    old = LogWriter.open(store, CONFIG)
    old.append(make_change(3))
    new: list[LogWriter] = []
    reader = LogReader(bucket.open())

    def take_over() -> None:
        new.append(LogWriter.open(bucket.open(), CONFIG))
        for number in range(appends):
            new[0].append(make_change(5, number=2 + number))
        assert reader.tail().offset == 3 + 5 * appends

    store.at, store.calls, store.meanwhile = "put", 1, take_over
    with pytest.raises(LogTakenOver):
        old.append(make_change(late, number=2))
    with pytest.raises(LogTakenOver, match="has replaced") as raised:
        new[0].append(make_change(2, number=9))
    assert "only one runs" in raised.value.fix
    new[0].close()
    with pytest.raises(LogCorrupt, match="two captures"):
        reader.refs(3, 8)
    if appends == 1:
        with pytest.raises(LogCorrupt, match="two captures"):
            reader.tail()
        # Nothing stands behind the record, so the log goes on from there.
        assert LogWriter.open(bucket.open(), CONFIG).tail.offset == 3 + late
        assert offsets(LogReader(bucket.open())) == list(range(3 + late))
    else:
        for broken in (
            lambda: LogReader(bucket.open()).plan(3, max_events=100, max_bytes=1 << 30),
            lambda: LogReader(bucket.open()).refs(0, 13),
            lambda: LogWriter.open(bucket.open(), CONFIG),
        ):
            with pytest.raises(LogCorrupt, match="two captures") as damage:
                broken()
            assert "move it away" in damage.value.fix
