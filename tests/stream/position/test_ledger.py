"""Positions of groups in a real store beside a real log; streams are not needed to move them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from tests.support.blocks import make_change, position
from tests.support.capturing import eventually
from tidemill.checkpoints.sqlite import SqliteCheckpoints, SqliteConfig
from tidemill.config.spec import CommitPolicy
from tidemill.contracts import LostRange
from tidemill.errors import CheckpointError, ConfigError, LogCorrupt, LogError, is_retryable
from tidemill.log import LogConfig, LogReader, LogWriter, Tail
from tidemill.log.objects import ObjectStore
from tidemill.model.delivery import Checkpoint
from tidemill.state import open_store
from tidemill.stream.position import ledger as module
from tidemill.stream.position.commit_policy import Policy
from tidemill.stream.position.ledger import Ledger

TX = 10


class Desk:
    """A log of `TX` events a transaction, each in a segment of its own, and the ledger's store."""

    def __init__(self, directory: Path) -> None:
        self.uri = str(directory / "log")
        self.store = SqliteCheckpoints(SqliteConfig(), state_dir=directory)
        self.state = open_store(str(directory / "state.sqlite"))
        self.log = LogWriter.open(self.uri, LogConfig.model_validate({"fsync": False, "segment_bytes": 1}))
        self.transactions = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self.transactions += 1
            self.log.append(make_change(TX, number=self.transactions))

    def ledger(self, mode: str = "required", quorum: int | None = None, keep: int = 1 << 30, **sinks: bool) -> Ledger:
        policy = Policy.of("p", CommitPolicy.model_validate({"mode": mode, "quorum": quorum}), sinks)
        config = LogConfig.model_validate({"keep_for_optional_bytes": keep})
        ledger = Ledger(policy, self.store, self.uri, config, state=self.state)
        ledger.open()
        return ledger

    def offset(self, key: str) -> int | None:
        kept = self.store.load(key)
        return kept.offset if kept else None

    def head(self) -> int:
        return LogReader(self.uri).head()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(module, "_TRIM_EVERY", 0.0)
    desk = Desk(tmp_path)
    yield desk
    desk.log.close()
    desk.store.close()
    desk.state.close()


def go(ledger: Ledger, sink: str, transactions: int) -> None:
    ledger.advance(ledger.policy.group_of(sink), transactions * TX, position(transactions))


def test_a_required_sink_moves_the_checkpoint_and_the_log_is_told(desk: Desk) -> None:
    desk.write(3)
    ledger = desk.ledger(a=True, b=False)
    go(ledger, "a", 2)
    assert (desk.offset("p"), desk.offset("p:b")) == (20, 0)
    assert desk.log.acknowledged() == Tail(20, position(2))
    go(ledger, "b", 3)
    assert (desk.offset("p"), desk.offset("p:b")) == (20, 30)
    assert desk.log.acknowledged() == Tail(20, position(2)), "an optional sink never acknowledges (invariant 2)"


def test_a_quorum_moves_the_checkpoint_when_it_is_reached_and_not_before(desk: Desk) -> None:
    desk.write(3)
    ledger = desk.ledger("quorum", 2, a=True, b=True, c=True)
    go(ledger, "a", 3)
    assert (desk.offset("p"), desk.log.acknowledged()) == (None, None)
    go(ledger, "c", 1)
    assert (desk.offset("p"), desk.log.acknowledged()) == (10, Tail(10, position(1)))
    go(ledger, "b", 2)
    assert desk.offset("p") == 20
    go(ledger, "c", 2)
    assert desk.offset("p") == 20


def test_killed_between_a_groups_position_and_the_pipelines_the_next_start_makes_it_good(desk: Desk) -> None:
    desk.write(2)
    desk.ledger("quorum", 1, a=True, b=True)
    desk.store.save("p:a", Checkpoint(20, position(2)), expect=1)
    desk.ledger("quorum", 1, a=True, b=True)
    assert (desk.offset("p"), desk.log.acknowledged()) == (20, Tail(20, position(2)))


def test_killed_between_the_checkpoint_and_the_logs_mark_the_next_start_tells_the_log(desk: Desk) -> None:
    """Capture waits for the mark when the log is full; nothing else would ever move it then."""
    desk.write(2)
    go(desk.ledger(a=True), "a", 1)
    desk.store.save("p", Checkpoint(20, position(2)), expect=1)
    assert desk.log.acknowledged() == Tail(10, position(1))
    desk.ledger(a=True)
    assert desk.log.acknowledged() == Tail(20, position(2))


