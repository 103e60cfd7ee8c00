"""The http sink against a scripted receiver: what is sent, what is tried again, and that a key's order holds."""

from __future__ import annotations

import dataclasses
import datetime
import email.utils
import random
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pytest
from pydantic import ValidationError

from tests.support.blocks import make_block, make_table
from tests.support.deliveries import make_deliveries, make_events
from tests.support.seed import run_seed
from tidemill.config.secrets import mask, reveal
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Poisoned, Refused, is_retryable
from tidemill.formats.json import JsonFormat
from tidemill.lab.servers import tls
from tidemill.lab.servers.http_receiver import Received, Receiver, ScriptedResponse
from tidemill.lab.servers.process import free_port
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery
from tidemill.model.table import Table
from tidemill.sinks._shared import in_order
from tidemill.sinks.http import HttpConfig, HttpSink, client
from tidemill.sinks.http.client import retry_after, signature

DOCS = Path(__file__).parents[2] / "docs" / "sinks" / "http.md"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_RETRY", dataclasses.replace(client._RETRY, first=0.002, most=0.01))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def sinks(receiver: Receiver) -> Iterator[Any]:
    made: list[HttpSink] = []

    def make(path: str = "/hook", url: str | None = None, **options: Any) -> HttpSink:
        made.append(HttpSink(HttpConfig(id="h", url=url or receiver.url + path, **options)))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def delivery_of(*blocks: Block, start: int = 0) -> Delivery:
    end = max((int(b.offsets()[-1]) for b in blocks), default=start - 1) + 1
    return Delivery("shop", "orders", start, end, 0, 1, lambda: iter(blocks))


def moving(number: int, table: Table) -> Block:
    """Three updates of one row: of its old key, from its old key to the new one, of the new key."""
    side = "before" if table.identity == "full" else "key"
    old = make_block(1, table=table, ops=Op.UPDATE, first_id=number)
    new = make_block(1, table=table, ops=Op.UPDATE, first_id=1000 + number)
    at = new.batch.schema.get_field_index(side)
    moved = new.batch.set_column(at, new.batch.schema.field(at), old.batch.column(side))
    whole = pa.Table.from_batches([old.batch, moved, new.batch]).combine_chunks().to_batches()[0]
    offsets = pa.array(range(3 * number, 3 * number + 3), pa.uint64())
    return Block(table, whole.set_column(0, whole.schema.field(0), offsets))


def events(requests: list[Received]) -> list[dict[str, Any]]:
    return [orjson.loads(line) for r in requests for line in r.body.splitlines()]


def first_times(status: int, times: int = 1, **headers: str) -> Callable[[Received], ScriptedResponse]:
    """Answers each identity so for the first times, then takes it."""
    seen: Counter[str] = Counter()

    def script(request: Received) -> ScriptedResponse:
        seen[request.headers["idempotency-key"]] += 1
        again = seen[request.headers["idempotency-key"]] <= times
        return ScriptedResponse(status, headers) if again else ScriptedResponse()

    return script


