from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidemill.dlq import DeadLetterRecord, DeadLetters, DlqConfig, pack, unpack
from tidemill.errors import DeadLettersFull, DeliveryError, is_retryable

Open = Callable[..., DeadLetters]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Open]:
    opened: list[DeadLetters] = []

    def store(**limits: Any) -> DeadLetters:
        opened.append(DeadLetters(tmp_path / "dlq.sqlite", DlqConfig(**limits)))
        return opened[-1]

    yield store
    for each in opened:
        each.close()


def dead_letter(
    offset: int, sink: str = "s", *, reason: str = "too large", payload: bytes = b"x" * 10
) -> DeadLetterRecord:
    identity = f"src:0/{offset:X}:0"
    return DeadLetterRecord(sink, "src", "public.t", "insert", offset, f"0/{offset:X}", 0, identity, reason, payload)


def offsets(store: DeadLetters, **chosen: Any) -> list[int]:
    return [dead_letter.offset for dead_letter in store.dead_letters(**chosen)]


def test_letters_travel_and_come_back_as_they_were() -> None:
    dead_letters = (dead_letter(1), dead_letter(2, "other", payload=b"\0\xff"))
    assert unpack(pack(dead_letters)) == dead_letters
    assert unpack(pack(())) == ()


def test_a_letter_is_kept_whole_with_its_times_and_a_number(store: Open) -> None:
    dlq = store()
    dlq.put([dead_letter(5)])
    (head,) = dlq.dead_letters()
    assert (head.number, head.attempts, head.payload) == (1, 1, b"")
    whole = dlq.dead_letter(head.number)
    assert whole is not None
    assert whole.payload == b"x" * 10
    assert whole.first_at == whole.last_at != ""
    assert dlq.dead_letter(99) is None


def test_the_same_letter_twice_is_one_letter_unchanged(store: Open) -> None:
    dlq = store(max_letters=1, overflow="block")
    assert len(dlq.put([dead_letter(5)]).new) == 1
    before = dlq.dead_letters()
    assert dlq.put([dead_letter(5, reason="another word for it"), dead_letter(5)]).new == ()
    assert dlq.dead_letters() == before


def test_two_sinks_may_refuse_the_same_event(store: Open) -> None:
    dlq = store()
    dlq.put([dead_letter(5, "a"), dead_letter(5, "b"), dead_letter(3, "a")])
    assert dlq.count() == {"a": 2, "b": 1}
    assert offsets(dlq) == [3, 5, 5]
    assert offsets(dlq, sink="a") == [3, 5]
    assert offsets(dlq, sink="a", limit=1) == [3]
    assert offsets(dlq, numbers=[2]) == [5]


@pytest.mark.parametrize("limits", [{"max_letters": 2}, {"max_bytes": 25}], ids=["letters", "bytes"])
@pytest.mark.parametrize("overflow", ["block", "halt"])
def test_where_nothing_may_be_dropped_a_full_store_takes_all_of_a_batch_or_none(
    store: Open, limits: dict[str, int], overflow: str
) -> None:
    dlq = store(**limits, overflow=overflow)
    dlq.put([dead_letter(1)])
    with pytest.raises(DeadLettersFull, match="no room for 2 more") as raised:
        dlq.put([dead_letter(2), dead_letter(3)])
    assert "dlq purge" in raised.value.fix
    assert is_retryable(raised.value), "room may be made"
    assert offsets(dlq) == [1]
    dlq.remove([1])
    dlq.put([dead_letter(2), dead_letter(3)])
    assert offsets(dlq) == [2, 3]


@pytest.mark.parametrize("limits", [{"max_letters": 3}, {"max_bytes": 35}], ids=["letters", "bytes"])
def test_drop_oldest_makes_room_and_says_what_went(store: Open, limits: dict[str, int]) -> None:
    dlq = store(**limits, overflow="drop_oldest")
    dlq.put([dead_letter(9), dead_letter(2)])
    kept = dlq.put([dead_letter(4), dead_letter(5)])
    assert [dropped.offset for dropped in kept.dropped] == [9], "oldest by arrival"
    assert offsets(dlq) == [2, 4, 5]


def test_what_is_larger_than_the_whole_store_is_never_dropped_to_fit(store: Open) -> None:
    dlq = store(max_letters=2, overflow="drop_oldest")
    dlq.put([dead_letter(1)])
    with pytest.raises(DeadLettersFull):
        dlq.put([dead_letter(2), dead_letter(3), dead_letter(4)])
    assert offsets(dlq) == [1]


def test_an_attempt_in_vain_is_counted_with_its_reason(store: Open) -> None:
    dlq = store()
    dlq.put([dead_letter(5)])
    dlq.note_failure(1, "still too large")
    (head,) = dlq.dead_letters()
    assert (head.attempts, head.reason) == (2, "still too large")
    assert head.last_at >= head.first_at


def test_letters_outlive_the_process_and_numbers_are_not_reused(store: Open) -> None:
    dlq = store()
    dlq.put([dead_letter(1), dead_letter(2)])
    assert dlq.remove([2, 77]) == 1
    dlq.close()
    again = store()
    again.put([dead_letter(3)])
    assert [kept.number for kept in again.dead_letters()] == [1, 3]


def test_a_file_that_is_no_store_is_an_error_that_says_where(tmp_path: Path) -> None:
    (tmp_path / "dlq.sqlite").write_text("not a database, but long enough to be one" * 100)
    dlq = DeadLetters(tmp_path / "dlq.sqlite")
    with pytest.raises(DeliveryError, match="dead letters cannot be") as raised:
        dlq.put([dead_letter(1)])
    assert "dlq.sqlite" in raised.value.where
