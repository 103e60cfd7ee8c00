"""What a client may do to the gRPC port: say nothing, say nonsense, hang up, or settle what is not its own."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import psycopg
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.conftest import Harness, document, raw
from tests.api.test_grpc import Rpc, create, reach
from tests.support.deliveries import make_deliveries, make_events
from tests.support.waiting import until
from tidemill.api.proto import PACKAGE, SERVICES, service
from tidemill.api.proto import flows_pb2 as flows
from tidemill.api.proto import operations_pb2 as operations
from tidemill.api.rpc import server as grpc_server
from tidemill.api.rpc import wiring
from tidemill.errors import UnknownPipeline
from tidemill.service.server.scope import Scope
from tidemill.service.server.tokens import Role
from tidemill.sinks.pgstream import Client, PgstreamConfig, PgstreamSink

REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ABORTED, grpc.StatusCode.OK,
}  # fmt: skip
CALLS = [f"{name}.{method.name}" for name in SERVICES for method in service(name).methods]


def say_nothing(channel: grpc.Channel, path: str, metadata: tuple[tuple[str, str], ...] = ()) -> Any:
    """A call that is open, and whose request never comes."""
    ended = threading.Event()

    def requests() -> Iterator[bytes]:
        ended.wait(60)
        yield from ()

    call = channel.stream_stream(path, None, None)(requests(), metadata=metadata)
    call.add_callback(ended.set)
    return call


def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    return caught.value.code()


def test_who_has_no_token_is_refused_before_a_request_is_waited_for(server: Harness) -> None:
    with reach(server) as channel:
        for call in CALLS:
            name, _, verb = call.partition(".")
            assert code_of(say_nothing(channel, f"/{PACKAGE}.{name}/{verb}")) is grpc.StatusCode.UNAUTHENTICATED, call


def test_calls_that_never_send_their_request_do_not_take_every_call(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need no token, and the server takes only so many at once."""
    monkeypatch.setattr(grpc_server, "_MOST_CALLS", 4)
    monkeypatch.setattr(wiring, "REQUEST_SECONDS", 0.5)
    with reach(server) as channel:
        silent = [say_nothing(channel, "/grpc.health.v1.Health/Check") for _ in range(4)]
        assert {code_of(each) for each in silent} == {grpc.StatusCode.INVALID_ARGUMENT}
        silent = [say_nothing(channel, "/grpc.health.v1.Health/Watch") for _ in range(4)]
        assert {code_of(each) for each in silent} == {grpc.StatusCode.INVALID_ARGUMENT}
        known = (("authorization", f"Bearer {server.admin}"),)
        silent = [say_nothing(channel, f"/{PACKAGE}.Flows/List", known) for _ in range(4)]
        assert {code_of(each) for each in silent} == {grpc.StatusCode.INVALID_ARGUMENT}
        assert Rpc(channel, server.admin).call("Flows.List").flows == []


def test_reflection_does_not_take_every_call_and_ends_where_nobody_asks(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "MAX_REFLECTIONS", 2)
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    with reach(server) as channel:
        left_open = [say_nothing(channel, path) for _ in range(3)]
        until(lambda: any(each.done() for each in left_open))
        (refused,) = [each for each in left_open if each.done()]
        assert code_of(refused) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert Rpc(channel, server.admin).call("Flows.List").flows == []
        for each in left_open:
            each.cancel()
        monkeypatch.setattr(wiring, "REQUEST_SECONDS", 0.2)
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        until(lambda: list(stub.ServerReflectionInfo(iter([]))) == [])
        assert list(say_nothing(channel, path)) == [], "it ends by itself"


