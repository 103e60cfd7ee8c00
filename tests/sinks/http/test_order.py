"""The order of a key's events holds, whatever is tried again."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from tests.sinks.http.support import delivery_of, events, moving
from tests.support.blocks import make_block, make_table
from tests.support.seed import run_seed
from tidemill.lab.servers.http_receiver import Receiver, ScriptedResponse
from tidemill.model.block import Op
from tidemill.sinks._shared import in_order


class TestOrder:
    def test_of_a_key_holds_while_requests_are_tried_again(self, sinks: Any, receiver: Receiver) -> None:
        """Every third request fails at first; a key's next event must wait for it."""
        numbers = iter(range(10**6))
        receiver.script = lambda request: ScriptedResponse(503 if next(numbers) % 3 == 0 else 200, delay=0.001)
        blocks = [make_block(10, ops=Op.UPDATE, offsets=range(r * 10, r * 10 + 10)) for r in range(12)]
        assert sinks(concurrency=5).write(delivery_of(*blocks)).events == 120
        taken: dict[int, list[int]] = defaultdict(list)
        for event in events(receiver.taken):
            taken[event["after"]["id"]].append(event["offset"])
        assert {key: sorted(numbers) for key, numbers in taken.items()} == dict(taken)
        assert sorted(o for numbers in taken.values() for o in numbers) == list(range(120))
        assert 1 < receiver.busiest <= 5

    @pytest.mark.parametrize("mode", ["event", "batch"])
    def test_holds_between_the_groups_of_a_delivery_which_are_under_way_together(
        self, sinks: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, mode: str
    ) -> None:
        """Couriers that are ahead do not wait for others; all wait where an event has no key."""
        monkeypatch.setattr(in_order, "WINDOW", 10)
        seed = run_seed()
        chance = random.Random(seed)
        receiver.script = lambda request: ScriptedResponse(
            503 if chance.random() < 0.1 else 200, delay=chance.random() / 500
        )
        blocks = [make_block(10, ops=Op.UPDATE, offsets=range(at, at + 10)) for at in range(0, 300, 10)]
        blocks[15] = make_block(10, ops=[Op.UPDATE] * 5 + [Op.TRUNCATE] + [Op.UPDATE] * 4, offsets=range(150, 160))
        assert sinks(concurrency=5, mode=mode, max_events=3).write(delivery_of(*blocks)).events == 300
        found = [(e["op"], e["offset"], (e["after"] or {}).get("id")) for e in events(receiver.taken)]
        before = {offset for _, offset, _ in found[: [op for op, *_ in found].index("truncate")]}
        assert before == set(range(155)), f"seed {seed}"
        for key in range(10):
            mine = [offset for _, offset, number in found if number == key]
            assert mine == sorted(mine), f"seed {seed}"
        assert sorted(offset for _, offset, _ in found) == list(range(300)), f"seed {seed}"
        assert receiver.busiest > 1

    def test_puts_a_truncate_between_what_was_before_and_after_it(self, sinks: Any, receiver: Receiver) -> None:
        ops = [Op.INSERT] * 10 + [Op.TRUNCATE] + [Op.INSERT] * 10
        sinks(concurrency=5).write(delivery_of(make_block(21, ops=ops)))
        assert [e["offset"] for e in events(receiver.taken)] == list(range(21))

    @pytest.mark.parametrize("identity", ["key", "full"])
    @pytest.mark.parametrize("mode", ["event", "batch"])
    def test_of_a_row_holds_where_an_update_in_one_piece_gives_it_another_key(
        self, sinks: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, mode: str, identity: str
    ) -> None:
        """Without its TOAST columns such an update cannot be a delete and an insert. Requests about the old key, the
        update, and requests about the new key go one after the other, whichever courier the keys have."""
        monkeypatch.setattr(in_order, "WINDOW", 10)
        chance = random.Random(seed := run_seed())
        receiver.script = lambda request: ScriptedResponse(
            503 if chance.random() < 0.2 else 200, delay=chance.random() / 300
        )
        blocks = [moving(number, table=make_table(identity=identity)) for number in range(20)]
        assert sinks(concurrency=8, mode=mode, max_events=1).write(delivery_of(*blocks)).events == 60
        found = [event["offset"] for event in events(receiver.taken)]
        rows = [[offset for offset in found if offset // 3 == row] for row in range(20)]
        assert rows == [[3 * row, 3 * row + 1, 3 * row + 2] for row in range(20)], f"seed {seed}"

    def test_does_not_wait_where_updates_bring_their_old_key_unchanged(self, sinks: Any, receiver: Receiver) -> None:
        receiver.script = lambda request: ScriptedResponse(delay=0.05)
        table = make_table(identity="full")
        sinks(concurrency=5).write(delivery_of(make_block(20, table=table, ops=Op.UPDATE)))
        assert receiver.busiest > 1

    def test_of_a_table_without_a_key_holds_for_the_whole_table(self, sinks: Any, receiver: Receiver) -> None:
        table = make_table(key=(), identity="full")
        sinks(concurrency=5).write(delivery_of(make_block(20, table=table)))
        assert [e["offset"] for e in events(receiver.taken)] == list(range(20))
