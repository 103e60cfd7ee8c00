"""The nats sink against a real JetStream: every event once in an exclusive stream, whatever is replayed when."""

from __future__ import annotations

import asyncio
import base64
import binascii
import dataclasses
import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nats
import orjson
import pytest
from nats.js.api import DiscardPolicy, RetentionPolicy, StreamConfig
from pydantic import ValidationError

from tests.support.blocks import make_block, make_table
from tests.support.deliveries import make_deliveries, make_events
from tests.support.seed import run_seed
from tidemill.config.secrets import mask, reveal
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Poisoned, Refused, is_retryable
from tidemill.formats.json import JsonFormat
from tidemill.lab.servers import tls
from tidemill.lab.servers.nats import Nats
from tidemill.lab.servers.process import free_port
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery, Tier
from tidemill.sinks.nats import NatsConfig, NatsSink
from tidemill.sinks.nats.client import Signer, read_credentials

_names = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Nats]:
    with Nats() as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"S{next(_names)}"


@pytest.fixture
def sinks(server: Nats, name: str) -> Iterator[Any]:
    made: list[NatsSink] = []

    def make(uri: str = server.uri, **options: Any) -> NatsSink:
        options = {"stream": name, "subject": f"{name}.${{source.table}}", **options}
        made.append(NatsSink(NatsConfig(id="n", servers=(uri,), **options)))
        return made[-1]

    yield make
    for sink in made:
        sink.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("nats-")]


def batch(blocks: Any, start: int, end: int) -> Delivery:
    (delivery,) = make_deliveries(blocks, start, end, lanes=1)
    return delivery


def delivery_of(*blocks: Block, start: int = 0) -> Delivery:
    end = max((int(b.offsets()[-1]) for b in blocks), default=start - 1) + 1
    return Delivery("shop", "orders", start, end, 0, 1, lambda: iter(blocks))


def run(uri: str, work: Any, **login: Any) -> Any:
    async def main() -> Any:
        connection = await nats.connect(uri, **login)
        try:
            return await work(connection.jetstream())
        finally:
            await connection.close()

    return asyncio.run(main())


def messages(server: Nats, name: str, **login: Any) -> list[Any]:
    async def read(js: Any) -> list[Any]:
        info = await js.stream_info(name)
        if not info.state.messages:
            return []
        return [await js.get_msg(name, seq=s) for s in range(info.state.first_seq, info.state.last_seq + 1)]

    found: list[Any] = run(server.uri, read, **login)
    return found


def offsets(server: Nats, name: str, **login: Any) -> list[int]:
    return [orjson.loads(m.data)["offset"] for m in messages(server, name, **login)]


def create(server: Nats, name: str, **options: Any) -> None:
    run(server.uri, lambda js: js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **options)))


class TestMessages:
    def test_carry_the_event_its_identity_and_what_they_are(self, sinks: Any, server: Nats, name: str) -> None:
        block = make_block(3, ops=[Op.INSERT, Op.UPDATE, Op.DELETE])
        receipt = sinks().write(delivery_of(block))
        assert (receipt.events, receipt.skipped, receipt.ok) == (3, 0, True)
        found = messages(server, name)
        assert [m.data for m in found] == JsonFormat().encode(block, "orders").to_pylist()
        assert {m.subject for m in found} == {f"{name}.orders"}
        for message in found:
            assert message.headers["Nats-Msg-Id"] == orjson.loads(message.data)["event_id"]

    def test_of_interleaved_tables_are_in_the_order_of_their_offsets(self, sinks: Any, server: Nats, name: str) -> None:
        sinks().write(batch(make_events(100), 0, 100))
        assert offsets(server, name) == list(range(100))
        assert {m.subject for m in messages(server, name)} == {f"{name}.orders", f"{name}.customers"}

    def test_of_many_windows_all_arrive(self, sinks: Any, server: Nats, name: str) -> None:
        assert sinks(max_in_flight=16).write(delivery_of(make_block(1000))).events == 1000
        assert offsets(server, name) == list(range(1000))

    def test_get_subjects_without_spaces_and_wildcards(self, sinks: Any, server: Nats, name: str) -> None:
        sinks(subject=f"{name}.${{after.customer}}.x").write(delivery_of(make_block(1)))
        assert [m.subject for m in messages(server, name)] == [f"{name}.customer_0_—_Zürich.x"]

    def test_carry_cloudevents_attributes_as_headers(self, sinks: Any, server: Nats, name: str) -> None:
        sinks(envelope="cloudevents", cloudevents_mode="binary").write(delivery_of(make_block(1)))
        (message,) = messages(server, name)
        assert message.headers["ce-type"] == "io.tidemill.insert"
        assert message.headers["ce-datacontenttype"] == "application/json"

    def test_have_attributes_encoded_as_the_binding_says(self, sinks: Any, server: Nats, name: str) -> None:
        table = dataclasses.replace(make_table(), name='a "b" 5%/ü')
        sinks(envelope="cloudevents", cloudevents_mode="binary").write(delivery_of(make_block(1, table=table)))
        (message,) = messages(server, name)
        assert message.headers["ce-subject"] == "public.a%20%22b%22%205%25/%C3%BC"
        assert unquote(message.headers["ce-subject"]) == table.full_name

    def test_of_an_empty_delivery_are_none(self, sinks: Any, server: Nats, name: str) -> None:
        assert sinks().write(delivery_of()).events == 0