def test_bytes_that_are_no_request_are_refused_as_such(server: Harness) -> None:
    with reach(server) as channel:
        known = (("authorization", f"Bearer {server.admin}"),)
        for call in CALLS:
            name, _, verb = call.partition(".")
            invoke = channel.unary_stream(f"/{PACKAGE}.{name}/{verb}", None, None)
            assert code_of(invoke(b"\xff\xff\xff", metadata=known)) is grpc.StatusCode.INVALID_ARGUMENT, call
        health = channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
        with pytest.raises(grpc.RpcError) as caught:
            health(b"\xff\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_DOUBLE: st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 1e300, 5e-324, 0.0, 0.2]),
    FieldDescriptor.TYPE_STRING: st.sampled_from(["", "orders", "\0", "ünglück", "x" * 5000, "{}", "1/2", "🐸" * 800]),
    FieldDescriptor.TYPE_INT64: st.sampled_from([-(2**63), -1, 0, 1, 2**31, 2**63 - 1]),
    FieldDescriptor.TYPE_UINT32: st.sampled_from([0, 1, 2**31, 2**32 - 1]),
    FieldDescriptor.TYPE_INT32: st.sampled_from([-(2**31), 2**31 - 1]),
    FieldDescriptor.TYPE_ENUM: st.sampled_from([0, 1, 2, 77]),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
}  # fmt: skip


def fill(draw: Callable[..., Any], message: Any, depth: int = 0) -> Any:
    """Any values that protobuf takes, also where they mean nothing."""
    for field in message.DESCRIPTOR.fields:
        entry = field.message_type is not None and field.message_type.GetOptions().map_entry
        if entry or depth > 2 or not draw(st.booleans()):
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            fill(draw, getattr(message, field.name), depth + 1)
        elif field.type in _SCALARS:
            value = draw(_SCALARS[field.type])
            if field.is_repeated:
                getattr(message, field.name).extend([value] * draw(st.integers(1, 3)))
            else:
                setattr(message, field.name, value)
    return message


def outcome(client: Rpc, name: str, request: Any) -> grpc.StatusCode:
    try:
        client.call(name, request)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_no_values_break_a_call(server: Harness, database: str) -> None:
    """Neither a status that means a defect of ours, nor metadata that the client cannot take."""
    queue = {"type": "pgstream", "config": {"id": "queue", "dsn": database, "stream": "orders"}}
    with Client(database) as client:
        client.install()
    with reach(server) as channel:
        admin = Rpc(channel, server.admin)
        create(admin, "orders", sinks=[queue])

        @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.data())
        def call(data: st.DataObject) -> None:
            name = data.draw(st.sampled_from([each for each in CALLS if not each.startswith("Metrics")]))
            owner, _, verb = name.partition(".")
            kind = message_factory.GetMessageClass(service(owner).methods_by_name[verb].input_type)
            request = fill(data.draw, kind())
            if hasattr(request, "wait_seconds") and request.wait_seconds > 1:
                request.wait_seconds = 0
            if name == "Flows.Delete":
                request.pipeline = "another"
            assert outcome(admin, name, request) in REFUSALS, (name, request)

        call()
        assert admin.call("Flows.Get", operations.PipelineRef(pipeline="orders")).name == "orders"


