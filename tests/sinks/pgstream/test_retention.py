"""Going back, new groups, and what retention removes."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.sinks.pgstream.support import LONG, Make, batch, key_of, of_keys
from tests.support.blocks import EPOCH, make_block
from tidemill.errors import ConfigError
from tidemill.model.delivery import Delivery
from tidemill.sinks.pgstream import Client, Group


def test_replay_goes_back_by_position_time_or_offset_as_numbers(
    make: Make, client: Client, db: psycopg.Connection[Any]
) -> None:
    places = ("0/9", "0/A0", "0/FFF", "1/0", "10/0", "9/0")  # in the order of text 10/0 would stand before 9/0
    for offset, place in enumerate(sorted(places, key=lambda p: tuple(int(x, 16) for x in p.split("/")))):
        block = make_block(1, positions=place, offsets=[offset], tx_id=offset * 1_000_000)
        make().write(Delivery("shop", "orders", offset, offset + 1, 0, 1, lambda block=block: iter([block])))  # type: ignore[misc]
    group = client.group("orders", "g")
    group.ack(*group.pull(10))
    assert group.replay(lsn="9/0") == 2
    assert [m.lsn for m in group.pull(10)] == ["9/0", "10/0"]
    assert group.replay(lsn="0/A1") == 4
    held = group.pull(10)
    assert group.replay(time=EPOCH + datetime.timedelta(seconds=4)) == 2
    assert group.ack(*held).lost == (5, 6)  # given up by the replay
    assert group.replay(offset=1) == 3  # the group was before the fifth already
    assert [m.offset for m in group.pull(10)] == [1, 2, 3, 4, 5]
    assert group.replay(lsn="FF/0") == 0
    assert group.pull(10) == []
    with pytest.raises(ConfigError, match="one place"):
        group.replay(lsn="0/1", offset=1)


def test_positions_of_other_databases_are_kept_as_text(make: Make, client: Client) -> None:
    block = make_block(1, positions="mysql-bin.000003:4/5")
    make().write(Delivery("shop", "orders", 0, 1, 0, 1, lambda: iter([block])))
    (message,) = client.group("orders", "g").pull()
    assert (message.position, message.lsn) == ("mysql-bin.000003:4/5", None)
    with pytest.raises(ConfigError, match="have no LSN") as raised:
        client.group("orders", "g").replay(lsn="0/1")
    assert "--since" in raised.value.fix


def test_a_new_group_begins_where_it_is_told(make: Make, client: Client) -> None:
    make().write(batch(10))
    latest, earliest = client.group("orders", "l", start="latest"), client.group("orders", "e")
    make().write(batch(20, 10))
    assert [len(g.pull(100)) for g in (latest, earliest)] == [10, 20]
    assert client.group("orders", "l", start="earliest").pull(100) == []  # it exists, and stays where it is


def test_a_consumer_may_come_before_the_first_message_and_wait_for_it(
    make: Make, client: Client, database: str
) -> None:
    group = client.group("orders", "g")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: group.pull(10, wait_seconds=30))
        make().write(batch(10))
        assert len(waiting.result(120)) == 10
    with Client(database) as other, pytest.raises(ConfigError, match='stream "orders" has no group "nobody"'):
        Group(other, "orders", "nobody").pull()


def test_retention_spares_what_a_group_has_not_acked_unless_a_limit_says_so(make: Make, client: Client) -> None:
    make().write(batch(40))
    assert client.sweep(acked_seconds=0) == {}  # nobody has read anything
    slow, quick = client.group("orders", "slow"), client.group("orders", "quick")
    quick.ack(*quick.pull(40))
    first = slow.pull(10)
    slow.ack(*first[:3], *first[4:])
    assert client.sweep(acked_seconds=LONG) == {}
    assert client.sweep(acked_seconds=0) == {"orders": (3, 0)}  # the fourth is in flight
    slow.ack(first[3])
    assert client.sweep(acked_seconds=0) == {"orders": (7, 0)}
    size = client.streams()[0]["bytes"]
    ((removed, unacked),) = client.sweep(max_bytes=size // 2).values()
    assert removed == unacked > 0
    assert client.streams()[0]["bytes"] <= size // 2
    assert slow.pull(100)[0].id == 11 + removed
    ((removed, _),) = client.sweep(max_age_seconds=0.000001).values()
    assert client.streams()[0]["messages"] == 0
    assert slow.pull(100) == []


def test_a_message_that_waits_behind_one_that_retention_removed_is_given(make: Make, client: Client) -> None:
    make().write(of_keys([1, 1, 2]))
    group = client.group("orders", "g", ordered=True)
    first, other = group.pull(10)
    assert [key_of(first), key_of(other)] == [1, 2]
    client.db.execute("UPDATE pgstream.messages SET stored_at = now() - interval '1 day' WHERE id = 1")
    assert client.sweep(max_age_seconds=LONG) == {"orders": (1, 1)}
    assert group.ack(first, other).lost == (first.id,)
    (second,) = group.pull(10)
    assert (second.id, key_of(second)) == (2, 1)


def test_a_delivery_does_not_fail_because_old_messages_cannot_be_removed(
    make: Make, client: Client, db: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    make(stream="other").write(batch(20))
    sink = make(id="t", retention={"every_seconds": 0.001}, lock_timeout_seconds=0.1)
    with db.transaction():
        db.execute("SELECT 1 FROM pgstream.streams WHERE name = 'other' FOR UPDATE")
        assert sink.write(batch(20)).events == 20
    assert "sink.messages_not_removed" in caplog.text
    assert sink.write(batch(40, 20)).events == 20


def test_the_sink_itself_removes_what_retention_allows(make: Make, client: Client) -> None:
    sink = make(retention={"acked_seconds": 0, "every_seconds": 0.001})
    sink.write(batch(20))
    group = client.group("orders", "g")
    group.ack(*group.pull(20))
    sink.write(batch(40, 20))
    assert client.streams()[0]["messages"] == 20


def test_a_pull_looks_at_few_pages_however_long_the_stream_is(
    make: Make, client: Client, db: psycopg.Connection[Any]
) -> None:
    make().write(batch(10))
    db.execute(
        "INSERT INTO pgstream.messages SELECT 1, 10 + g, g, 'x:' || g, 'insert', 't', NULL, NULL, now(), "
        "('{\"id\":' || g % 1000 || '}')::text::bytea, 'x', 'text/plain' FROM generate_series(1, 100000) g"
    )
    for ordered in (False, True):
        group = client.group("orders", f"g{ordered}", ordered=ordered)
        db.execute("UPDATE pgstream.groups SET cursor = 60000 WHERE name = %s", [group.name])
        plan = db.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM pgstream.pull('orders', %s, 50)", [group.name]
        ).fetchone()
        assert plan is not None
        root = plan[0][0]["Plan"]
        assert root["Actual Rows"] == 50
        # 50 messages with their claims in four indexes: hundreds of pages, where a scan of the stream takes thousands.
        assert root["Shared Hit Blocks"] + root["Shared Read Blocks"] < 2500