class TestReplay:
    def test_of_a_whole_batch_changes_nothing_even_when_ids_are_forgotten(
        self, sinks: Any, server: Nats, name: str
    ) -> None:
        create(server, name, duplicate_window=0.1)
        first = sinks()
        first.write(batch(make_events(60), 0, 60))
        threading.Event().wait(0.3)
        for sink in (first, sinks()):
            receipt = sink.write(batch(make_events(60), 0, 60))
            assert (receipt.events, receipt.skipped) == (0, 60)
        assert offsets(server, name) == list(range(60))

    def test_at_random_cuts_leaves_every_event_once(self, sinks: Any, server: Nats, name: str) -> None:
        seed = run_seed()
        chance, blocks, start = random.Random(seed), make_events(200), 0
        while start < 200:
            end = min(200, start + chance.choice([10, 30, 70]))
            reached = chance.randrange(start, end + 1)
            sinks().write(dataclasses.replace(batch(blocks, start, reached), end=end))
            if reached == end and chance.random() < 0.7:
                start = end
        assert offsets(server, name) == list(range(200)), f"seed {seed}"

    def test_within_the_window_is_dropped_by_the_server_of_a_shared_stream(
        self, sinks: Any, server: Nats, name: str
    ) -> None:
        shared = sinks(exclusive=False)
        assert shared.tier is Tier.AT_LEAST_ONCE
        assert sinks().tier is Tier.EFFECTIVELY_ONCE
        shared.write(batch(make_events(60), 0, 40))
        receipt = sinks(exclusive=False).write(batch(make_events(60), 0, 60))
        assert receipt.skipped == 40
        assert offsets(server, name) == list(range(60))


def test_a_dead_letter_that_is_sent_again_stands_behind_and_disturbs_no_replay(
    sinks: Any, server: Nats, name: str
) -> None:
    blocks = make_events(60)
    sinks().write(batch(blocks, 0, 40).without([7]))
    dead_letter = dataclasses.replace(batch(blocks, 7, 8), redelivered=True)
    assert sinks().write(dead_letter).events == 1
    assert sinks().write(dead_letter).ok  # within the window: the server has it
    assert sinks().write(batch(blocks, 0, 40).without([7])).skipped == 39
    assert sinks().write(batch(blocks, 0, 30).without([7])).skipped == 29
    assert sinks().write(batch(blocks, 40, 60)).events == 20
    assert offsets(server, name) == [*range(7), *range(8, 40), 7, *range(40, 60)]


class TestAnotherLog:
    def test_whose_offsets_begin_anew_is_refused_and_told_the_way_out(
        self, sinks: Any, server: Nats, name: str
    ) -> None:
        sinks().write(delivery_of(make_block(50, positions="0/100")))
        for rows in (20, 70):
            with pytest.raises(Refused, match="does not show that it holds these events") as raised:
                sinks().write(delivery_of(make_block(rows, positions="7/900")))
            assert "nats stream purge" in raised.value.fix
        assert len(messages(server, name)) == 50

    def test_of_somebody_else_is_refused_unless_the_stream_may_be_shared(
        self, sinks: Any, server: Nats, name: str
    ) -> None:
        create(server, name)
        run(server.uri, lambda js: js.publish(f"{name}.x", b"hello"))
        with pytest.raises(Refused, match="not of this sink"):
            sinks().write(delivery_of(make_block(3)))
        assert sinks(exclusive=False).write(delivery_of(make_block(3))).events == 3