class TestRequests:
    def test_carry_one_event_each_with_its_identity(self, sinks: Any, receiver: Receiver) -> None:
        block = make_block(30)
        receipt = sinks(headers={"x-table": "${source.table}"}).write(delivery_of(block))
        assert (receipt.events, receipt.ok) == (30, True)
        assert sorted(r.body for r in receiver.taken) == sorted(JsonFormat().encode(block, "orders").to_pylist())
        for request in receiver.taken:
            assert request.headers["idempotency-key"] == orjson.loads(request.body)["event_id"]
            assert request.headers["content-type"] == "application/json"
            assert (request.method, request.path, request.headers["x-table"]) == ("POST", "/hook", "orders")

    @pytest.mark.parametrize("concurrency", [1, 4])
    def test_carry_batches_of_bounded_count_and_size(self, sinks: Any, receiver: Receiver, concurrency: int) -> None:
        sinks(mode="batch", max_events=7, concurrency=concurrency).write(delivery_of(make_block(100)))
        sinks("/small", mode="batch", max_bytes=1500, concurrency=concurrency).write(delivery_of(make_block(50)))
        assert all(len(r.body.splitlines()) <= 7 for r in receiver.taken if r.path == "/hook")
        assert all(len(r.body) <= 1500 for r in receiver.taken if r.path == "/small")
        for path, count in (("/hook", 100), ("/small", 50)):
            found = events([r for r in receiver.taken if r.path == path])
            assert sorted(e["offset"] for e in found) == list(range(count))
        assert len({r.headers["idempotency-key"] for r in receiver.taken}) == len(receiver.taken)

    def test_carry_an_array_where_that_is_wanted(self, sinks: Any, receiver: Receiver) -> None:
        sinks(mode="batch", batch_shape="array", concurrency=1).write(delivery_of(make_block(3)))
        (request,) = receiver.taken
        assert [e["offset"] for e in orjson.loads(request.body)] == [0, 1, 2]
        assert request.headers["content-type"] == "application/json"

    def test_carry_arrays_of_bounded_size_that_hold_as_much_as_fits(self, sinks: Any, receiver: Receiver) -> None:
        lines = JsonFormat().batch(make_block(3), "orders").size
        for path, size in (("/all", lines + 1), ("/fewer", lines)):  # two brackets, one comma less than lines have ends
            sinks(path, mode="batch", batch_shape="array", concurrency=1, max_bytes=size).write(
                delivery_of(make_block(3))
            )
        bodies = {path: [r.body for r in receiver.taken if r.path == path] for path in ("/all", "/fewer")}
        assert [len(orjson.loads(body)) for body in bodies["/all"]] == [3]
        assert len(bodies["/all"][0]) == lines + 1
        assert [len(orjson.loads(body)) for body in bodies["/fewer"]] == [2, 1]

    def test_go_back_to_one_connection_per_courier(self, sinks: Any, receiver: Receiver) -> None:
        sink = sinks(concurrency=3)
        for number in range(5):
            sink.write(delivery_of(make_block(30, offsets=range(number * 30, number * 30 + 30)), start=number * 30))
        assert len(receiver.taken) == 150
        assert 1 <= receiver.connections <= 3

    @pytest.mark.parametrize("mode", ["event", "batch"])
    @pytest.mark.parametrize("format", ["avro", "protobuf", "arrow", "parquet"])
    def test_carry_every_format(self, sinks: Any, receiver: Receiver, format: str, mode: str) -> None:
        receipt = sinks(format=format, mode=mode, max_bytes=100_000).write(delivery_of(make_block(10)))
        assert receipt.events == 10
        assert receipt.bytes == sum(len(r.body) for r in receiver.taken)
        assert "json" not in receiver.taken[0].headers["content-type"]

    def test_carry_cloudevents_attributes_as_headers(self, sinks: Any, receiver: Receiver) -> None:
        sinks(envelope="cloudevents", cloudevents_mode="binary").write(delivery_of(make_block(1)))
        headers = receiver.taken[0].headers
        assert (headers["ce-specversion"], headers["ce-type"]) == ("1.0", "io.tidemill.insert")
        assert headers["ce-id"] == headers["idempotency-key"]
        assert headers["content-type"] == "application/json"

    def test_have_attributes_encoded_as_the_binding_says(self, sinks: Any, receiver: Receiver) -> None:
        table = dataclasses.replace(make_table(), database="the shop", name='a "b" 5%/ü')
        sinks(envelope="cloudevents", cloudevents_mode="binary").write(delivery_of(make_block(1, table=table)))
        headers = receiver.taken[0].headers
        assert headers["ce-subject"] == "public.a%20%22b%22%205%25/%C3%BC"
        assert unquote(headers["ce-subject"]) == table.full_name
        assert unquote(headers["ce-source"]) == "/tidemill/orders/the%20shop", "a URI, which is encoded once more"

    def test_go_where_the_row_says(self, sinks: Any, receiver: Receiver) -> None:
        sinks("/${source.table}/${after.customer}?paid=${after.paid}").write(delivery_of(make_block(2)))
        assert sorted(r.path for r in receiver.taken) == [
            "/orders/customer%200%20%E2%80%94%20Z%C3%BCrich?paid=true",
            "/orders/customer%201%20%E2%80%94%20Z%C3%BCrich?paid=false",
        ]

    def test_of_a_replay_are_the_same(self, sinks: Any, receiver: Receiver) -> None:
        for mode in ("event", "batch"):
            for _ in range(2):
                sinks(f"/{mode}", mode=mode, signing_secret="s").write(delivery_of(make_block(40)))
            sent = [
                (r.body, r.headers["idempotency-key"], r.headers["x-tidemill-signature"])
                for r in receiver.taken if r.path == f"/{mode}"
            ]  # fmt: skip
            assert set(Counter(sent).values()) == {2}

    def test_of_a_batch_cut_in_another_way_have_other_identities(self, sinks: Any, receiver: Receiver) -> None:
        """Else a receiver that keeps identities would drop events it never had."""
        delivery = delivery_of(make_block(40))
        for given in (delivery, delivery.without([3])):
            sinks(mode="batch", max_events=10, concurrency=1).write(given)
        by_identity = defaultdict(set)
        for request in receiver.taken:
            by_identity[request.headers["idempotency-key"]].add(request.body)
        assert {len(bodies) for bodies in by_identity.values()} == {1}
        assert len(by_identity) == 8

    def test_are_signed_as_the_docs_say(self, sinks: Any, receiver: Receiver) -> None:
        sinks(signing_secret="shared").write(delivery_of(make_block(2)))
        scope: dict[str, Any] = {}
        exec(re.search(r"```python\n(.*?)```", DOCS.read_text(), re.S)[1], scope)  # type: ignore[index]
        for r in receiver.taken:
            assert scope["verify"](b"shared", r.headers, r.body)
            assert not scope["verify"](b"other", r.headers, r.body)
            assert not scope["verify"](b"shared", r.headers, r.body + b" ")
        assert signature(b"k", "id", b"body") == signature(b"k", "id", memoryview(b"body"))


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


