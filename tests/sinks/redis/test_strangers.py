"""Streams that are not ours alone: other logs, other writers, lost notes."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from typing import Any

import pytest
import redis

from tests.sinks.redis.support import batch, delivery_of, names, note_of, offsets
from tests.support.blocks import make_block
from tests.support.deliveries import make_events
from tests.support.seed import run_seed
from tidemill.errors import DeliveryError, Refused
from tidemill.sinks._shared import in_order


class TestAnotherLog:
    def test_whose_offsets_begin_anew_is_refused_and_told_the_way_out(
        self, sinks: Any, client: redis.Redis, stream: str
    ) -> None:
        sinks(stream).write(delivery_of(make_block(50, positions="0/100")))
        before = client.xrange(stream)
        for block in (make_block(20, positions="7/900"), make_block(70, positions="7/900")):
            with pytest.raises(Refused, match=r"ids up to 50-0 and holds other events from offset 0 on") as raised:
                sinks(stream).write(delivery_of(block))
            assert f'DEL "{stream}" "tidemill:{{{stream}}}"' in raised.value.fix
        assert client.xrange(stream) == before
        client.delete(stream, f"tidemill:{{{stream}}}")
        assert sinks(stream).write(delivery_of(make_block(20, positions="7/900"))).events == 20

    def test_of_another_pipeline_is_refused_by_name(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        sinks(stream).write(delivery_of(make_block(50)))
        client.xtrim(stream, maxlen=0, approximate=False)
        other = dataclasses.replace(delivery_of(make_block(50)), pipeline="other")
        with pytest.raises(Refused, match=r'does not show whether .* pipeline "shop", sink "r" wrote it'):
            sinks(stream).write(other)

    def test_or_entries_made_by_hand_are_not_taken_for_a_replay(
        self, sinks: Any, client: redis.Redis, stream: str
    ) -> None:
        client.xadd(stream, {"hello": "world"})
        with pytest.raises(Refused, match="somebody else wrote"):
            sinks(stream).write(delivery_of(make_block(3)))
        assert client.xlen(stream) == 1

    def test_is_not_taken_for_the_same_because_it_begins_at_the_same_offset(
        self, sinks: Any, client: redis.Redis, stream: str
    ) -> None:
        sinks(stream).write(delivery_of(make_block(10, offsets=range(0, 20, 2), positions="0/100")))
        client.xtrim(stream, maxlen=0, approximate=False)
        with pytest.raises(Refused, match="does not show whether it holds these events"):
            sinks(stream).write(delivery_of(make_block(9, offsets=range(1, 19, 2), positions="7/900")))


class TestAStranger:
    """Somebody else's XADD. Ids must rise, so our events after it find no place; none of them may be skipped."""

    @pytest.mark.parametrize("then", ["", "delete", "trim", "note", "note and window"])
    @pytest.mark.parametrize("warm", [True, False], ids=["warm", "fresh"])
    def test_stops_the_sink_until_the_name_is_freed(
        self, sinks: Any, client: redis.Redis, stream: str, warm: bool, then: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blocks, sink = make_events(100), sinks(stream)
        if "window" in then:
            monkeypatch.setattr(in_order, "WINDOW", 5)
        sink.write(batch(blocks, 0, 20))
        strange = client.xadd(stream, {"foo": "bar"})
        if then == "delete":
            client.xdel(stream, strange)
        if then == "trim":
            client.xtrim(stream, maxlen=0, approximate=False)
        if "note" in then:
            client.delete(note_of(stream))
        if warm:
            with pytest.raises(DeliveryError, match="another writer"):
                sink.write(batch(blocks, 20, 40))
        for start, end in [(20, 40), (20, 30), (20, 100), (0, 40), (10, 30), (40, 60)]:
            for _ in range(2):
                with pytest.raises(Refused) as raised:
                    sinks(stream).write(batch(blocks, start, end))
            assert "somebody else wrote" in raised.value.what or "does not show" in raised.value.what
        assert client.xlen(stream) == {"trim": 0, "delete": 20}.get(then, 21)
        client.rename(stream, f"{{{stream}}}:old")
        for start in range(20, 100, 20):
            assert sinks(stream).write(batch(blocks, start, start + 20)).events == 20
        assert offsets(client, stream) == list(range(20, 100))

    def test_is_named_with_the_way_out(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        sinks(stream).write(batch(make_events(40), 0, 20))
        strange = client.xadd(stream, {"foo": "bar"}).decode()
        with pytest.raises(Refused, match=f'somebody else wrote to stream "{stream}", whose last id is now {strange}'):
            sinks(stream).write(batch(make_events(40), 20, 40))
        with pytest.raises(Refused) as raised:
            sinks(stream).write(batch(make_events(40), 20, 40))
        assert f'RENAME "{stream}" "{{{stream}}}:old"' in raised.value.fix

    def test_does_not_stop_a_replay_of_what_is_there(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        sinks(stream).write(batch(make_events(40), 0, 20))
        client.xadd(stream, {"foo": "bar"})
        for start, end in [(0, 20), (5, 15)]:
            assert sinks(stream).write(batch(make_events(40), start, end)).skipped == end - start
        with pytest.raises(Refused, match="somebody else"):
            sinks(stream).write(batch(make_events(40), 20, 40))

    @pytest.mark.parametrize("entry", ["25-5", "25-0", "40-0", "59-7"])
    def test_with_an_id_among_ours_leaves_a_gap_that_no_try_jumps_over(
        self, sinks: Any, client: redis.Redis, stream: str, entry: str
    ) -> None:
        blocks, warm = make_events(100), sinks(stream)
        warm.write(batch(blocks, 0, 20))
        client.xadd(stream, {"foo": "bar"}, id=entry)
        with pytest.raises(DeliveryError, match="another writer"):
            warm.write(batch(blocks, 20, 60))  # Redis takes what is behind the strange entry
        assert max(offsets(client, stream)) == 59
        for start, end in [(20, 60), (20, 100), (0, 60), (20, 22)]:
            for _ in range(2):
                with pytest.raises(Refused, match=r"somebody else wrote|holds other events"):
                    sinks(stream).write(batch(blocks, start, end))

    @pytest.mark.parametrize("entry", ["25-5", "25-0", "21-0", "40-0"])
    def test_with_an_id_among_ours_is_seen_before_anything_is_sent(
        self, sinks: Any, client: redis.Redis, stream: str, entry: str
    ) -> None:
        blocks = make_events(100)
        sinks(stream).write(batch(blocks, 0, 20))
        client.xadd(stream, {"foo": "bar"}, id=entry)
        for start, end in [(20, 60), (0, 60)]:
            with pytest.raises(Refused, match=r"somebody else wrote|holds other events"):
                sinks(stream).write(batch(blocks, start, end))
        assert client.xlen(stream) == 21

    def test_keeps_dead_letters_from_being_sent_behind_it(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        blocks = make_events(60)
        sinks(stream).write(batch(blocks, 0, 40).without([7]))
        dead_letter = dataclasses.replace(batch(blocks, 7, 8), redelivered=True)
        strange = client.xadd(stream, {"foo": "bar"})
        for _ in range(2):
            with pytest.raises(Refused, match="somebody else"):
                sinks(stream).write(dead_letter)
            client.xdel(stream, strange)

    def test_a_note_that_was_lost_is_made_up_for_by_the_entries(
        self, sinks: Any, client: redis.Redis, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(in_order, "WINDOW", 7)
        blocks = make_events(100)
        sinks(stream).write(batch(blocks, 0, 60))
        for start, end in [(0, 60), (20, 40), (40, 50), (50, 60), (50, 80)]:
            client.delete(note_of(stream))
            assert sinks(stream).write(batch(blocks, start, end)).skipped == min(end, 60) - start
        assert offsets(client, stream) == list(range(80))
        client.delete(note_of(stream))
        client.xdel(stream, "71-0")
        with pytest.raises(Refused, match="does not show"):
            sinks(stream).write(batch(blocks, 50, 80))
        assert sinks(stream).write(batch(blocks, 80, 100)).events == 20

    def test_a_trimmed_stream_is_replayed_by_its_note_over_many_groups(
        self, sinks: Any, client: redis.Redis, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(in_order, "WINDOW", 7)
        blocks = make_events(100)
        sinks(stream, maxlen=1).write(batch(blocks, 0, 20))
        sinks(stream, maxlen=1).write(dataclasses.replace(batch(blocks, 20, 70), end=80))  # killed at 70 of 80
        client.xtrim(stream, maxlen=0, approximate=False)
        receipt = sinks(stream, maxlen=1).write(batch(blocks, 20, 80))
        assert (receipt.events, receipt.skipped) == (10, 50)

    def test_no_chance_course_of_events_skips_one_that_was_never_there(
        self, sinks: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(in_order, "WINDOW", 7)
        seed = run_seed()
        chance, blocks = random.Random(seed), make_events(100)
        for _ in range(20):
            stream, warm, start = f"stream-{next(names)}", None, 0
            there: set[int] = set()
            for _ in range(12):
                end = min(100, start + chance.choice([10, 30, 50]))
                reached = chance.choice([end, end, chance.randrange(start, end + 1)])
                warm = warm if warm and chance.random() < 0.5 else sinks(stream)
                try:
                    warm.write(dataclasses.replace(batch(blocks, start, reached), end=end))
                except DeliveryError:
                    warm = None
                    reached = start
                there |= {
                    o for o, f in zip(offsets(client, stream), client.xrange(stream), strict=True) if b"id" in f[1]
                }
                assert set(range(start, reached)) <= there, f"seed {seed}"
                start = chance.choice([start, reached if reached == end else start, max(0, start - 10)])
                match chance.randrange(9):
                    case 0:
                        client.xtrim(stream, maxlen=chance.choice([0, 3, 20]), approximate=False)
                    case 1:
                        client.xdel(stream, f"{start + chance.randrange(20)}-0")
                    case 2:
                        client.delete(note_of(stream))
                    case 3:
                        name = chance.choice(["*", f"{start + chance.randrange(1, 20)}-{chance.choice([0, 3])}"])
                        with contextlib.suppress(redis.ResponseError):  # an id that is not new
                            client.xadd(stream, {"foo": "bar"}, id=name)
