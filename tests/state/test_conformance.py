"""SQLite and PostgreSQL keep the same promises."""

from __future__ import annotations

import threading

import pytest

from tests.state.conftest import Opener
from tidemill.contracts import ConfirmedPosition, LostRange, StateStore, Transition
from tidemill.model.position import Position
from tidemill.state import store as module

NAMES = ["orders", "orders.eu", "bestellungen-ü", "it's", 'a"b', "%s ?"]


def moved(state: str, at: int = 0, *, reason: str = "") -> Transition:
    return Transition(state, "ada@mill", reason, f"2026-01-31T12:00:{at:02d}+00:00")


def test_a_pipeline_that_never_ran_has_no_state(opener: Opener) -> None:
    store = opener()
    assert store.confirmed("orders") is None
    assert store.transitions("orders") == []
    assert store.spark_start("orders") is None
    assert store.lost_ranges("orders", "lake") == []


def test_another_process_sees_what_was_written_at_once(opener: Opener) -> None:
    writer, reader = opener(), opener()
    for offset in (7, 9):
        writer.confirm("orders", Position(f"0/{offset}"), offset)
        assert reader.confirmed("orders") == ConfirmedPosition(Position(f"0/{offset}"), offset)
    writer.forget_confirmed("orders")
    assert reader.confirmed("orders") is None


def test_offsets_of_64_bits_and_positions_of_any_length_are_kept(opener: Opener) -> None:
    store = opener()
    position = Position(",".join(f"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{n}" for n in range(2000)))
    store.confirm("orders", position, 2**63 - 1)
    store.save_spark_start("orders", 2**63 - 1)
    assert store.confirmed("orders") == ConfirmedPosition(position, 2**63 - 1)
    assert store.spark_start("orders") == 2**63 - 1


def test_transitions_are_newest_first_and_the_first_is_the_current_state(opener: Opener) -> None:
    store = opener()
    steps = [moved("running", 1), moved("failing", 2, reason="the slot is gone"), moved("failed", 3)]
    for step in steps:
        store.record("orders", step)
    assert opener().transitions("orders") == steps[::-1]
    assert store.transitions("orders", 1) == [steps[-1]]


def test_a_transition_whose_answer_was_lost_may_be_recorded_again(opener: Opener) -> None:
    store = opener()
    for _ in range(2):
        store.record("orders", moved("running", 1))
    store.record("orders", moved("stopped", 2))
    store.record("orders", moved("running", 3))
    assert [step.state for step in store.transitions("orders")] == ["running", "stopped", "running"]


def test_a_pipeline_that_starts_again_for_ever_does_not_fill_the_store(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_TRANSITIONS", 5)
    store = opener()
    for number in range(12):
        store.record("orders", moved("running", number))
    assert store.transitions("orders", 100) == [moved("running", number) for number in range(11, 6, -1)]


def test_each_stream_of_a_pipeline_has_its_own_spark_start(opener: Opener) -> None:
    store = opener()
    store.save_spark_start("orders", 10)
    store.save_spark_start("orders", 20, "lake")
    store.save_spark_start("orders", 30)
    assert (store.spark_start("orders"), store.spark_start("orders", "lake")) == (30, 20)
    store.forget_spark_start("orders")
    assert (store.spark_start("orders"), store.spark_start("orders", "lake")) == (None, 20)


def test_lost_ranges_are_fields_in_order_and_a_loss_that_grew_is_one(opener: Opener) -> None:
    store = opener()
    store.add_lost_range("orders", "lake", LostRange(50, 80, 30))
    store.add_lost_range("orders", "lake", LostRange(0, 20, 20))
    store.add_lost_range("orders", "lake", LostRange(0, 40, 40))
    assert opener().lost_ranges("orders", "lake") == [LostRange(0, 40, 40), LostRange(50, 80, 30)]
    assert store.lost_ranges("orders", "other") == []
    store.forget_lost_ranges("orders", "lake")
    assert store.lost_ranges("orders", "lake") == []


def test_pipelines_do_not_share_state_whatever_their_names(opener: Opener) -> None:
    store = opener()
    for number, name in enumerate(NAMES):
        store.confirm(name, Position(str(number)), number)
        store.record(name, moved(name, 1))
        store.add_lost_range(name, name, LostRange(0, number, number))
    for number, name in enumerate(NAMES):
        assert store.confirmed(name) == ConfirmedPosition(Position(str(number)), number)
        assert [step.state for step in store.transitions(name)] == [name]
        assert store.lost_ranges(name, name) == [LostRange(0, number, number)]
    store.forget(NAMES[0])
    assert store.confirmed(NAMES[0]) is None
    assert store.transitions(NAMES[0]) == []
    assert store.confirmed(NAMES[1]) is not None


def test_what_another_directory_of_the_pipeline_left_is_forgotten_but_for_its_history(opener: Opener) -> None:
    store = opener()
    store.confirm("orders", Position("0/1"), 0)
    store.claim("orders", "first")
    assert store.confirmed("orders") is not None, "it was there before directories were noted"
    fill(store)
    store.claim("orders", "first")
    assert store.confirmed("orders") is not None
    store.claim("orders", "second")
    assert (store.confirmed("orders"), store.spark_start("orders")) == (None, None)
    assert store.lost_ranges("orders", "lake") == []
    assert len(store.transitions("orders")) == 1


def test_a_directory_that_an_operator_adopted_keeps_the_state(opener: Opener) -> None:
    store = opener()
    store.claim("orders", "first")
    fill(store)
    store.claim("orders", "second", keep=True)
    store.claim("orders", "second")
    assert store.confirmed("orders") == ConfirmedPosition(Position("0/9"), 9)


def test_many_writers_at_once_leave_every_transition(opener: Opener) -> None:
    stores = [opener() for _ in range(4)]
    start = threading.Barrier(len(stores))

    def write(store: StateStore, who: int) -> None:
        start.wait()
        for number in range(10):
            store.record("orders", Transition("running", f"writer {who}", "", str(number)))

    threads = [threading.Thread(target=write, args=(store, who)) for who, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = stores[0].transitions("orders", 100)
    assert len(found) == 40
    for who in range(4):
        assert [step.at for step in reversed(found) if step.actor == f"writer {who}"] == [str(n) for n in range(10)]


def test_one_store_is_shared_by_threads(opener: Opener) -> None:
    store = opener()

    def write(name: str) -> None:
        for number in range(20):
            store.confirm(name, Position(str(number)), number)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {store.confirmed(name) for name in ("a", "b", "c")} == {ConfirmedPosition(Position("19"), 19)}


def fill(store: StateStore) -> None:
    store.confirm("orders", Position("0/9"), 9)
    store.record("orders", moved("running", 1))
    store.save_spark_start("orders", 9)
    store.add_lost_range("orders", "lake", LostRange(0, 4, 4))