def test_a_word_to_the_log_that_failed_is_said_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.write(3)
    ledger = desk.ledger(a=True, b=False)

    def full(uri: str, delivered: Tail) -> None:
        raise LogError("no space left on device")

    monkeypatch.setattr(module, "acknowledge", full)
    with pytest.raises(LogError):
        go(ledger, "a", 2)
    monkeypatch.undo()
    monkeypatch.setattr(module, "_TRIM_EVERY", 0.0)
    assert desk.log.acknowledged() is None
    go(ledger, "b", 1)
    assert desk.log.acknowledged() == Tail(20, position(2))


def test_a_log_that_was_moved_away_is_not_told_what_it_never_had(desk: Desk) -> None:
    desk.write(2)
    go(desk.ledger(a=True), "a", 2)
    desk.log.close()
    Path(desk.uri).rename(f"{desk.uri}.away")
    desk.ledger(a=True)
    assert not Path(desk.uri).exists()


def test_a_new_optional_sink_begins_at_the_checkpoint_and_keeps_that_place_though_it_never_worked(desk: Desk) -> None:
    desk.write(3)
    ledger = desk.ledger(a=True)
    go(ledger, "a", 1)
    go(desk.ledger(a=True, b=False), "a", 2)
    ledger = desk.ledger(a=True, b=False)
    assert ledger.begin(ledger.policy.group_of("b")).offset == 10


def test_a_sink_that_is_gone_from_the_document_leaves_its_position_alone(desk: Desk) -> None:
    desk.write(2)
    go(desk.ledger(a=True, b=False), "a", 1)
    go(desk.ledger(a=True), "a", 2)
    assert desk.offset("p:b") == 0


def test_an_optional_sink_that_is_behind_cannot_become_required_and_skip_what_it_misses(desk: Desk) -> None:
    desk.write(3)
    go(desk.ledger(a=True, b=False), "a", 2)
    with pytest.raises(ConfigError, match="only the events before 0") as raised:
        desk.ledger(a=True, b=True)
    assert "--sink b" in raised.value.fix
    go(desk.ledger(a=True, b=False), "b", 2)
    go(desk.ledger(a=True, b=True), "a", 3)
    kept = desk.store.load("p:b")
    assert kept is not None
    assert (kept.offset, kept.joined) == (20, True)


def test_a_sink_that_becomes_optional_goes_on_where_the_required_ones_are(desk: Desk) -> None:
    desk.write(3)
    go(desk.ledger(a=True, b=False), "b", 0)
    go(desk.ledger(a=True, b=True), "a", 3)
    ledger = desk.ledger(a=True, b=False)
    assert ledger.begin(ledger.policy.group_of("b")).offset == 30


def test_a_position_that_an_earlier_version_marked_with_a_sentence_is_not_the_sinks_own(desk: Desk) -> None:
    desk.write(3)
    go(desk.ledger(a=True, b=False), "b", 0)
    kept = desk.store.load("p:b")
    assert kept is not None
    desk.store.save("p:b", replace(kept, note="moves with the pipeline's checkpoint"), expect=kept.version)
    go(desk.ledger(a=True, b=True), "a", 2)
    ledger = desk.ledger(a=True, b=False)
    assert ledger.begin(ledger.policy.group_of("b")).offset == 20


def test_a_note_on_a_position_decides_nothing(desk: Desk) -> None:
    desk.write(3)
    go(desk.ledger(a=True, b=False), "b", 0)
    go(desk.ledger(a=True, b=True), "a", 1)
    joined = desk.store.load("p:b")
    assert joined is not None
    desk.store.save("p:b", replace(joined, note="as the operator says"), expect=joined.version)
    ledger = desk.ledger(a=True, b=False)
    assert ledger.begin(ledger.policy.group_of("b")).offset == 10, "it is marked, whatever the note is"
    own = desk.store.load("p:b")
    assert own is not None
    desk.store.save("p:b", replace(own, note=joined.note), expect=own.version)
    go(desk.ledger(a=True, b=False), "a", 2)
    ledger = desk.ledger(a=True, b=False)
    assert ledger.begin(ledger.policy.group_of("b")).offset == 10, "it is its own, whatever the note is"


def test_from_a_quorum_to_all_is_refused_while_a_sink_is_behind(desk: Desk) -> None:
    desk.write(2)
    ledger = desk.ledger("quorum", 1, a=True, b=True)
    go(ledger, "a", 2)
    with pytest.raises(ConfigError, match='sink "b"'):
        desk.ledger("all", a=True, b=True)


