"""One entry per event, in order; none twice."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import orjson
import pytest
import redis

from tests.sinks.redis.support import batch, delivery_of, offsets
from tests.support.blocks import make_block, make_table
from tests.support.deliveries import make_events
from tests.support.seed import run_seed
from tidemill.errors import Refused
from tidemill.formats.json import JsonFormat
from tidemill.model.block import Op
from tidemill.sinks._shared import in_order


class TestEntries:
    def test_carry_the_event_its_key_and_what_happened_to_which_table(
        self, sinks: Any, client: redis.Redis, stream: str
    ) -> None:
        block = make_block(3, ops=[Op.INSERT, Op.UPDATE, Op.DELETE], offsets=[0, 1, 5])
        receipt = sinks(stream).write(delivery_of(block))
        assert (receipt.events, receipt.skipped, receipt.ok) == (3, 0, True)
        entries = client.xrange(stream)
        assert [entry for entry, _ in entries] == [b"1-0", b"2-0", b"6-0"]
        assert [fields[b"op"] for _, fields in entries] == [b"insert", b"update", b"delete"]
        assert {fields[b"table"] for _, fields in entries} == {b"public.orders"}
        assert [fields[b"event"] for _, fields in entries] == JsonFormat().encode(block, "orders").to_pylist()
        assert [fields[b"key"] for _, fields in entries] == JsonFormat().encode_key(block).to_pylist()
        assert [fields[b"id"].decode() for _, fields in entries] == [
            orjson.loads(fields[b"event"])["event_id"] for _, fields in entries
        ]

    def test_have_no_key_field_when_the_table_has_no_key(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        sinks(stream).write(delivery_of(make_block(2, table=make_table(key=(), identity="full"))))
        assert [b"key" in fields for _, fields in client.xrange(stream)] == [False, False]

    def test_of_interleaved_tables_stand_in_the_order_of_their_offsets(
        self, sinks: Any, client: redis.Redis, stream: str
    ) -> None:
        assert sinks(stream).write(batch(make_events(200), 0, 200)).events == 200
        assert offsets(client, stream) == list(range(200))

    def test_go_to_the_stream_that_the_template_names(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        sinks(stream + ":${source.table}:${after.paid}").write(batch(make_events(40), 0, 40))
        found = {
            name: offsets(client, f"{stream}:{name}")
            for name in ("orders:true", "orders:false", "customers:true", "customers:false")
        }
        assert sorted(o for numbers in found.values() for o in numbers) == list(range(40))
        assert found["orders:true"] == list(range(0, 40, 4))

    def test_of_many_groups_all_arrive(
        self, sinks: Any, client: redis.Redis, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(in_order, "WINDOW", 700)
        blocks = [make_block(1000, offsets=range(i * 1000, i * 1000 + 1000)) for i in range(8)]
        assert sinks(stream).write(delivery_of(*blocks)).events == 8000
        assert offsets(client, stream) == list(range(8000))

    def test_beyond_maxlen_are_trimmed_by_the_server(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        sinks(stream, maxlen=500).write(delivery_of(make_block(5000)))
        assert 500 <= client.xlen(stream) < 1000

    def test_of_an_empty_delivery_are_none(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        assert sinks(stream).write(delivery_of()).events == 0
        assert not client.exists(stream)

    def test_are_read_by_a_consumer_group(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        client.xgroup_create(stream, "billing", id="0", mkstream=True)
        sinks(stream).write(delivery_of(make_block(3)))
        ((_, entries),) = client.xreadgroup("billing", "worker-1", {stream: ">"}, count=10)
        assert client.xack(stream, "billing", *[entry for entry, _ in entries]) == 3
        assert client.xpending(stream, "billing")["pending"] == 0


class TestReplay:
    def test_of_a_whole_batch_changes_nothing(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        first, again = sinks(stream), sinks(stream)
        first.write(batch(make_events(60), 0, 60))
        before = client.xrange(stream)
        for sink in (first, again):
            receipt = sink.write(batch(make_events(60), 0, 60))
            assert (receipt.events, receipt.skipped) == (0, 60)
        assert client.xrange(stream) == before

    @pytest.mark.parametrize("end", [40, 60, 100])
    def test_of_a_batch_that_was_cut_off_and_planned_anew_completes_it(
        self, sinks: Any, client: redis.Redis, stream: str, end: int
    ) -> None:
        blocks = make_events(100)
        sinks(stream).write(batch(blocks, 0, 20))
        sinks(stream).write(dataclasses.replace(batch(blocks, 20, 50), end=60))  # killed at 50 of 60
        receipt = sinks(stream).write(batch(blocks, 20, end))
        assert receipt.events + receipt.skipped == end - 20
        sinks(stream).write(batch(blocks, min(end, 60), 100))
        assert offsets(client, stream) == list(range(100))

    def test_at_random_cuts_leaves_every_event_once(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        seed = run_seed()
        chance, blocks, start = random.Random(seed), make_events(200), 0
        while start < 200:
            end = min(200, start + chance.choice([10, 30, 70]))
            reached = chance.randrange(start, end + 1)
            sinks(stream).write(dataclasses.replace(batch(blocks, start, reached), end=end))
            if reached == end and chance.random() < 0.7:
                start = end
        assert offsets(client, stream) == list(range(200)), f"seed {seed}"

    def test_is_known_by_its_witness_when_the_entries_are_trimmed_or_deleted(
        self, sinks: Any, client: redis.Redis, stream: str
    ) -> None:
        blocks = make_events(60)
        sinks(stream).write(batch(blocks, 0, 20))
        sinks(stream).write(batch(blocks, 20, 60))
        client.xtrim(stream, maxlen=0, approximate=False)
        receipt = sinks(stream).write(batch(blocks, 20, 50))
        assert (receipt.events, receipt.skipped) == (0, 30)
        assert client.xlen(stream) == 0

    def test_in_smaller_batches_is_recognised_from_one_to_the_next(
        self, sinks: Any, client: redis.Redis, stream: str
    ) -> None:
        blocks = make_events(60)
        sinks(stream).write(batch(blocks, 0, 60))
        client.xtrim(stream, maxlen=0, approximate=False)
        for start, end in [(0, 10), (0, 20), (20, 40), (20, 30), (30, 60)]:
            assert sinks(stream).write(batch(blocks, start, end)).skipped == end - start
        with pytest.raises(Refused, match="does not show"):  # from the middle, nothing tells that these are the same
            sinks(stream).write(batch(blocks, 10, 20))

    def test_from_before_the_last_batch_is_skipped_while_its_entries_are_there(
        self, sinks: Any, client: redis.Redis, stream: str
    ) -> None:
        blocks = make_events(60)
        for start in (0, 20, 40):
            sinks(stream).write(batch(blocks, start, start + 20))
        assert sinks(stream).write(batch(blocks, 0, 60)).skipped == 60
        assert offsets(client, stream) == list(range(60))


def test_a_dead_letter_that_is_sent_again_stands_behind_and_disturbs_no_replay(
    sinks: Any, client: redis.Redis, stream: str
) -> None:
    blocks = make_events(60)
    sinks(stream).write(batch(blocks, 0, 40).without([7]))
    dead_letter = dataclasses.replace(batch(blocks, 7, 8), redelivered=True)
    for _ in range(2):
        assert sinks(stream).write(dead_letter).events == 1
    assert [entry for entry, _ in client.xrange(stream)][-3:] == [b"40-0", b"40-1", b"40-2"]
    assert sinks(stream).write(batch(blocks, 0, 40).without([7])).skipped == 39
    assert sinks(stream).write(batch(blocks, 40, 60)).events == 20
    found = [orjson.loads(fields[b"event"])["offset"] for _, fields in client.xrange(stream)]
    assert found == [*range(7), *range(8, 40), 7, 7, *range(40, 60)]
    fresh = f"{stream}-fresh"
    assert sinks(fresh).write(dead_letter).events == 1
    assert offsets(client, fresh) == [7]