class TestTrouble:
    def test_a_second_writer_is_noticed_and_the_next_try_goes_on_behind_it(
        self, sinks: Any, server: Nats, name: str
    ) -> None:
        blocks = make_events(60)
        slow, other = sinks(), sinks()

        def overtaken() -> Iterator[Block]:
            other.write(batch(blocks, 0, 20))  # after the slow one looked at the stream
            yield from batch(blocks, 0, 60)

        with pytest.raises(DeliveryError, match="wrong last sequence") as raised:
            slow.write(dataclasses.replace(batch(blocks, 0, 60), blocks=overtaken))
        assert is_retryable(raised.value)
        assert slow.write(batch(blocks, 0, 60)).ok
        assert offsets(server, name) == list(range(60))

    def test_messages_of_others_that_slip_in_between_make_no_gap(self, sinks: Any, server: Nats, name: str) -> None:
        blocks = make_events(60)
        sink = sinks()

        def overtaken() -> Iterator[Block]:
            for _ in range(20):
                run(server.uri, lambda js: js.publish(f"{name}.x", b"hello"))
            yield from batch(blocks, 0, 60)

        with pytest.raises(DeliveryError, match="wrong last sequence"):
            sink.write(dataclasses.replace(batch(blocks, 0, 60), blocks=overtaken))
        assert {m.data for m in messages(server, name)} == {b"hello"}
        with pytest.raises(Refused, match="not of this sink"):
            sink.write(batch(blocks, 0, 60))

    def test_a_full_stream_is_worth_a_retry_and_leaves_no_gap(self, sinks: Any, server: Nats, name: str) -> None:
        create(server, name, max_msgs=30, discard=DiscardPolicy.NEW)
        for _ in range(2):
            with pytest.raises(DeliveryError) as raised:
                sinks(max_in_flight=4).write(delivery_of(make_block(50)))
            assert is_retryable(raised.value)
        assert "maximum messages exceeded" in raised.value.what
        assert offsets(server, name) == list(range(30))

        async def enlarge(js: Any) -> None:
            await js.update_stream(name=name, subjects=[f"{name}.>"], max_msgs=100, discard=DiscardPolicy.NEW)

        run(server.uri, enlarge)
        assert sinks().write(delivery_of(make_block(50))).events == 20
        assert offsets(server, name) == list(range(50))

    def test_events_that_are_too_large_are_named_all_at_once(self, sinks: Any, server: Nats, name: str) -> None:
        create(server, name, max_msg_size=500)
        with pytest.raises(Poisoned) as raised:
            sinks().write(delivery_of(make_block(4)))
        assert sorted(raised.value.reasons) == [0, 1, 2, 3]
        assert messages(server, name) == []

    def test_a_stream_that_forgets_what_was_consumed_cannot_be_exclusive(
        self, sinks: Any, server: Nats, name: str
    ) -> None:
        create(server, name, retention=RetentionPolicy.WORK_QUEUE)
        with pytest.raises(Refused, match="forgets messages once they are consumed"):
            sinks().write(delivery_of(make_block(4)))
        assert any(c.name == "retention" for c in sinks().doctor() if c.outcome is Outcome.FAIL)
        assert sinks(exclusive=False).write(delivery_of(make_block(4))).events == 4

    def test_ids_that_outlive_their_messages_are_waited_out(self, sinks: Any, server: Nats, name: str) -> None:
        sinks(duplicate_window_seconds=0.5).write(delivery_of(make_block(4)))
        run(server.uri, lambda js: js.purge_stream(name))
        with pytest.raises(DeliveryError, match="still remembers") as raised:
            sinks().write(delivery_of(make_block(4)))
        assert is_retryable(raised.value)
        threading.Event().wait(1.1)
        assert sinks().write(delivery_of(make_block(4))).events == 4

    def test_a_stream_or_subject_that_is_missing_is_refused(self, sinks: Any, server: Nats, name: str) -> None:
        with pytest.raises(Refused, match=f'no stream "{name}"'):
            sinks(create_stream=False).write(delivery_of(make_block(1)))
        create(server, name)
        with pytest.raises(Refused, match="no stream listens"):
            sinks(subject="elsewhere.x").write(delivery_of(make_block(1)))
        with pytest.raises(Refused, match="no subjects of a stream follow"):
            sinks(stream=f"{name}-b", subject="${source.table}").write(delivery_of(make_block(1)))

    def test_a_server_that_goes_away_is_worth_a_retry_and_nothing_is_lost(self, sinks: Any, name: str) -> None:
        with Nats() as server:
            blocks = make_events(60)
            sink = sinks(server.uri)
            sink.write(batch(blocks, 0, 30))
            server.stop(kill=True)
            for _ in range(2):
                with pytest.raises(DeliveryError) as raised:
                    sink.write(batch(blocks, 30, 60))
                assert is_retryable(raised.value)
            server.start()
            assert sink.write(batch(blocks, 30, 60)).events == 30
            assert offsets(server, name) == list(range(60))

    def test_nothing_that_listens_is_a_failed_check_and_worth_a_retry(self, sinks: Any) -> None:
        sink = sinks(f"nats://127.0.0.1:{free_port()}")
        with pytest.raises(DeliveryError) as raised:
            sink.write(delivery_of(make_block(1)))
        assert is_retryable(raised.value)
        assert [c.outcome for c in sink.doctor()] == [Outcome.FAIL]