def test_the_log_is_kept_for_a_sink_that_is_behind_and_goes_when_it_has_caught_up(desk: Desk) -> None:
    desk.write(5)
    ledger = desk.ledger(a=True, b=False)
    go(ledger, "a", 4)
    assert desk.head() == 0
    go(ledger, "b", 3)
    assert desk.head() == 30
    go(ledger, "b", 5)
    assert desk.head() == 40, "never beyond the pipeline's checkpoint"


def test_a_sink_that_is_too_far_behind_loses_its_place_and_it_is_said(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.write(5)
    ledger = desk.ledger(keep=1, a=True, b=False)
    go(ledger, "a", 4)
    assert desk.head() > 0
    begin = ledger.begin(ledger.policy.group_of("b"))
    assert (begin.offset, begin.position) == (desk.head(), position(desk.head() // TX))
    assert begin.note == f"lost {desk.head()} events between 0 and {desk.head() - 1}"
    (record,) = [r for r in caplog.records if r.getMessage() == "stream.place_lost"]
    fields: dict[str, Any] = record.__dict__["fields"]
    assert (record.levelno, fields["sink"], fields["first"], fields["last"]) == (logging.ERROR, "b", 0, desk.head() - 1)
    go(ledger, "b", 5)
    kept = desk.store.load("p:b")
    assert kept is not None
    assert kept.note == begin.note, "it stays until somebody moves the position"
    assert ledger.begin(ledger.policy.group_of("b")).offset == 50


def test_events_that_are_lost_later_are_added_to_those_before(desk: Desk) -> None:
    desk.write(5)
    ledger = desk.ledger(keep=1, a=True, b=False)
    b = ledger.policy.group_of("b")
    go(ledger, "a", 4)
    assert ledger.begin(b).offset == 40
    go(ledger, "b", 5)
    desk.write(4)
    go(ledger, "a", 8)
    assert ledger.begin(b).note == "lost 70 events between 0 and 79"
    assert ledger.lost_events(b) == 70
    assert desk.state.lost_ranges("p", "b") == [LostRange(0, 40, 40), LostRange(50, 80, 30)]
    assert desk.ledger(keep=1, a=True, b=False).lost_events(b) == 70, "also after a restart"


def test_a_loss_that_was_noted_before_a_crash_is_noted_once(desk: Desk) -> None:
    """The state is written before the position moves; killed in between, the loss is found again, and has grown."""
    desk.write(5)
    ledger = desk.ledger(keep=1, a=True, b=False)
    b = ledger.policy.group_of("b")
    go(ledger, "a", 3)
    desk.state.add_lost_range("p", "b", LostRange(0, desk.head(), desk.head()))
    go(ledger, "a", 4)
    ledger = desk.ledger(keep=1, a=True, b=False)
    ledger.begin(b)
    assert desk.state.lost_ranges("p", "b") == [LostRange(0, 40, 40)]
    assert ledger.lost_events(b) == 40


def test_a_loss_that_an_older_version_left_as_a_note_is_kept_as_fields(desk: Desk) -> None:
    desk.write(5)
    desk.store.save("p:b", Checkpoint(40, position(4), note="lost 30 events between 0 and 39"), expect=0)
    desk.store.save("p", Checkpoint(40, position(4)), expect=0)
    ledger = desk.ledger(a=True, b=False)
    assert ledger.lost_events(ledger.policy.group_of("b")) == 30
    assert desk.state.lost_ranges("p", "b") == [LostRange(0, 40, 30)]
    go(ledger, "b", 5)
    kept = desk.store.load("p:b")
    assert kept is not None
    assert kept.note == "lost 30 events between 0 and 39"


def test_a_note_that_an_operator_wrote_is_no_loss(desk: Desk) -> None:
    desk.write(5)
    desk.store.save("p:b", Checkpoint(40, position(4), note="lost 30 events between 0 and 39, copied"), expect=0)
    ledger = desk.ledger(a=True, b=False)
    assert ledger.lost_events(ledger.policy.group_of("b")) == 0


def test_a_sink_that_joins_the_others_has_lost_nothing_any_more(desk: Desk) -> None:
    desk.write(5)
    ledger = desk.ledger(keep=1, a=True, b=False)
    go(ledger, "a", 4)
    ledger.begin(ledger.policy.group_of("b"))
    assert desk.state.lost_ranges("p", "b")
    desk.ledger(a=True, b=True)
    assert desk.state.lost_ranges("p", "b") == []


def test_a_log_that_cannot_be_trimmed_holds_up_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk.write(3)
    ledger = desk.ledger(a=True)

    def denied(*args: object, **options: object) -> int:
        raise LogError("cannot remove: permission denied")

    monkeypatch.setattr(module, "trim", denied)
    go(ledger, "a", 2)
    assert (desk.offset("p"), desk.log.acknowledged()) == (20, Tail(20, position(2)))
    assert "stream.not_trimmed" in caplog.text


def test_where_the_log_no_longer_has_what_the_checkpoint_waits_for_nothing_starts(desk: Desk) -> None:
    desk.write(3)
    ledger = desk.ledger(a=True)
    go(ledger, "a", 2)
    desk.store.save("p", Checkpoint(10, position(1)), expect=1, force=True)  # a backup of yesterday, say
    ledger = desk.ledger(a=True)
    with pytest.raises(LogCorrupt, match="at offset 10, but the log begins at 20") as raised:
        ledger.begin(ledger.policy.group_of("a"))
    assert not is_retryable(raised.value), "trying again would only look alive"
    assert "checkpoints set FILE 20" in raised.value.fix


def test_room_for_a_sink_that_is_behind_is_bounded_by_its_setting(desk: Desk) -> None:
    desk.write(8)
    segment = sum(file.stat().st_size for file in Path(desk.uri).glob(f"{0:020d}*"))
    ledger = desk.ledger(keep=3 * segment + segment // 2, a=True, b=False)
    go(ledger, "a", 7)
    assert desk.head() == 40
    assert ledger.position(ledger.policy.group_of("a")).offset == 70


class Lossy(SqliteCheckpoints):
    """A stand-in for a store whose answers to saves get lost, `lost` times, and that cannot be asked `deaf` times."""

    lost = deaf = 0

    def save(self, pipeline: str, checkpoint: Checkpoint, *, expect: int, force: bool = False) -> Checkpoint:
        stored = super().save(pipeline, checkpoint, expect=expect, force=force)
        if self.lost:
            self.lost -= 1
            raise CheckpointError("the connection broke before the answer came")
        return stored

    def load(self, pipeline: str) -> Checkpoint | None:
        if self.deaf:
            self.deaf -= 1
            raise CheckpointError("the connection is broken")
        return super().load(pipeline)


def test_a_checkpoint_that_was_saved_without_an_answer_counts(desk: Desk, tmp_path: Path) -> None:
    desk.store.close()
    desk.store = store = Lossy(SqliteConfig(), state_dir=tmp_path)
    desk.write(4)
    ledger = desk.ledger(a=True, b=False)
    go(ledger, "a", 1)
    store.lost = 1
    go(ledger, "a", 2)
    assert desk.offset("p") == 20
    go(ledger, "a", 3)
    assert desk.offset("p") == 30


def test_a_checkpoint_that_was_saved_without_an_answer_by_a_store_that_went_away_is_no_conflict_later(
    desk: Desk, tmp_path: Path
) -> None:
    desk.store.close()
    desk.store = store = Lossy(SqliteConfig(), state_dir=tmp_path)
    desk.write(4)
    ledger = desk.ledger(a=True)
    go(ledger, "a", 1)
    store.lost = store.deaf = 1
    with pytest.raises(CheckpointError) as failed:
        go(ledger, "a", 2)
    assert is_retryable(failed.value)
    assert ledger.begin(ledger.policy.groups[0]).offset == 10
    go(ledger, "a", 3)
    assert desk.offset("p") == 30


def test_a_checkpoint_inside_a_transaction_says_where_the_transaction_begins(desk: Desk) -> None:
    desk.write(2)
    ledger = desk.ledger("quorum", 1, a=True, b=True)
    ledger.advance(ledger.policy.group_of("a"), 14, position(1), base=10)
    kept = desk.store.load("p")
    assert kept is not None
    assert (kept.offset, kept.position, kept.begins) == (14, position(1), 10)


def test_no_batch_waits_until_objects_of_the_log_are_removed(desk: Desk) -> None:
    class Slow(ObjectStore):
        def remove(self, name: str) -> None:
            assert may_remove.wait(60)
            super().remove(name)

    may_remove = threading.Event()
    memory, _ = pafs.FileSystem.from_uri("mock://")
    log = LogWriter.open(ObjectStore(memory, "log"), LogConfig.model_validate({}))
    for number in range(1, 4):
        log.append(make_change(TX, number=number))
    policy = Policy.of("p", CommitPolicy(mode="all"), {"a": True})
    ledger = Ledger(policy, desk.store, Slow(memory, "log"), state=desk.state)
    ledger.open()
    for number in range(1, 4):
        go(ledger, "a", number)
    assert desk.offset("p") == 3 * TX
    reader = LogReader(ObjectStore(memory, "log"))
    assert reader.head() == 0, "nothing could be removed yet"
    may_remove.set()
    eventually(lambda: reader.head() == TX)  # what the first batch delivered
    log.close()
