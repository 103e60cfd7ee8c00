"""The judge is judged: a replay that would not notice a lost, doubled or displaced event proves nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.crash.harness import Row, SourceHarness
from tests.crash.replay import Replay

KEYS: dict[str, tuple[str, ...]] = {"items": ("id",), "notes": ()}
Event = dict[str, Any]


def event(offset: int, table: str, op: str, before: Row | None = None, after: Row | None = None, **more: Any) -> Event:
    return {
        "event_id": f"s:0/{offset}:0", "source_id": "s", "position": f"0/{offset}", "ordinal": 0, "offset": offset,
        "table": table, "op": op, "before": before, "after": after, **more,
    }  # fmt: skip


STORY = [
    event(0, "items", "insert", after={"id": 1, "text": "long", "n": 1}),
    event(1, "items", "update", after={"id": 1, "n": 2}, unchanged=["text"]),
    event(2, "items", "insert", after={"id": 2, "text": "b", "n": 1}),
    event(3, "items", "update", before={"id": 1}, after={"id": 3, "n": 2}, unchanged=["text"]),
    event(4, "items", "delete", before={"id": 2}),
    event(5, "notes", "insert", after={"what": "old"}),
    event(6, "notes", "truncate"),
    event(7, "notes", "insert", after={"what": "same"}),
    event(8, "notes", "insert", after={"what": "same"}),
    event(9, "notes", "update", before={"what": "same"}, after={"what": "other"}),
]
ROWS: dict[str, list[Row]] = {
    "items": [{"id": 3, "text": "long", "n": 2, "added_later": None}],
    "notes": [{"what": "same"}, {"what": "other"}],
}


def complaints(events: list[Event], rows: dict[str, list[Row]] = ROWS) -> list[str]:
    database = SimpleNamespace(
        keys=KEYS, rows=rows.__getitem__, tally=lambda: Counter((e["table"], e["op"]) for e in STORY)
    )
    replay = Replay(KEYS)
    replay.take(events)
    return replay.compare(cast(SourceHarness, database))


def test_a_complete_story_is_accepted() -> None:
    assert complaints(STORY) == []


@pytest.mark.parametrize("lost", range(len(STORY)))
def test_any_lost_event_is_noticed(lost: int) -> None:
    assert complaints(STORY[:lost] + STORY[lost + 1 :])


def test_a_repeated_event_is_counted_and_changes_nothing() -> None:
    replay = Replay(KEYS)
    replay.take([*STORY[:5], *STORY[2:]])
    assert (replay.duplicates, replay.events) == (3, len(STORY))
    assert complaints([*STORY[:5], *STORY[2:]]) == []


@pytest.mark.parametrize(("left", "right"), [(0, 1), (1, 3), (2, 4), (5, 6), (6, 7)])
def test_events_of_one_key_or_around_a_truncate_in_the_wrong_order_are_noticed(left: int, right: int) -> None:
    story = list(STORY)
    story[left], story[right] = story[right], story[left]
    assert complaints(story)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda story: story[0].update(after={"id": 1, "text": "wrong", "n": 1}),
        lambda story: story[1].update(after={"id": 1, "n": 2, "text": None}, unchanged=[]),
        lambda story: story[3].update(after={"id": 3, "n": 99}),
        lambda story: story[7].update(after={"what": "else"}),
        lambda story: story[8].update(event_id="s:0/7:0"),
        lambda story: story[9].update(offset=10),
        lambda story: story[4].update(ordinal=1),
    ],
)
def test_a_wrong_value_or_identity_is_noticed(spoil: Callable[[list[Event]], None]) -> None:
    story = [dict(each) for each in STORY]
    spoil(story)
    assert complaints(story)


def test_rows_that_the_events_do_not_explain_are_noticed() -> None:
    assert complaints(STORY, {**ROWS, "items": []})
    assert complaints(STORY, {**ROWS, "notes": [{"what": "same"}, {"what": "same"}]})
