"""Two writers of one log in an object store: the newest goes on, and what it published outlives the older one's end."""

from __future__ import annotations

import pyarrow.fs as pafs
import pytest

from tests.log.look import events, offsets
from tests.support.blocks import make_change, make_spill, position
from tidemill.errors import LogError, LogTakenOver, is_retryable
from tidemill.log import LogConfig, LogReader, trim
from tidemill.log import index as module
from tidemill.log.objects import ObjectStore
from tidemill.log.writer import LogWriter
from tidemill.model.change import SpillCommitted

CONFIG = LogConfig.model_validate({})


class Bucket:
    """One place in memory; each `open` is another process's view of it."""

    def __init__(self) -> None:
        self._fs, _ = pafs.FileSystem.from_uri("mock://")

    def open(self, kind: type[ObjectStore] = ObjectStore) -> ObjectStore:
        return kind(self._fs, "bucket/log")


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


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
        with pytest.raises(LogTakenOver) as told:
            old.append(make_change(4, number=2, first_id=900))
        assert not is_retryable(told.value)
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


class Unanswered(ObjectStore):
    """A stand-in for a store that publishes once and does not say so."""

    lost = 1

    def publish(self, name: str, at: int, record: bytes) -> None:
        super().publish(name, at, record)
        if self.lost:
            self.lost -= 1
            raise LogError("the connection broke before the answer came")


def test_an_append_whose_answer_was_lost_may_be_repeated_and_shows_once(bucket: Bucket) -> None:
    writer = LogWriter.open(bucket.open(Unanswered), CONFIG)
    with pytest.raises(LogError):
        writer.append(make_change(3))
    assert offsets(LogReader(bucket.open())) == [0, 1, 2], "it was published, so its data is there"
    writer.append(make_change(3))
    assert offsets(LogReader(bucket.open())) == [0, 1, 2]


def test_a_large_transaction_whose_answer_was_lost_may_be_repeated_or_forsaken(bucket: Bucket) -> None:
    committed = SpillCommitted(7, position(1), 7, 0, position(1))
    for again in (True, False):
        writer = LogWriter.open(bucket.open(Unanswered), CONFIG)
        before = writer.tail.offset
        writer.spill(make_spill(7, 3))
        with pytest.raises(LogError):
            writer.commit_spill(committed)
        writer.commit_spill(committed) if again else writer.drop_spills()
        writer.close()
        assert offsets(LogReader(bucket.open())) == list(range(before + 3))


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
