"""What the http sink sends: bodies, headers, paths and identities."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
import pytest

from tests.sinks.http.support import delivery_of, events
from tests.support.blocks import make_block, make_table
from tests.support.deliveries import make_deliveries, make_events
from tidemill.errors import Poisoned
from tidemill.formats.json import JsonFormat
from tidemill.lab.servers.http_receiver import Receiver, ScriptedResponse
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.sinks.http.client import signature

DOCS = Path(__file__).parents[3] / "docs" / "sinks" / "http.md"


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