def test_connections_to_grpc_take_only_so_many_files_of_the_server(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reaches the port opens them without a token; pipelines need files too."""
    monkeypatch.setattr(grpc_server, "MAX_CONNECTIONS", 20)
    given = grpc_server.GrpcSettings("127.0.0.1:0")
    with grpc_server.serve_grpc(server.control, server.tokens, given) as port, ExitStack() as open_ones:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(100):
            each = open_ones.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            each.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        # A hundred are the clients' own ends.
        until(lambda: len(os.listdir("/proc/self/fd")) <= before + 100 + 25)
        assert raw(server, "GET", "/healthz")[0] == 200
        open_ones.close()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(30)
            assert Rpc(channel, server.admin).call("Flows.List").flows == []


def spoil(message: Any) -> list[Any]:
    """Copies of it, each with NUL in one of its texts."""
    made = []
    for field in message.DESCRIPTOR.fields:
        inner = field.message_type
        if field.type == FieldDescriptor.TYPE_STRING:
            copy = type(message)()
            getattr(copy, field.name).append("a\0b") if field.is_repeated else setattr(copy, field.name, "a\0b")
            made.append(copy)
        elif inner is not None and inner.GetOptions().map_entry:
            copy = type(message)()
            if inner.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING:
                getattr(copy, field.name)["a"] = "a\0b"
                made.append(copy)
        elif inner is not None and not field.is_repeated:
            for each in spoil(getattr(message, field.name)):
                copy = type(message)()
                getattr(copy, field.name).CopyFrom(each)
                made.append(copy)
    return made


def test_nul_in_any_text_of_a_request_is_the_callers_mistake(server: Harness) -> None:
    """A state store in PostgreSQL would refuse it, and the server say that it cannot be used."""
    tried = 0
    with reach(server) as channel:
        admin = Rpc(channel, server.admin)
        create(admin, "orders")
        for name in CALLS:
            owner, _, verb = name.partition(".")
            kind = message_factory.GetMessageClass(service(owner).methods_by_name[verb].input_type)
            for request in spoil(kind()):
                assert admin.refusal(name, request)[0] is grpc.StatusCode.INVALID_ARGUMENT, (name, request)
                tried += 1
    assert tried > 40


def test_a_refusal_with_much_to_say_reaches_the_client(server: Harness) -> None:
    """Beyond 8 KiB of metadata a client only says that there was too much."""
    body = document("orders")
    body["spec"] |= {f"frög{n}": n for n in range(2000)}
    request = flows.CreateFlowRequest(document=json.dumps(body))
    with reach(server) as channel:
        code, error = Rpc(channel, server.admin).refusal("Flows.Create", request)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert error["what"]


def test_a_stream_of_rare_metrics_ends_with_its_token(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.api.rpc.operations.CHECK_SECONDS", 0.1)
    with reach(server) as channel:
        create(Rpc(channel, server.admin), "orders")
        token, stored = server.tokens.create("ann", Role.VIEWER)
        rare = operations.MetricsRequest(interval_ms=2**32 - 1)
        samples = Rpc(channel, token).call("Metrics.StreamMetrics", rare)
        assert next(samples).state
        server.tokens.revoke(stored.id)
        assert list(samples) == [], "it does not wait for the next sample"


def test_metrics_end_when_the_name_has_become_another_tenants(server: Harness) -> None:
    with reach(server) as channel:
        admin = Rpc(channel, server.admin)
        token = server.tokens.create("ann", Role.VIEWER, scope=Scope(tenant="reeds"))[0]
        create(admin, "orders")
        body = document("birds")
        body["metadata"]["tenant"] = "reeds"
        server.client().create(body)
        samples = Rpc(channel, token).call(
            "Metrics.StreamMetrics", operations.MetricsRequest(pipeline="birds", interval_ms=100)
        )
        assert next(samples).state
        server.client().delete("birds")
        body["metadata"]["tenant"] = "moss"
        server.client().create(body)
        assert code_of(samples) is grpc.StatusCode.NOT_FOUND


def test_who_guesses_tokens_at_the_health_service_is_slowed_down(server: Harness) -> None:
    create_in = server.client()
    create_in.create(document("orders"))
    with reach(server, rate=0.5) as channel:
        health = health_pb2_grpc.HealthStub(channel)

        def guess(n: int) -> grpc.StatusCode:
            known = (("authorization", f"Bearer tm_0000000{n}_{'a' * 43}"),)
            with pytest.raises(grpc.RpcError) as caught:
                health.Check(health_pb2.HealthCheckRequest(service="orders"), metadata=known)
            return caught.value.code()

        guesses = [guess(n) for n in range(5)]
        assert guesses[0] is grpc.StatusCode.NOT_FOUND
        assert guesses[-1] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert health.Check(health_pb2.HealthCheckRequest()).status, "a probe of the server is never slowed down"


def fill_queue(dsn: str, stream: str, count: int = 20) -> None:
    sink = PgstreamSink(PgstreamConfig(id="queue", dsn=dsn, stream=stream))
    (delivery,) = make_deliveries(make_events(count), 0, count, lanes=1)
    sink.write(delivery)
    sink.close()


@pytest.fixture
def consumers(server: Harness, database: str) -> Iterator[tuple[Rpc, Rpc]]:
    """Two of one group."""
    fill_queue(database, "orders")
    queue = {"type": "pgstream", "config": {"id": "queue", "dsn": database, "stream": "orders"}}
    with reach(server) as channel:
        create(Rpc(channel, server.admin), "orders", sinks=[queue])
        ann, bob = (server.tokens.create(name, Role.OPERATOR)[0] for name in ("ann", "bob"))
        yield Rpc(channel, ann), Rpc(channel, bob)


AT = flows.StreamRef(stream="orders", group="billing")


def test_only_the_pull_that_holds_a_message_settles_it(consumers: tuple[Rpc, Rpc]) -> None:
    ann, bob = consumers
    pull = flows.PullRequest(stream=AT, limit=3, visibility_seconds=600)
    hers, his = ann.call("Streams.Pull", pull), bob.call("Streams.Pull", pull)
    ids = [each.id for each in hers.messages]
    assert ids
    assert not set(ids) & {each.id for each in his.messages}
    for verb in ("Ack", "Nack", "Extend"):
        tried = bob.call(f"Streams.{verb}", flows.SettleRequest(stream=AT, token=his.token, ids=ids))
        assert (list(tried.done), list(tried.lost)) == ([], ids), verb
    other = flows.StreamRef(stream="orders", group="shipping")
    bob.call("Streams.Pull", flows.PullRequest(stream=other, limit=1))
    for verb in ("Ack", "Nack", "Extend"):
        tried = bob.call(f"Streams.{verb}", flows.SettleRequest(stream=other, token=hers.token, ids=ids))
        assert list(tried.done) == [], f"{verb}: the claim is of another group"
    done = ann.call("Streams.Ack", flows.SettleRequest(stream=AT, token=hers.token, ids=[*ids, *ids, 10**12]))
    assert (list(done.done), list(done.lost)) == (ids, [10**12]), "nobody settled them meanwhile"
    for verb in ("Ack", "Nack", "Extend"):
        again = ann.call(f"Streams.{verb}", flows.SettleRequest(stream=AT, token=hers.token))
        assert list(again.done) == [], f"{verb}: there is nothing left to settle"


def test_a_message_that_was_given_again_is_no_longer_the_first_pulls(consumers: tuple[Rpc, Rpc]) -> None:
    ann, bob = consumers
    slow = ann.call("Streams.Pull", flows.PullRequest(stream=AT, limit=1, visibility_seconds=0.001))
    (message,) = slow.messages
    time.sleep(0.05)
    quick = bob.call("Streams.Pull", flows.PullRequest(stream=AT, limit=1, visibility_seconds=600))
    assert [(each.id, each.attempts) for each in quick.messages] == [(message.id, 2)]
    late = ann.call("Streams.Ack", flows.SettleRequest(stream=AT, token=slow.token))
    assert list(late.done) == []
    assert list(bob.call("Streams.Ack", flows.SettleRequest(stream=AT, token=quick.token)).done) == [message.id]


def test_a_pull_of_large_messages_is_bounded_in_bytes(consumers: tuple[Rpc, Rpc], database: str) -> None:
    """A client takes replies of 4 MiB, and the server holds each in memory."""
    ann, _ = consumers
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("UPDATE pgstream.messages SET payload = convert_to(repeat('x', 1 << 20), 'UTF8')")
        db.execute("UPDATE pgstream.messages SET payload = convert_to(repeat('x', 5 << 20), 'UTF8') WHERE id = 6")
    pull = flows.PullRequest(stream=AT, limit=10_000, visibility_seconds=600)
    replies = [[each.id for each in ann.call("Streams.Pull", pull).messages] for _ in range(3)]
    assert replies == [[1, 2], [3, 4], [5]]
    with pytest.raises(grpc.RpcError) as refused:
        ann.call("Streams.Pull", pull)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, "alone, and larger than this client takes"
    pull.max_bytes = (1 << 20) + 1000
    assert [each.id for each in ann.call("Streams.Pull", pull).messages] == [7]


def test_acks_do_not_wait_for_pulls_that_wait(
    server: Harness, consumers: tuple[Rpc, Rpc], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ack that comes late is a message that is given twice."""
    monkeypatch.setattr(grpc_server, "_PULLING", 1)
    with reach(server) as channel:
        ann = Rpc(channel, server.admin)
        all_of_it = ann.call("Streams.Pull", flows.PullRequest(stream=AT, limit=1000, visibility_seconds=600))
        waiting = channel.unary_unary(f"/{PACKAGE}.Streams/Pull", flows.PullRequest.SerializeToString, None).future(
            flows.PullRequest(stream=AT, wait_seconds=20), metadata=(("authorization", f"Bearer {server.admin}"),)
        )
        time.sleep(0.5)
        acked = ann.call("Streams.Ack", flows.SettleRequest(stream=AT, token=all_of_it.token))
        assert len(acked.done) == len(all_of_it.messages)
        assert not waiting.done()
        waiting.cancel()


def test_nothing_is_claimed_for_a_consumer_that_hung_up(
    server: Harness, consumers: tuple[Rpc, Rpc], database: str
) -> None:
    ann, bob = consumers
    at = flows.StreamRef(stream="orders", group="late")
    pull = flows.PullRequest(stream=at, limit=1000, visibility_seconds=600)
    ann.call("Streams.Pull", pull)
    waits = flows.PullRequest(stream=at, limit=1000, visibility_seconds=600, wait_seconds=20)
    call = ann.channel.unary_unary(f"/{PACKAGE}.Streams/Pull", flows.PullRequest.SerializeToString, None).future(
        waits, metadata=(("authorization", f"Bearer {server.admin}"),)
    )
    time.sleep(0.5)
    call.cancel()
    time.sleep(0.5)
    fill_queue(database, "orders", 40)  # twenty more than before
    found = bob.call("Streams.Pull", flows.PullRequest(stream=at, limit=1000, visibility_seconds=600, wait_seconds=5))
    assert [each.attempts for each in found.messages] == [1] * len(found.messages)
    assert found.messages


def test_a_token_of_one_pipeline_reads_no_stream_of_another_in_the_same_queue(
    server: Harness, consumers: tuple[Rpc, Rpc], database: str
) -> None:
    fill_queue(database, "salaries")
    token = server.tokens.create("eve", Role.OPERATOR, scope=Scope(pipeline="orders"))[0]
    eve = Rpc(consumers[0].channel, token)
    assert eve.call("Streams.Pull", flows.PullRequest(stream=AT)).messages
    other = flows.StreamRef(stream="salaries", group="billing")
    requests = {
        "Pull": flows.PullRequest(stream=other), "Replay": flows.ReplayStreamRequest(stream=other, offset=0),
        **{verb: flows.SettleRequest(stream=other, token="0" * 32) for verb in ("Ack", "Nack", "Extend")},
    }  # fmt: skip
    for verb, request in requests.items():
        assert eve.refusal(f"Streams.{verb}", request)[0] is grpc.StatusCode.PERMISSION_DENIED, verb


def test_changes_that_take_long_do_not_keep_looks_out(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "_CHANGING", 1)
    goes_on = threading.Event()

    def wait(*_: Any, **__: Any) -> Any:
        goes_on.wait(60)
        raise UnknownPipeline("gone")

    with reach(server) as channel:
        admin = Rpc(channel, server.admin)
        create(admin, "orders")
        monkeypatch.setattr(server.control, "drain", wait)
        drains = [
            channel.unary_unary(f"/{PACKAGE}.Control/DrainAndStop", None, None).future(
                b"", metadata=(("authorization", f"Bearer {server.admin}"),)
            )
            for _ in range(20)
        ]
        assert admin.call("Flows.Get").name == "orders"
        goes_on.set()
        for each in drains:
            assert each.exception().code() is grpc.StatusCode.NOT_FOUND