class TestAnswers:
    @pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
    def test_that_may_change_are_waited_for(self, sinks: Any, receiver: Receiver, status: int) -> None:
        receiver.script = first_times(status, 2)
        assert sinks().write(delivery_of(make_block(3))).events == 3
        assert len(receiver.all) == 9

    def test_that_ask_for_patience_get_it(self, sinks: Any, receiver: Receiver) -> None:
        receiver.script = first_times(429, 1, **{"Retry-After": "1"})
        sinks().write(delivery_of(make_block(1)))
        first, second = receiver.all
        assert second.at - first.at >= 1

    def test_that_ask_for_more_patience_than_there_is_fail_the_batch(self, sinks: Any, receiver: Receiver) -> None:
        receiver.script = first_times(503, 99, **{"Retry-After": "3600"})
        with pytest.raises(DeliveryError, match="HTTP 503") as raised:
            sinks().write(delivery_of(make_block(1)))
        assert is_retryable(raised.value)
        assert len(receiver.all) == 1

    def test_that_never_change_fail_the_batch_at_the_deadline(self, sinks: Any, receiver: Receiver) -> None:
        receiver.script = lambda request: ScriptedResponse(500)
        with pytest.raises(DeliveryError, match="HTTP 500") as raised:
            sinks(deadline_seconds=0.05).write(delivery_of(make_block(50)))
        assert is_retryable(raised.value)

    def test_that_are_lost_lead_to_a_repetition_that_can_be_told(self, sinks: Any, receiver: Receiver) -> None:
        dropped: set[str] = set()

        def script(request: Received) -> ScriptedResponse:
            identity = request.headers["idempotency-key"]
            drop = identity not in dropped
            dropped.add(identity)
            return ScriptedResponse(drop=drop)

        receiver.script = script
        assert sinks().write(delivery_of(make_block(5))).events == 5
        assert set(Counter(r.headers["idempotency-key"] for r in receiver.taken).values()) == {2}

    def test_of_4xx_name_all_events_that_are_at_fault_and_send_the_others(self, sinks: Any, receiver: Receiver) -> None:
        bad = {3, 4, 17}

        def script(request: Received) -> ScriptedResponse:
            offsets = {e["offset"] for e in events([request])}
            return ScriptedResponse(422 if offsets & bad else 200)

        receiver.script = script
        for mode in ("event", "batch"):
            with pytest.raises(Poisoned) as raised:
                sinks(f"/{mode}", mode=mode, max_events=8).write(delivery_of(make_block(20)))
            assert raised.value.reasons == dict.fromkeys(sorted(bad), "the receiver answered HTTP 422")
            taken = sorted(e["offset"] for e in events([r for r in receiver.taken if r.path == f"/{mode}"]))
            assert taken == [o for o in range(20) if o not in bad]
            rest = delivery_of(make_block(20)).without(bad)
            assert sinks(f"/{mode}", mode=mode, max_events=8).write(rest).events == 17

    @pytest.mark.parametrize("status", [401, 403, 407])
    def test_that_refuse_the_login_stop_and_poison_nothing(self, sinks: Any, receiver: Receiver, status: int) -> None:
        receiver.script = lambda request: ScriptedResponse(status)
        with pytest.raises(Refused, match=f"HTTP {status}") as raised:
            sinks(secret_headers={"Authorization": "Bearer hush"}).write(delivery_of(make_block(5)))
        assert not isinstance(raised.value, Poisoned)
        assert "hush" not in str(raised.value)
        assert receiver.all[0].headers["authorization"] == "Bearer hush"

    def test_that_refuse_are_told_though_another_courier_was_only_stopped(
        self, sinks: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The one that waits to try again has an older group than the one that meets the refusal."""
        monkeypatch.setattr(in_order, "WINDOW", 10)
        blocks = [make_block(10, ops=Op.UPDATE, offsets=range(at, at + 10)) for at in range(0, 60, 10)]
        first = events([Received("", "", {}, JsonFormat().batch(blocks[0], "orders").to_pybytes(), 0)])[0]["after"][
            "id"
        ]

        def script(request: Received) -> ScriptedResponse:
            event = events([request])[0]
            if event["after"]["id"] == first:
                return ScriptedResponse(503, {"Retry-After": "30"})
            return ScriptedResponse(403 if event["offset"] >= 10 else 200)

        receiver.script = script
        with pytest.raises(Refused, match="HTTP 403"):
            sinks(concurrency=10).write(delivery_of(*blocks))

    def test_that_redirect_are_not_followed_unless_allowed_and_secrets_stay_at_home(
        self, sinks: Any, receiver: Receiver
    ) -> None:
        with Receiver() as other:
            receiver.script = lambda request: ScriptedResponse(307, {"Location": f"{other.url}/there"})
            with pytest.raises(Refused, match="HTTP 307, a redirect"):
                sinks().write(delivery_of(make_block(1)))
            sinks(follow_redirects=True, secret_headers={"Authorization": "x"}).write(delivery_of(make_block(1)))
            assert [r.path for r in other.taken] == ["/there"]
            assert "authorization" not in other.taken[0].headers
            receiver.script = lambda request: ScriptedResponse(307, {"Location": "/round"})
            with pytest.raises(Refused, match="redirects"):
                sinks(follow_redirects=True).write(delivery_of(make_block(1)))

    def test_that_never_come_are_worth_a_retry(self, sinks: Any) -> None:
        sink = sinks(url=f"http://127.0.0.1:{free_port()}/", deadline_seconds=0.05)
        with pytest.raises(DeliveryError) as raised:
            sink.write(delivery_of(make_block(3)))
        assert is_retryable(raised.value)


def test_an_event_that_is_too_large_is_poisoned_and_not_sent(sinks: Any, receiver: Receiver) -> None:
    with pytest.raises(Poisoned, match="larger than max_bytes, 1024") as raised:
        sinks(max_bytes=1024, envelope="debezium", envelope_schema=True).write(delivery_of(make_block(2)))
    assert sorted(raised.value.reasons) == [0, 1]
    assert receiver.all == []


def of_customer(customer: str) -> Delivery:
    block = make_block(1)
    after = block.batch.column("after")
    names = [f.name for f in after.type]
    children = [after.field(n) for n in names]
    children[1] = type(children[1]).from_pandas([customer])  # pyarrow's own way to make one
    batch = block.batch.set_column(
        block.batch.schema.get_field_index("after"), "after", type(after).from_arrays(children, names)
    )
    return delivery_of(Block(block.table, batch))


@pytest.mark.parametrize("value", [".", ".."])
def test_rows_do_not_choose_a_path_outside_of_the_template(sinks: Any, receiver: Receiver, value: str) -> None:
    for path in ("/hooks/${after.customer}", "/hooks/${after.customer}/x?a=b", "/hooks/${after.customer}?a=/"):
        with pytest.raises(Poisoned, match="would leave the path"):
            sinks(path).write(of_customer(value))
    assert receiver.all == []
    sinks("/hooks/x?a=/${after.customer}/").write(of_customer(value))
    assert receiver.taken[0].path == f"/hooks/x?a=/{value}/"


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("../admin", "..%2Fadmin"),
        ("%2e%2e", "%252e%252e"),
        ("a?b#c", "a%3Fb%23c"),
        ("//evil.com/", "%2F%2Fevil.com%2F"),
        ("a&b=c+d", "a%26b%3Dc%2Bd"),
        ("a b\r\nX: y", "a%20b%0D%0AX%3A%20y"),
        ("é;@", "%C3%A9%3B%40"),
        ("a.b-c_d~", "a.b-c_d~"),
    ],
)
def test_a_value_is_one_segment_of_the_path_or_one_value_of_the_query(
    sinks: Any, receiver: Receiver, value: str, sent: str
) -> None:
    sinks("/p:a/${after.customer}/e%20x?q=${after.customer}&r=%2F/,").write(of_customer(value))
    assert receiver.taken[0].path == f"/p:a/{sent}/e%20x?q={sent}&r=%2F/,"
    assert unquote(sent) == value


def test_tables_that_interleave_and_empty_deliveries_pass(sinks: Any, receiver: Receiver) -> None:
    (delivery,) = make_deliveries(make_events(40), 0, 40, lanes=1)
    assert sinks(mode="batch").write(delivery).events == 40
    assert sorted(e["offset"] for e in events(receiver.taken)) == list(range(40))
    assert sinks().write(delivery_of()).events == 0


def test_a_dead_letter_that_comes_again_has_the_key_that_it_had_before(sinks: Any, receiver: Receiver) -> None:
    """The receiver said no to it; should it have taken it after all, the key tells."""
    receiver.script = lambda request: ScriptedResponse(422 if b'"offset":3,' in request.body else 204)
    with pytest.raises(Poisoned):
        sinks().write(delivery_of(make_block(5)))
    (refused,) = [request for request in receiver.all if b'"offset":3,' in request.body]
    receiver.script = lambda request: ScriptedResponse()
    dead_letter = dataclasses.replace(delivery_of(make_block(5).take([3]), start=3), redelivered=True)
    receipt = sinks().write(dead_letter)
    assert (receipt.events, receipt.skipped) == (1, 0)
    assert receiver.all[-1].headers["idempotency-key"] == refused.headers["idempotency-key"]


def test_a_sink_can_be_used_again_after_an_error(sinks: Any, receiver: Receiver) -> None:
    receiver.script = lambda request: ScriptedResponse(500)
    sink = sinks(deadline_seconds=0)
    with pytest.raises(DeliveryError):
        sink.write(delivery_of(make_block(20)))
    receiver.script = lambda request: ScriptedResponse()
    assert sink.write(delivery_of(make_block(20))).events == 20
    sink.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("http_")]


def test_a_certificate_nobody_vouches_for_is_refused(sinks: Any, tmp_path: Path) -> None:
    made = tls.make(tmp_path / "tls")
    with Receiver(certificates=made) as secure:
        with pytest.raises(Refused, match="certificate is not trusted"):
            sinks(url=f"{secure.url}/").write(delivery_of(make_block(1)))
        trusting = sinks(url=f"{secure.url}/", tls={"ca_file": made.ca})
        assert trusting.write(delivery_of(make_block(3))).events == 3
        assert [c.outcome for c in trusting.doctor()] == [Outcome.PASS]
        assert [c.outcome for c in sinks(url=f"{secure.url}/").doctor()] == [Outcome.FAIL]
        assert sinks(url=f"{secure.url}/", tls={"verify": False}).write(delivery_of(make_block(1))).events == 1


def test_doctor_looks_and_sends_nothing(sinks: Any, receiver: Receiver) -> None:
    assert [c.outcome for c in sinks().doctor()] == [Outcome.PASS]
    assert [c.outcome for c in sinks(signing_secret="x").doctor()] == [Outcome.PASS, Outcome.WARN]
    assert receiver.all == []


def test_secrets_are_masked_and_yet_reach_the_worker() -> None:
    config = HttpConfig.model_validate(
        {
            "id": "h", "url": "https://u:HIDE@h/", "signing_secret": "HIDE",
            "secret_headers": {"Authorization": "HIDE"},
            "tls": {"certificate_file": "c", "key_file": "k", "key_password": "HIDE"},
        }
    )  # fmt: skip
    assert "HIDE" not in str(mask(config))
    assert "HIDE" not in config.where
    assert HttpConfig.model_validate(reveal(config)) == config


@pytest.mark.parametrize(
    "options",
    [
        {"url": "ftp://h/"}, {"url": "https://${source.table}.example/"}, {"url": "https://h/${nope}"}, {"url": "h"},
        {"url": "http://h", "headers": {"x": "${nope}"}}, {"url": "http://h", "batch_shape": "array", "format": "avro"},
        {"url": "http://h", "mode": "batch", "envelope": "cloudevents", "cloudevents_mode": "binary"},
        {"url": "http://h", "headers": {"x y": "z"}}, {"url": "http://h", "headers": {"Content-Length": "1"}},
        {"url": "http://h", "secret_headers": {"x": "a\nb: c"}}, {"url": "http://h", "secret_headers": {"x": "\u20ac"}},
        {"url": "http://h", "idempotency_header": "a: b"}, {"url": "http://h", "signature_header": "a\r\nb"},
    ],
)  # fmt: skip
def test_a_config_that_cannot_work_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HttpConfig(id="h", **options)


def test_retry_after_is_a_number_or_a_date() -> None:
    assert retry_after("7") == 7
    assert retry_after(None) is None
    assert retry_after("soon") is None
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100)
    assert 90 < (retry_after(email.utils.format_datetime(later, usegmt=True)) or 0) <= 100
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
