"""Claims, acks, groups and the order of keys."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.sinks.pgstream.support import LONG, Make, batch, key_of, of_keys
from tests.support.blocks import make_block
from tests.support.seed import run_seed
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.sinks.pgstream import Client, Group

GONE = 0.05  # seconds: a visibility that ends while a test waits


def elapse(seconds: float = 2 * GONE) -> None:
    time.sleep(seconds)


def test_a_message_is_nobody_elses_until_its_visibility_ends(make: Make, client: Client) -> None:
    make().write(batch(10))
    group = client.group("orders", "g", visibility_seconds=GONE)
    first = group.pull(4)
    assert [m.id for m in group.pull(10)] == [5, 6, 7, 8, 9, 10]
    assert group.ack(*first[:2])
    elapse()
    again = group.pull(10, visibility_seconds=LONG)
    assert [(m.id, m.attempts) for m in again] == [(i, 2) for i in range(3, 11)]


def sizes(client: Client) -> list[int]:
    return [size for (size,) in client.db.execute("SELECT pgstream.size_of(m) FROM pgstream.messages m ORDER BY m.id")]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_pull_holds_so_many_bytes_and_the_rest_comes_with_the_next(make: Make, client: Client, ordered: bool) -> None:
    make().write(batch(10))
    group = client.group("orders", "g", ordered=ordered, visibility_seconds=LONG)
    size = dict(enumerate(sizes(client), 1))
    seen: list[int] = []
    while pulled := group.pull(100, max_bytes=3 * max(size.values())):
        assert sum(size[m.id] for m in pulled) <= 3 * max(size.values())
        seen += [m.id for m in pulled]
        if len(seen) <= 6:
            assert len(pulled) >= 3
        group.ack(*pulled)
    assert seen == list(range(1, 11)), "each once, in its order"


@pytest.mark.parametrize("ordered", [False, True])
def test_what_is_given_again_is_bounded_in_bytes_too(make: Make, client: Client, ordered: bool) -> None:
    make().write(batch(10))
    group = client.group("orders", "g", ordered=ordered, visibility_seconds=GONE)
    first = group.pull(6)
    elapse()
    bound = 4 * max(sizes(client))
    again = group.pull(100, max_bytes=bound, visibility_seconds=LONG)
    assert [m.id for m in again] == [m.id for m in first[: len(again)]]
    assert len(again) < len(first)
    rest = group.pull(100, visibility_seconds=LONG)
    assert sorted(m.id for m in again + rest) == list(range(1, 11))
    assert {m.id: m.attempts for m in again + rest} == {i: 2 if i <= 6 else 1 for i in range(1, 11)}


@pytest.mark.parametrize("ordered", [False, True])
def test_a_message_that_is_larger_than_the_bound_comes_alone(make: Make, client: Client, ordered: bool) -> None:
    make().write(batch(3))
    group = client.group("orders", "g", ordered=ordered, visibility_seconds=LONG)
    assert [[m.id for m in group.pull(10, max_bytes=1)] for _ in range(4)] == [[1], [2], [3], []]
    assert group.replay(id=1) == 3
    group.nack(*group.pull(10))
    assert [[m.id for m in group.pull(10, max_bytes=1)] for _ in range(4)] == [[1], [2], [3], []], "put back"


def test_a_queue_of_an_earlier_version_is_brought_to_this_one(make: Make, client: Client) -> None:
    make().write(batch(3))
    group = client.group("orders", "g")
    db = client.db
    db.execute("DROP FUNCTION pgstream.pull(text, text, integer, interval, text, bigint)")
    db.execute(
        "CREATE FUNCTION pgstream.pull(stream text, group_name text, batch integer DEFAULT 10,"
        " visibility interval DEFAULT NULL, consumer text DEFAULT NULL) RETURNS integer LANGUAGE sql AS 'SELECT 4'"
    )
    db.execute("COMMENT ON SCHEMA pgstream IS 'tidemill pgstream 4'")
    client.upgrade()
    assert [m.id for m in group.pull(10, max_bytes=1)] == [1]
    assert [m.id for m in group.pull(10)] == [2, 3], "of two functions of this name none would be called"


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