class TestLogin:
    def test_by_password_token_and_nkey(self, sinks: Any, name: str) -> None:
        seed = _seed(bytes(range(32)))
        for settings, right, wrong in (
            ("authorization {user: app, password: hush}", {"user": "app", "password": "hush"}, {"token": "hush-b"}),
            ("authorization {token: hush}", {"token": "hush"}, {"user": "app", "password": "hush-b"}),
            (
                f"authorization {{users: [{{nkey: {Signer(seed).public}}}]}}",
                {"nkey_seed": seed}, {"nkey_seed": _seed(bytes(32))},
            ),
        ):  # fmt: skip
            with Nats(settings) as server:
                assert sinks(server.uri, **right).write(delivery_of(make_block(2))).events == 2
                for bad in (wrong, {}):
                    with pytest.raises(Refused, match="login") as raised:
                        sinks(server.uri, **bad).write(delivery_of(make_block(2)))
                    assert "hush" not in str(raised.value)
                    assert [c.outcome for c in sinks(server.uri, **bad).doctor()] == [Outcome.FAIL]

    def test_that_may_not_publish_is_refused(self, sinks: Any, name: str) -> None:
        rights = '{user: app, password: x, permissions: {publish: {deny: ["secret.>"]}}}'
        with Nats(f"authorization {{users: [{rights}]}}") as server:
            sink = sinks(server.uri, user="app", password="x", subject="secret.x", timeout_seconds=1)
            with pytest.raises(Refused, match=r"[Pp]ermissions"):
                sink.write(delivery_of(make_block(2)))

    def test_over_tls(self, sinks: Any, tmp_path: Path) -> None:
        made = tls.make(tmp_path / "tls")
        with Nats(f'tls {{cert_file: "{made.certificate}", key_file: "{made.key}"}}') as server:
            uri = server.uri.replace("nats://", "tls://")
            assert sinks(uri, tls={"ca_file": made.ca}).write(delivery_of(make_block(2))).events == 2
            with pytest.raises(Refused, match="certificate"):
                sinks(uri).write(delivery_of(make_block(2)))

    def test_credentials_files_are_read(self, tmp_path: Path) -> None:
        file = tmp_path / "app.creds"
        file.write_text(
            "-----BEGIN NATS USER JWT-----\neyJ0.e30.x\n------END NATS USER JWT------\n\n"
            "-----BEGIN USER NKEY SEED-----\nSUXYZ\n------END USER NKEY SEED------\n"
        )
        assert read_credentials(file) == ("eyJ0.e30.x", "SUXYZ")
        file.write_text("nothing")
        for broken in (file, tmp_path / "missing"):
            with pytest.raises(Refused, match="credentials file"):
                read_credentials(broken)


def test_secrets_are_masked_and_yet_reach_the_worker() -> None:
    config = NatsConfig.model_validate(
        {"id": "n", "servers": ["nats://h"], "stream": "S", "subject": "s", "user": "u", "password": "HIDE"}
    )
    assert "HIDE" not in str(mask(config))
    assert NatsConfig.model_validate(reveal(config)) == config


@pytest.mark.parametrize(
    "options",
    [
        {"servers": ["h:4222"]}, {"servers": ["nats://u:p@h"]}, {"servers": []}, {"stream": "a.b"}, {"user": "u"},
        {"subject": "${nope}"}, {"token": "t", "nkey_seed": "s"}, {"format": "parquet"},
    ],
)  # fmt: skip
def test_a_config_that_cannot_work_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NatsConfig.model_validate({"id": "n", "servers": ["nats://h"], "stream": "S", "subject": "s", **options})


def test_doctor_says_what_it_found(sinks: Any, server: Nats, name: str) -> None:
    assert [(c.name, c.outcome) for c in sinks().doctor()] == [("server", Outcome.PASS), ("stream", Outcome.PASS)]
    assert [c.outcome for c in sinks(create_stream=False).doctor()] == [Outcome.PASS, Outcome.FAIL]


def _seed(raw: bytes) -> str:
    """An nkey seed of a user: S, then U, in the first two bytes (https://github.com/nats-io/nkeys)."""
    head = bytes([18 << 3 | (20 << 3) >> 5, ((20 << 3) & 31) << 3])
    body = head + raw
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")
