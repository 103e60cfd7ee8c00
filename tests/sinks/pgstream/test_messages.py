"""What a message holds, and that a replay inserts none."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.sinks.pgstream.support import Make, batch
from tests.support.blocks import EPOCH, make_block
from tests.support.deliveries import make_events
from tests.support.terminal import Terminal
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, is_retryable
from tidemill.formats.json import JsonFormat
from tidemill.model.block import Op
from tidemill.model.delivery import Delivery
from tidemill.sinks.pgstream import Client


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
    page = (Path(__file__).parents[3] / "docs" / "sinks" / "pgstream.md").read_text()
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
