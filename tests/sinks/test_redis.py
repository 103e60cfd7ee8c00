"""The redis sink against a real Valkey: entries in order, none twice, none skipped that is not there."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
import redis
from pydantic import ValidationError

from tests.support.blocks import make_block, make_table
from tests.support.deliveries import make_deliveries, make_events
from tests.support.seed import run_seed
from tidemill.config.secrets import mask
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Poisoned, Refused, is_retryable
from tidemill.formats.json import JsonFormat
from tidemill.lab.servers.process import free_port
from tidemill.lab.servers.valkey import Valkey
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery
from tidemill.sinks._shared import in_order
from tidemill.sinks.redis import RedisConfig, RedisSink
from tidemill.sinks.redis.client import RedisAddress
from tidemill.sinks.redis.commands import scan

_names = itertools.count(1)


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey({"appendonly": "yes", "appendfsync": "no"}) as server:
        yield server


@pytest.fixture
def client(valkey: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis(port=valkey.port) as connection:
        yield connection


@pytest.fixture
def stream() -> str:
    return f"stream-{next(_names)}"


@pytest.fixture
def sinks(valkey: Valkey) -> Iterator[Any]:
    made: list[RedisSink] = []

    def make(stream: str, uri: str = valkey.uri, **options: Any) -> RedisSink:
        made.append(RedisSink(RedisConfig(id="r", uri=uri, stream=stream, **options)))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def batch(blocks: Any, start: int, end: int) -> Delivery:
    (delivery,) = make_deliveries(blocks, start, end, lanes=1)
    return delivery


def delivery_of(*blocks: Block, start: int = 0) -> Delivery:
    end = max((int(b.offsets()[-1]) for b in blocks), default=start - 1) + 1
    return Delivery("shop", "orders", start, end, 0, 1, lambda: iter(blocks))


def offsets(client: redis.Redis, stream: str) -> list[int]:
    return [int(entry.partition(b"-")[0]) - 1 for entry, _ in client.xrange(stream)]


def note_of(stream: str) -> str:
    return f"tidemill:{{{stream}}}"


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
            stream, warm, start = f"stream-{next(_names)}", None, 0
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


class TestTrouble:
    def test_a_second_writer_is_noticed_and_the_next_try_goes_on_behind_it(
        self, sinks: Any, client: redis.Redis, stream: str
    ) -> None:
        blocks = make_events(60)
        slow = sinks(stream)
        slow.write(batch(blocks, 0, 20))
        sinks(stream).write(batch(blocks, 20, 40))
        with pytest.raises(DeliveryError, match="another writer") as raised:
            slow.write(batch(blocks, 20, 60))
        assert is_retryable(raised.value)
        assert slow.write(batch(blocks, 20, 60)).ok
        assert offsets(client, stream) == list(range(60))

    def test_a_key_that_is_no_stream_is_refused(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        client.set(stream, "x")
        with pytest.raises(Refused, match="WRONGTYPE"):
            sinks(stream).write(delivery_of(make_block(3)))

    def test_rows_that_cannot_be_routed_are_named_all_at_once(
        self, sinks: Any, client: redis.Redis, stream: str
    ) -> None:
        with pytest.raises(Poisoned) as raised:
            sinks(stream + "-${after.note}").write(delivery_of(make_block(10)))
        assert sorted(raised.value.reasons) == [0, 3, 6, 9]
        rest = delivery_of(make_block(10)).without([0, 3, 6, 9])
        assert sinks(stream + "-${after.note}").write(rest).events == 6

    def test_a_full_server_is_worth_a_retry_and_leaves_no_gap(self, stream: str, sinks: Any) -> None:
        with Valkey({"maxmemory": "6mb", "maxmemory-policy": "noeviction"}) as full:
            sink = sinks(stream, full.uri)
            with pytest.raises(DeliveryError, match="OOM") as raised:
                sink.write(delivery_of(make_block(20_000)))
            assert is_retryable(raised.value)
            with redis.Redis(port=full.port) as admin:
                reached = offsets(admin, stream)
                assert reached == list(range(len(reached)))
                assert 0 < len(reached) < 20_000
                admin.config_set("maxmemory", "100mb")
                assert sink.write(delivery_of(make_block(20_000))).skipped == len(reached)
                assert offsets(admin, stream) == list(range(20_000))

    def test_too_few_replicas_are_named_and_worth_a_retry(self, stream: str, sinks: Any) -> None:
        with Valkey({"min-replicas-to-write": "1"}) as alone:
            for dead_letter in (False, True):
                delivery = dataclasses.replace(delivery_of(make_block(1)), redelivered=dead_letter)
                with pytest.raises(DeliveryError, match="did not take the events: NOREPLICAS") as raised:
                    sinks(stream, alone.uri).write(delivery)
                assert is_retryable(raised.value)
                assert "min-replicas-to-write" in raised.value.fix

    def test_a_note_that_is_no_hash_is_refused(self, sinks: Any, client: redis.Redis, stream: str) -> None:
        client.set(note_of(stream), "x")
        with pytest.raises(Refused, match="WRONGTYPE"):
            sinks(stream).write(delivery_of(make_block(3)))

    def test_a_replica_takes_no_writes_and_is_worth_a_retry(self, valkey: Valkey, stream: str, sinks: Any) -> None:
        with Valkey({"replicaof": f"127.0.0.1 {valkey.port}"}) as replica:
            with pytest.raises(DeliveryError) as raised:
                sinks(stream, replica.uri).write(delivery_of(make_block(10)))
            assert is_retryable(raised.value)
            assert any("replica" in c.detail for c in sinks(stream, replica.uri).doctor())

    def test_a_login_that_fails_is_refused_and_no_secret_is_told(self, stream: str, sinks: Any) -> None:
        with Valkey({"requirepass": "right-horse"}) as guarded:
            for login in ("", ":wrong-horse@"):
                uri = f"redis://{login}127.0.0.1:{guarded.port}/0"
                with pytest.raises(Refused) as raised:
                    sinks(stream, uri).write(delivery_of(make_block(1)))
                assert "horse" not in str(raised.value)
                assert [c.outcome for c in sinks(stream, uri).doctor()] == [Outcome.FAIL]
            uri = f"redis://:right-horse@127.0.0.1:{guarded.port}/0"
            sink = sinks(stream, uri)
            assert sink.write(delivery_of(make_block(1))).events == 1
            assert "horse" not in str(mask(sink.config))

    def test_a_server_that_goes_away_is_worth_a_retry_and_nothing_is_lost(self, stream: str, sinks: Any) -> None:
        with Valkey({"appendonly": "yes", "appendfsync": "always"}) as server:
            blocks = make_events(60)
            sink = sinks(stream, server.uri)
            sink.write(batch(blocks, 0, 30))
            server.stop(kill=True)
            for _ in range(2):
                with pytest.raises(DeliveryError) as raised:
                    sink.write(batch(blocks, 30, 60))
                assert is_retryable(raised.value)
            server.start()
            assert sink.write(batch(blocks, 30, 60)).events == 30
            with redis.Redis(port=server.port) as reader:
                assert offsets(reader, stream) == list(range(60))


class TestTopologies:
    def test_a_cluster_gets_each_stream_at_the_node_that_has_its_slot(self, sinks: Any) -> None:
        settings = {"cluster-enabled": "yes", "cluster-require-full-coverage": "no"}
        with Valkey(settings) as one, Valkey(settings) as two:
            nodes = [redis.Redis(port=server.port) for server in (one, two)]
            nodes[0].execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
            nodes[1].execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
            nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", two.port, two.bus_port)
            _wait_until(lambda: all(b"cluster_state:ok" in n.execute_command("CLUSTER", "INFO") for n in nodes))
            _wait_until(lambda: all(len(n.execute_command("CLUSTER", "SLOTS")) == 2 for n in nodes))
            uri = f"redis+cluster://127.0.0.1:{one.port},127.0.0.1:{two.port}"
            sink = sinks("s:${after.quantity}", uri)
            for _ in range(2):
                receipt = sink.write(batch(make_events(60), 0, 60))
                assert receipt.events + receipt.skipped == 60
            kept = [sorted(n.keys("s:*")) for n in nodes]
            assert all(kept)
            assert sum(n.xlen(key) for n, keys in zip(nodes, kept, strict=True) for key in keys) == 60
            for name in ("plain", "in{tag}s", "odd}", "odd{}"):
                fresh = sinks(name, uri)
                fresh.write(batch(make_events(60), 0, 20))
                assert sinks(name, uri).write(batch(make_events(60), 0, 20)).skipped == 20
                (node,) = [
                    n for n in nodes if n.execute_command("CLUSTER", "COUNTKEYSINSLOT", n.cluster("KEYSLOT", name))
                ]
                node.xtrim(name, maxlen=0, approximate=False)
                assert sinks(name, uri).write(batch(make_events(60), 0, 20)).skipped == 20
                node.xadd(name, {"foo": "bar"})
                with pytest.raises(DeliveryError, match="another writer"):
                    fresh.write(batch(make_events(60), 20, 40))
                with pytest.raises(Refused, match="somebody else wrote") as stopped:
                    fresh.write(batch(make_events(60), 20, 40))
                if "odd" not in name:  # else no other name is in the same slot
                    node.execute_command("RENAME", *re.findall(r'RENAME "(.*?)" "(.*?)"', stopped.value.fix)[0])
                    assert sinks(name, uri).write(batch(make_events(60), 20, 40)).events == 20
            assert any(c.name == "server" and c.outcome is Outcome.PASS for c in sink.doctor())
            # Asked without the cluster's map, a node says where the slot is: no reason to drop anything.
            wrong = sinks("s:${after.quantity}", two.uri)
            with pytest.raises(DeliveryError, match="MOVED") as raised:
                wrong.write(batch(make_events(60), 0, 60))
            assert is_retryable(raised.value)
            for node in nodes:
                node.close()

    def test_a_cluster_that_is_away_is_worth_a_retry(self, sinks: Any, stream: str) -> None:
        with pytest.raises(DeliveryError, match="cannot be reached") as raised:
            sinks(stream, f"redis+cluster://127.0.0.1:{free_port()}").write(delivery_of(make_block(1)))
        assert is_retryable(raised.value)

    def test_sentinels_are_asked_for_the_master(
        self, valkey: Valkey, sinks: Any, client: redis.Redis, stream: str
    ) -> None:
        with Valkey(sentinel_of={"shop": valkey}) as sentinel:
            sink = sinks(stream, f"redis+sentinel://127.0.0.1:{sentinel.port}/shop")
            assert sink.write(delivery_of(make_block(5))).events == 5
            assert offsets(client, stream) == list(range(5))
            with pytest.raises(DeliveryError):
                sinks(stream, f"redis+sentinel://127.0.0.1:{sentinel.port}/other").write(delivery_of(make_block(5)))


class TestConfig:
    @pytest.mark.parametrize(
        "uri",
        [
            "",
            "localhost:6379",
            "http://localhost",
            "redis+sentinel://localhost",
            "redis+cluster://h:x",
            "redis+cluster://h/3",
        ],
    )
    def test_a_uri_that_leads_nowhere_is_an_error(self, uri: str) -> None:
        with pytest.raises(ValidationError):
            RedisConfig(id="r", uri=uri, stream="s")

    def test_uris_of_clusters_and_sentinels_are_read(self) -> None:
        address = RedisAddress.parse("rediss+sentinel://app:p%40ss@a:1,b,[::1]:3/shop/2?sentinel_password=x")
        assert (address.user, address.password, address.sentinel_password) == ("app", "p@ss", "x")
        assert address.hosts == (("a", 1), ("b", 26379), ("::1", 3))
        assert (address.service, address.database) == ("shop", 2)

    def test_where_an_error_happened_is_said_without_the_login(self) -> None:
        config = RedisConfig(id="r", uri="redis://app:secret@host:6379/0?password=secret", stream="s")
        assert config.where == 'sink "r", redis://host:6379/0'

    def test_a_template_that_names_nothing_is_an_error(self) -> None:
        with pytest.raises(ValidationError, match="sorce"):
            RedisConfig(id="r", uri="redis://h", stream="${sorce.table}")


def test_doctor_says_what_it_found(sinks: Any, client: redis.Redis, stream: str) -> None:
    checks = {c.name: c for c in sinks(stream).doctor()}
    assert {c.outcome for c in checks.values()} == {Outcome.PASS}
    client.set(stream, "x")
    assert {c.name for c in sinks(stream).doctor() if c.outcome is Outcome.FAIL} == {"stream"}
    (check,) = sinks(stream, f"redis://127.0.0.1:{free_port()}").doctor()
    assert check.outcome is Outcome.FAIL


def test_replies_are_counted_wherever_the_reads_cut_them() -> None:
    replies = b"$3\r\n1-0\r\n+OK\r\n:5\r\n*2\r\n$-1\r\n-ERR no\r\n$0\r\n\r\n"
    whole = np.frombuffer(replies, np.uint8)
    assert scan(whole, len(replies))[:2] == (len(replies), 6)
    _, _, start, end = scan(whole, len(replies))
    assert replies[start:end] == b"ERR no"
    for cut in range(len(replies)):
        consumed, count, *_ = scan(whole, cut)
        rest = np.frombuffer(replies[consumed:], np.uint8)
        assert count + scan(rest, len(rest))[1] == 6


def _wait_until(ready: Any) -> None:
    import time

    deadline = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)
