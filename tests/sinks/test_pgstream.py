"""The queue of the pgstream sink on real servers: what producers write, and what groups of consumers are given."""

from __future__ import annotations

import datetime
import random
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from tests.support.blocks import EPOCH, make_block
from tests.support.deliveries import make_deliveries, make_events
from tests.support.seed import run_seed
from tests.support.terminal import Terminal
from tidemill.contracts import Outcome
from tidemill.errors import ConfigError, DeliveryError, is_retryable
from tidemill.formats.json import JsonFormat
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery
from tidemill.sinks.pgstream import Client, Group, PgstreamConfig, PgstreamSink

Make = Callable[..., PgstreamSink]
GONE = 0.05  # seconds: a visibility that ends while a test waits
LONG = 600.0


@pytest.fixture
def db(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def make(database: str) -> Iterator[Make]:
    made: list[PgstreamSink] = []

    def build(**options: Any) -> PgstreamSink:
        made.append(PgstreamSink(PgstreamConfig(**{"id": "s", "dsn": database, "stream": "orders"} | options)))
        return made[-1]

    yield build
    for sink in made:
        sink.close()


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as made:
        made.install()
        yield made


def batch(events: int = 40, start: int = 0, **options: Any) -> Delivery:
    (delivery,) = make_deliveries(make_events(events), start, events, lanes=1, **options)
    return delivery


def of_keys(keys: list[int], start: int = 0) -> Delivery:
    """One update per key given, in this order."""
    blocks = [
        make_block(1, first_id=key, offsets=[start + i], positions=f"0/{start + i + 1:X}00", ops=Op.UPDATE)
        for i, key in enumerate(keys)
    ]
    return Delivery("shop", "orders", start, start + len(keys), 0, 1, lambda: iter(blocks))


def key_of(message: Any) -> int:
    return int(orjson.loads(message.key)["id"])


def elapse(seconds: float = 2 * GONE) -> None:
    time.sleep(seconds)


def test_a_message_holds_the_event_byte_for_byte_and_what_is_known_of_it(make: Make, client: Client) -> None:
    block = make_block(2, positions="16/B374D848", offsets=(7, 8), ops=[Op.INSERT, Op.DELETE])
    make().write(Delivery("shop", "orders", 7, 9, 0, 1, lambda: iter([block])))
    first, second = client.group("orders", "g").pull()
    assert [first.payload, second.payload] == JsonFormat().encode(block, "orders").to_pylist()
    assert (first.id, first.offset, first.op, second.op, first.table) == (1, 7, "insert", "delete", "public.orders")
    assert (first.event_id, first.lsn, first.position) == ("orders:16/B374D848:0", "16/B374D848", "16/B374D848")
    assert (first.commit_time, first.key) == (EPOCH + datetime.timedelta(microseconds=700), b'{"id":0}')
    assert (first.attempts, first.content_type, first.headers) == (1, "application/json", None)
    assert second.json()["before"] == {"id": 1}


def test_messages_of_interleaved_tables_are_numbered_in_the_order_of_their_offsets(make: Make, client: Client) -> None:
    make().write(batch(60))
    assert [m.offset for m in client.group("orders", "g").pull(100)] == list(range(60))


@pytest.mark.parametrize("form", ["avro", "protobuf", "arrow", "parquet"])
def test_every_wire_format_is_taken(make: Make, client: Client, form: str) -> None:
    make(format=form).write(batch(10))
    messages = client.group("orders", "g").pull()
    assert len(messages) == 10
    assert all(m.payload and m.content_type != "application/json" for m in messages)


def test_attributes_of_cloudevents_in_binary_mode_are_headers(make: Make, client: Client) -> None:
    make(envelope="cloudevents", cloudevents_mode="binary").write(batch(10))
    headers = client.group("orders", "g").pull(1)[0].headers
    assert headers is not None
    assert any("orders:0/100:0" in str(value) for value in headers.values())


def test_a_template_makes_a_stream_of_each_table(make: Make, client: Client) -> None:
    make(stream="cdc.${source.table}").write(batch(20))
    assert [(s["stream"], s["messages"]) for s in client.streams()] == [("cdc.customers", 10), ("cdc.orders", 10)]
    assert {m.table for m in client.group("cdc.orders", "g").pull(20)} == {"public.orders"}


def test_a_replay_inserts_nothing_even_when_messages_are_gone_or_the_record_is(
    make: Make, client: Client, db: psycopg.Connection[Any]
) -> None:
    delivery = batch(40)
    assert make().write(delivery).events == 40
    assert make().write(delivery).skipped == 40
    group = client.group("orders", "g")
    group.ack(*group.pull(40))
    assert client.sweep(acked_seconds=0) == {"orders": (40, 0)}
    assert make().write(delivery).skipped == 40  # the record knows what the table has forgotten
    assert group.pull(40) == []
    make().write(batch(60, 40))
    db.execute("DELETE FROM pgstream.tidemill_positions")
    receipt = make().write(batch(60, 40))
    assert (receipt.events, receipt.skipped) == (0, 20)  # and the table what the record has
    assert len(group.pull(100)) == 20
    ((held,),) = db.execute("SELECT sum(length(payload)) FROM pgstream.messages").fetchall()
    assert client.streams()[0]["bytes"] == held


def test_older_events_that_come_again_are_found_among_new_ones(make: Make, client: Client) -> None:
    make().write(batch(40, 20))
    receipt = make(id="other").write(batch(60))  # another position, the same stream
    assert (receipt.events, receipt.skipped) == (40, 20)
    offsets = [m.offset for m in client.group("orders", "g").pull(100)]
    assert sorted(offsets) == list(range(60))


def test_the_same_offsets_of_another_log_are_other_events(make: Make, client: Client) -> None:
    for number, place in enumerate(("0/100", "0/900")):
        block = make_block(3, positions=place)
        make().write(Delivery("shop", "orders", 0, 3, 0, 1, lambda block=block: iter([block])))  # type: ignore[misc]
        assert len(client.group("orders", f"g{number}").pull()) == 3 * (number + 1)


def test_a_message_is_nobody_elses_until_its_visibility_ends(make: Make, client: Client) -> None:
    make().write(batch(10))
    group = client.group("orders", "g", visibility_seconds=GONE)
    first = group.pull(4)
    assert [m.id for m in group.pull(10)] == [5, 6, 7, 8, 9, 10]
    assert group.ack(*first[:2])
    elapse()
    again = group.pull(10, visibility_seconds=LONG)
    assert [(m.id, m.attempts) for m in again] == [(i, 2) for i in range(3, 11)]


def test_an_ack_is_for_the_claimant_alone(make: Make, client: Client) -> None:
    make().write(batch(10))
    group = client.group("orders", "g", visibility_seconds=GONE)
    late = group.pull(3)
    elapse()
    assert group.ack(late[0])  # nobody has it yet: it is done with
    mine = group.pull(10, visibility_seconds=LONG)
    refused = group.ack(*late)
    assert (refused.done, refused.lost, bool(refused)) == ((), (1, 2, 3), False)
    assert group.nack(late[1]).lost == (2,)
    assert group.extend(late[1]).lost == (2,)
    assert group.ack(*mine).done == tuple(range(2, 11))
    assert group.ack(*mine).lost == tuple(range(2, 11))  # once is enough
    assert client.streams()[0]["groups"][0]["in_flight"] == 0


def test_some_of_a_pull_are_settled_wherever_they_are_in_it(make: Make, client: Client) -> None:
    make().write(batch(20))
    group = client.group("orders", "g")
    first, second = group.pull(6), group.pull(6)
    assert group.settle("ack", first[0].token, [m.id for m in (first[4], second[0], first[1])]).done == (2, 5)
    group.nack(first[0], first[5])
    assert {m.id for m in group.pull(2)} == {1, 6}  # what lies between them is held
    assert group.settle("ack", second[0].token, None).done == tuple(m.id for m in second)
    assert group.settle("ack", first[0].token, None).done == (3, 4)
    assert group.settle("ack", first[0].token, []).done == ()


def test_extend_holds_a_message_and_nack_gives_it_back_after_its_delay(make: Make, client: Client) -> None:
    make().write(batch(10))
    group = client.group("orders", "g", visibility_seconds=GONE)
    held, soon, later = group.pull(3)
    group.extend(held, visibility_seconds=LONG)
    group.nack(later, delay_seconds=LONG)
    group.nack(soon)
    assert [m.id for m in group.pull(1)] == [2]
    elapse()
    assert [m.id for m in group.pull(10)] == [2, *range(4, 11)]
    assert group.ack(held)


def test_after_its_last_attempt_a_message_is_a_dead_letter_of_its_group(make: Make, client: Client) -> None:
    make().write(batch(10))
    group, other = client.group("orders", "g", max_attempts=2, visibility_seconds=GONE), client.group("orders", "other")
    for _ in range(2):
        one, two = group.pull(2)
        group.nack(one, reason="no such customer")
        elapse()
    assert [m.id for m in group.pull(2, visibility_seconds=LONG)] == [3, 4]
    dead_letters = group.dead_letters()
    assert [(d["id"], d["attempts"], d["reason"]) for d in dead_letters] == [
        (1, 2, "no such customer"), (2, 2, "not acked within its visibility timeout"),
    ]  # fmt: skip
    assert dead_letters[1]["payload"] == two.payload
    assert other.dead_letters() == []
    assert len(other.pull(10)) == 10
    assert group.revive(1) == 1
    assert [(m.id, m.attempts) for m in group.pull(1)] == [(1, 1)]


def test_an_ordered_group_gives_a_keys_next_message_only_when_the_one_before_is_settled(
    make: Make, client: Client
) -> None:
    make().write(of_keys([1, 1, 2, 1, 3, 2]))
    group = client.group("orders", "g", ordered=True, max_attempts=2, visibility_seconds=LONG)
    given = group.pull(10)
    assert [m.id for m in given] == [1, 3, 5]
    assert group.pull(10) == []
    group.nack(given[0], delay_seconds=LONG)  # waits, and so do those behind it
    group.ack(given[1])
    assert [m.id for m in group.pull(10)] == [6]
    assert client.streams()[0]["groups"][0]["parked"] == 2


def test_a_dead_letter_lets_the_next_message_of_its_key_go(make: Make, client: Client) -> None:
    make().write(of_keys([1, 1, 1]))
    group = client.group("orders", "g", ordered=True, max_attempts=1, visibility_seconds=GONE)
    assert [m.id for m in group.pull(10)] == [1]
    elapse()
    (second,) = group.pull(10)
    assert second.id == 2
    group.nack(second, reason="bad")
    assert [m.id for m in group.pull(10)] == [3]
    assert [d["id"] for d in group.dead_letters()] == [1, 2]


def test_tables_with_equal_keys_do_not_wait_for_each_other(make: Make, client: Client) -> None:
    make().write(batch(10))  # orders 0 to 4 and customers 0 to 4
    assert len(client.group("orders", "g", ordered=True).pull(10)) == 10


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
def test_consumers_side_by_side_lose_nothing_get_nothing_twice_and_keep_the_order_of_keys(
    make: Make, database: str, client: Client, ordered: bool
) -> None:
    seed = run_seed()
    pick = random.Random(seed)
    total = 400
    keys = [pick.randrange(15) for _ in range(total)]
    client.group("orders", "g", ordered=ordered, max_attempts=1000)
    lock, acked, held = threading.Lock(), [], Counter[int]()
    problems: list[str] = []
    done = threading.Event()

    def consume(number: int) -> None:
        choose = random.Random(seed + number)
        with Client(database) as mine:
            group = Group(mine, "orders", "g")
            while not done.is_set():
                messages = group.pull(choose.randint(1, 12), visibility_seconds=LONG, wait_seconds=0.05)
                with lock:
                    held.update(m.id for m in messages)
                    problems.extend(f"{m.id} is held twice" for m in messages if held[m.id] > 1)
                for message in messages:
                    with lock:
                        held[message.id] -= 1
                        back = choose.random() < 0.15
                        if not back:
                            acked.append((key_of(message), message.id))
                    settled = group.nack(message) if back else group.ack(message)
                    if not settled:
                        problems.append(f"{message.id} was lost")
                with lock:
                    if len(acked) >= total:
                        done.set()

    sink = make()
    with ThreadPoolExecutor(4) as threads:
        consumers = [threads.submit(consume, number) for number in range(4)]
        for start in range(0, total, 50):  # written while it is read
            sink.write(of_keys(keys[start : start + 50], start))
        for consumer in consumers:
            consumer.result(60)
    assert not problems, f"seed {seed}"
    assert sorted(i for _, i in acked) == list(range(1, total + 1)), f"seed {seed}"
    if ordered:
        by_key = defaultdict(list)
        for key, number in acked:
            by_key[key].append(number)
        assert all(numbers == sorted(numbers) for numbers in by_key.values()), f"seed {seed}"
    (left,) = client.streams()[0]["groups"]
    assert [left[n] for n in ("waiting", "in_flight", "put_back", "parked", "dead")] == [0, 0, 0, 0, 0]


def test_a_message_of_a_slow_producer_is_not_overtaken(make: Make, client: Client) -> None:
    """Two pipelines write one stream: numbers become visible in their order, or a cursor would pass over some."""
    group = client.group("orders", "g")
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[Block]:
        yield make_block(2, positions="0/100")
        yield make_block(2, positions="0/200", offsets=(20_000, 20_001))
        begun.set()
        assert go_on.wait(120)

    quick = make_block(2, positions="0/300")
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(make(id="slow").write, Delivery("a", "a", 0, 20_002, 0, 1, slowly))
        assert begun.wait(120)
        other = threads.submit(make(id="quick").write, Delivery("b", "b", 0, 2, 0, 1, lambda: iter([quick])))
        early = group.pull(10)
        go_on.set()
        slow.result(120)
        other.result(120)
    assert len(early) + len(group.pull(10)) == 6


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


def test_the_queue_is_plain_sql_for_everybody_else(make: Make, client: Client, db: psycopg.Connection[Any]) -> None:
    make().write(batch(10))
    db.execute("SELECT pgstream.create_group('orders', 'sql', ordered => true)")
    found = db.execute(
        "SELECT id, token, convert_from(payload, 'UTF8')::jsonb ->> 'op' FROM pgstream.pull('orders', 'sql', 3)"
    ).fetchall()
    assert [(i, op) for i, _, op in found] == [(1, "insert"), (2, "insert"), (3, "insert")]
    assert db.execute("SELECT pgstream.ack('orders', 'sql', %s)", [found[0][1]]).fetchone() == ([1, 2, 3],)


def test_a_dead_letter_of_the_pipeline_that_is_sent_again_is_a_message_more(make: Make, client: Client) -> None:
    sink = make()
    sink.write(batch(20).without([3]))
    sink.write(batch(30, 20))
    (dead_letter,) = [b.slice(3, 4) for b in make_events(120) if b.slice(3, 4).rows]
    again = Delivery("shop", "orders", 3, 4, 0, 1, lambda: iter([dead_letter]), redelivered=True)
    assert sink.write(again).events == 1
    assert [m.offset for m in client.group("orders", "g").pull(100)][-1] == 3
    assert sink.write(batch(30, 20)).skipped == 10  # no position was moved


def test_the_examples_of_the_page_do_what_they_say(
    make: Make,
    client: Client,
    db: psycopg.Connection[Any],
    database: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sinks" / "pgstream.md").read_text()
    make().write(batch(20))
    monkeypatch.setenv("QUEUE_DSN", database)
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    exec(compile(example, "pgstream.md", "exec"), {})
    assert capsys.readouterr().out.split() == [str(i // 2) for i in range(20)]
    assert client.streams()[0]["groups"][0]["waiting"] == 0
    first, second = re.findall(r"^```sql\n(.*?)^```", page, re.M | re.S)
    answers = [db.execute(statement.encode()).fetchall() for statement in first.split(";") if statement.strip()]
    assert [len(rows) for rows in answers] == [1, 20, 1, 1]
    assert answers[1][0][3]["id"] == 0
    assert answers[2:] == [[(20,)], [(0,)]]  # the second goes no further back
    for statement in second.split(";"):
        if statement.strip():
            db.execute(statement.encode())
    (group,) = (g for g in client.streams()[0]["groups"] if g["group"] == "search")
    assert (group["waiting"], group["put_back"], group["in_flight"]) == (10, 1, 0)


def test_a_server_that_is_away_is_worth_a_retry(make: Make) -> None:
    with pytest.raises(DeliveryError, match="cannot be reached") as caught:
        make(dsn="postgresql://u:hush@127.0.0.1:9/d").write(batch(10))
    assert is_retryable(caught.value)
    assert "hush" not in str(caught.value)


def test_doctor_sees_the_queue(make: Make, client: Client) -> None:
    assert [(c.name, c.outcome) for c in make().doctor()] == [("server", Outcome.PASS), ("queue", Outcome.PASS)]
    assert [c.outcome for c in make(queue_schema="elsewhere").doctor()] == [Outcome.PASS, Outcome.PASS]
    assert [c.outcome for c in make(dsn="postgresql://127.0.0.1:9/d").doctor()] == [Outcome.FAIL]


def test_the_command_pulls_acks_and_goes_back(
    make: Make, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make().write(batch(10))
    tidemill = Terminal(capsys)
    file = tmp_path / "p.yaml"
    file.write_text(
        "metadata: {name: p}\nspec:\n"
        "  source: {type: postgres, config: {id: s, dsn: 'postgresql://localhost/shop', tables: [public.orders]}}\n"
        f"  sinks: [{{type: pgstream, config: {{id: q, dsn: '{database}', stream: orders}}}}]\n"
    )
    pulled = tidemill("stream", "pull", file, "orders", "-g", "g", "-n", 4, "--json").json
    assert [m["payload"]["offset"] for m in pulled["messages"]] == [0, 1, 2, 3]
    token = pulled["token"]
    acked = tidemill("stream", "ack", database, "orders", "-g", "g", "--token", token, 1, 2, "--json").json
    assert acked == {"done": [1, 2], "lost": []}
    late = tidemill("stream", "ack", file, "orders", "-g", "g", "--token", token, 1)
    assert (late.code, late.err) == (1, "not held any more: 1\n")
    assert tidemill("stream", "extend", file, "orders", "-g", "g", "--token", token, 3, "--json").json["done"] == [3]
    tidemill("stream", "nack", file, "orders", "-g", "g", "--token", token, "--reason", "later", "--delay", 900)
    assert "customers" in tidemill("stream", "pull", file, "orders", "-g", "g", "--ack").out
    (listed,) = tidemill("stream", "ls", database, "--json").json["streams"]
    assert [listed["groups"][0][name] for name in ("waiting", "in_flight", "put_back")] == [0, 0, 2]
    assert "orders" in tidemill("stream", "ls", file).out
    replayed = tidemill("stream", "replay", file, "orders", "-g", "g", "--offset", 5, "--json").json
    assert replayed["messages"] == 5
    assert "5 messages" in tidemill("stream", "replay", file, "orders", "-g", "g", "--lsn", "0/100").out
    assert tidemill("stream", "dead", file, "orders", "-g", "g", "--json").json == {"dead_letters": []}
    assert "one place" in tidemill("stream", "replay", file, "orders", "-g", "g").err
    unknown = tidemill("stream", "replay", file, "orders", "-g", "none", "--offset", 1)
    assert (unknown.code, "no group" in unknown.err) == (2, True)
