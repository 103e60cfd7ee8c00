"""Servers that refuse, are full, away, or many; settings, and what `doctor` says."""

from __future__ import annotations

import dataclasses
import re
import socket
import threading
from typing import Any

import numpy as np
import pytest
import redis
from pydantic import ValidationError

from tests.sinks.redis.support import batch, delivery_of, note_of, offsets
from tests.support.blocks import make_block
from tests.support.deliveries import make_events
from tidemill.config.secrets import mask
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Poisoned, Refused, is_retryable
from tidemill.lab.servers.process import free_port
from tidemill.lab.servers.valkey import Valkey
from tidemill.sinks.redis import RedisConfig, RedisSink
from tidemill.sinks.redis.client import RedisAddress
from tidemill.sinks.redis.commands import scan


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

    def test_a_sentinel_that_hangs_up_is_asked_once_more_and_not_over_and_over(self, stream: str) -> None:
        """The stream tries again by its own policy: a second one below it would hold up each of its tries."""
        asked = 0

        def hang_up() -> None:
            nonlocal asked
            while True:
                try:
                    sentinel.accept()[0].close()
                except OSError:
                    return
                asked += 1

        with socket.create_server(("127.0.0.1", 0)) as sentinel:
            thread = threading.Thread(target=hang_up, daemon=True)
            thread.start()
            uri = f"redis+sentinel://127.0.0.1:{sentinel.getsockname()[1]}/shop"
            sink = RedisSink(RedisConfig(id="r", uri=uri, stream=stream))
            with pytest.raises(DeliveryError, match="cannot be reached") as raised:
                sink.write(delivery_of(make_block(1)))
            sink.close()
            sentinel.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        assert is_retryable(raised.value)
        assert asked == 2  # for the master, and for why it gave no answer


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
