"""An object store that takes a request and does not say so: what may be visible never changes, and shows once."""

from __future__ import annotations

import pytest

from tests.log.conftest import Bucket
from tests.log.look import events, offsets
from tests.support.blocks import make_change, make_spill, position
from tidemill.errors import BadAppend, LogError, SpillLost, is_retryable
from tidemill.log import LogConfig, LogReader
from tidemill.log.objects import ObjectStore
from tidemill.log.writer import LogWriter
from tidemill.model.change import SpillCommitted

CONFIG = LogConfig.model_validate({})
COMMITTED = SpillCommitted(7, position(1), 7, 0, position(1))


class Unanswered(ObjectStore):
    """A stand-in for a store that takes `lost` records, or moves, and does not say so."""

    lost = 0
    lost_moves = 0

    def publish(self, name: str, at: int, record: bytes) -> None:
        super().publish(name, at, record)
        if self.lost:
            self.lost -= 1
            raise LogError("the connection broke before the answer came")

    def move(self, old: str, new: str) -> None:
        super().move(old, new)
        if self.lost_moves:
            self.lost_moves -= 1
            raise LogError("the connection broke before the answer came")


class Unheard(Unanswered):
    """A stand-in for a store that does not get them."""

    def publish(self, name: str, at: int, record: bytes) -> None:
        if self.lost:
            self.lost -= 1
            raise LogError("the connection broke before the request was sent")
        super().publish(name, at, record)


either = pytest.mark.parametrize("kind", [Unanswered, Unheard])


@either
def test_an_append_whose_answer_was_lost_may_be_repeated_and_shows_once(bucket: Bucket, kind: type[Unanswered]) -> None:
    store = bucket.open(kind)
    writer = LogWriter.open(store, CONFIG)
    change = make_change(3)
    store.lost = 2
    for _ in range(2):
        with pytest.raises(LogError, match="the connection broke"):
            writer.append(change)
    assert writer.append(change).rows == 3
    writer.append(make_change(2, number=2))
    assert offsets(LogReader(bucket.open())) == [0, 1, 2, 3, 4]


@either
def test_a_visible_record_stays_when_the_source_cuts_its_transactions_otherwise_after_a_reconnect(
    bucket: Bucket, kind: type[Unanswered]
) -> None:
    store = bucket.open(kind)
    writer = LogWriter.open(store, CONFIG)
    writer.append(make_change(10))
    store.lost = 1
    with pytest.raises(LogError):
        writer.append(make_change(10, 10, number=2, first_id=100))
    reader = LogReader(bucket.open())
    before = {name: bucket.open().read(name) for name in bucket.open().names() if name.endswith((".idx", ".seg"))}
    seen = reader.tail().offset
    with pytest.raises(BadAppend, match="settled"):
        writer.append(make_change(10, number=2, first_id=100))
    assert writer.settle() == 20
    assert writer.settle() == 0
    assert writer.tail.offset == 30 >= seen
    assert writer.tail.position == position(3), "the source goes on behind both transactions"
    writer.append(make_change(7, number=4, first_id=200))
    assert reader.tail().offset == 37
    assert offsets(reader) == list(range(37))
    assert [e["position"] for e in events(reader, 10, 37)] == [position(2)] * 10 + [position(3)] * 10 + [
        position(4)
    ] * 7
    assert {name: bucket.open().read(name) for name in before} == before


@either
@pytest.mark.parametrize("aborted", [frozenset(), frozenset({8})], ids=["whole", "with a rolled back subtransaction"])
@pytest.mark.parametrize("again", [True, False], ids=["repeated", "forsaken"])
def test_a_large_transaction_whose_answer_was_lost_may_be_repeated_or_forsaken(
    bucket: Bucket, kind: type[Unanswered], aborted: frozenset[int], again: bool
) -> None:
    store = bucket.open(kind)
    writer = LogWriter.open(store, CONFIG)
    writer.spill(make_spill(7, 4, subtx=[7, 8, 7, 7]))
    change = SpillCommitted(7, position(1), 7, 0, position(1), aborted)
    store.lost = 1
    with pytest.raises(LogError):
        writer.commit_spill(change)
    if again:
        writer.commit_spill(change)
    else:
        writer.drop_spills()
        writer.settle()
    writer.append(make_change(2, number=2))
    writer.close()
    rows = 3 if aborted else 4
    assert offsets(LogReader(bucket.open())) == list(range(rows + 2))
    LogWriter.open(bucket.open(), CONFIG).close()
    assert not any(name.startswith("spill-") for name in bucket.open().names())


def test_a_writer_that_dies_before_the_answer_comes_leaves_a_log_that_goes_on(bucket: Bucket) -> None:
    for rounds in range(1, 3):
        store = bucket.open(Unanswered)
        writer = LogWriter.open(store, CONFIG)
        writer.spill(make_spill(7, 3))
        store.lost = 1
        with pytest.raises(LogError):
            writer.commit_spill(COMMITTED)
        writer.close()
        assert offsets(LogReader(bucket.open())) == list(range(3 * rounds))


def test_every_attempt_writes_its_data_under_a_name_of_its_own(bucket: Bucket) -> None:
    """A request that was given up may still arrive, and would put its bytes in place of those that were published."""
    written: list[str] = []

    class Refusing(ObjectStore):
        def write(self, name: str, at: int, buffers: object) -> None:
            written.append(name)
            if len(written) < 3:
                raise LogError("no answer")
            super().write(name, at, buffers)  # type: ignore[arg-type]

    writer = LogWriter.open(bucket.open(Refusing), CONFIG)
    for _ in range(2):
        with pytest.raises(LogError):
            writer.append(make_change(3))
    writer.append(make_change(2))
    assert len(set(written)) == 3
    assert offsets(LogReader(bucket.open())) == [0, 1]


def test_a_large_transaction_whose_pieces_were_renamed_without_an_answer_is_committed(bucket: Bucket) -> None:
    store = bucket.open(Unanswered)
    writer = LogWriter.open(store, CONFIG)
    writer.spill(make_spill(7, 4))
    writer.spill(make_spill(7, 2, start=4))
    store.lost_moves = 1
    writer.commit_spill(COMMITTED)
    assert offsets(LogReader(bucket.open())) == list(range(6))


@pytest.mark.parametrize("aborted", [frozenset(), frozenset({8})], ids=["whole", "with a rolled back subtransaction"])
def test_a_piece_of_an_open_transaction_that_is_gone_is_asked_for_again(
    bucket: Bucket, aborted: frozenset[int]
) -> None:
    writer = LogWriter.open(bucket.open(), CONFIG)
    change = SpillCommitted(7, position(1), 7, 0, position(1), aborted)
    writer.spill(make_spill(7, 4, subtx=[7, 8, 7, 7]))
    writer.spill(make_spill(7, 2, start=4))
    gone = [name for name in bucket.open().names() if name.startswith("spill-")][1]
    bucket.open().remove(gone)
    with pytest.raises(SpillLost, match="gone") as raised:
        writer.commit_spill(change)
    assert is_retryable(raised.value)
    writer.drop_spills()
    writer.spill(make_spill(7, 4, subtx=[7, 8, 7, 7]))
    writer.commit_spill(change)
    assert offsets(LogReader(bucket.open())) == list(range(3 if aborted else 4))
