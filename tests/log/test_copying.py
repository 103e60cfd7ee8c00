"""Which events of a delivery are left out while their table is copied: those that lack a row, and no others."""

from __future__ import annotations

import pytest

from tests.sinks.state.support import DELETE, INSERT, UPDATE, T, row
from tests.support.changes import Change, changes, delivery
from tidemill.log.copying import find_excused
from tidemill.model.block import Op
from tidemill.model.position import Offset

COPIED: dict[str, Offset | None] = {T.full_name: None}
HOLE: Change = (UPDATE, None, row(1, "b", None))


def move(old: int, new: int) -> Change:
    return (UPDATE, {"id": old}, row(new, "moved", None))


def excused(*events: Change, refused: set[Offset], copying: dict[str, Offset | None] = COPIED) -> set[Offset]:
    """Each event in a block of its own, and in one block: it makes no difference."""
    holes = {n: ["note"] for n, (op, _, new) in enumerate(events) if op is UPDATE and new and new["note"] is None}
    blocks = [
        changes(T, event, first=n, unchanged={0: holes[n]} if n in holes else None) for n, event in enumerate(events)
    ]
    found = find_excused(copying, delivery(*blocks), refused)
    assert found == find_excused(copying, delivery(changes(T, *events, unchanged=holes)), refused)
    return found


def test_updates_before_the_one_that_is_refused_go_with_it() -> None:
    other = (UPDATE, None, row(2, "b", None))
    assert excused(HOLE, other, HOLE, HOLE, refused={2}) == {0, 2}


@pytest.mark.parametrize(
    "between",
    [
        (DELETE, {"id": 1}, None), (INSERT, None, row(1)), move(1, 5), (UPDATE, {"id": 1}, row(5)),
        (Op.TRUNCATE, None, None),
    ],
    ids=["deleted", "inserted", "moved", "moved whole", "truncated"],
)  # fmt: skip
def test_updates_of_a_row_that_had_the_key_before_were_done_and_stay(between: Change) -> None:
    assert excused(HOLE, between, HOLE, HOLE, refused={3}) == {2, 3}


def test_a_row_that_moved_to_the_key_before_has_moved() -> None:
    """Left out, it would be at the destination under its old key for good, and in the way of the next row there."""
    assert excused(move(3, 1), (DELETE, {"id": 1}, None), move(7, 1), refused={2}) == {2}


def test_a_row_that_could_not_move_takes_its_later_updates_with_it() -> None:
    assert excused(move(7, 1), HOLE, HOLE, refused={0, 2}) == {0, 1, 2}


def test_what_comes_after_the_copy_is_not_excused() -> None:
    assert excused(HOLE, HOLE, refused={0, 1}, copying={T.full_name: 1}) == {0}
    assert excused(HOLE, refused={0}, copying={"public.other": None}) == set()
