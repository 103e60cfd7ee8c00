"""The gRPC port over real sockets; pipelines are stand-ins, the queue of `Streams` is a real PostgreSQL."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.api.conftest import Harness, Serve, StandInCapture, document
from tests.api.test_schema_changes import seen
from tests.support.deliveries import make_deliveries, make_events
from tests.support.waiting import until
from tidemill.api import rpc
from tidemill.api.proto import PACKAGE, SERVICES, service
from tidemill.api.proto import flows_pb2 as flows
from tidemill.api.proto import operations_pb2 as operations
from tidemill.api.rpc.ddl import DDLService
from tidemill.api.rpc.flows import CheckpointsService, FlowsService
from tidemill.api.rpc.operations import ControlService, HealthService, MetricsService, StatusService
from tidemill.api.rpc.runs import RunsService
from tidemill.api.rpc.server import GrpcSettings, serve_grpc
from tidemill.api.rpc.streams import StreamsService
from tidemill.api.rpc.wiring import ERROR_METADATA
from tidemill.capture.status import CaptureStatus
from tidemill.errors import EnvironmentProblem
from tidemill.service.run.status import WAITING
from tidemill.service.server.tokens import Role
from tidemill.sinks.pgstream import PgstreamConfig, PgstreamSink

SECONDS = 60
CHANGES = {
    "Control": Role.OPERATOR, "Flows.Create": Role.ADMIN, "Flows.Update": Role.ADMIN, "Flows.Delete": Role.ADMIN,
    "Control.ReloadConfig": Role.ADMIN, "Flows.Start": Role.OPERATOR, "Flows.Restart": Role.OPERATOR,
    "DDL.Plan": Role.OPERATOR, "DDL.Approve": Role.OPERATOR,
    "DDL.Reject": Role.OPERATOR, "DDL.Apply": Role.OPERATOR,
    "Checkpoints.Set": Role.OPERATOR, "Streams": Role.OPERATOR, "Runs.RunNow": Role.OPERATOR,
}  # fmt: skip


class Rpc:
    """A client with one token."""

    def __init__(self, channel: grpc.Channel, token: str = "") -> None:
        self.channel, self._metadata = channel, (("authorization", f"Bearer {token}"),) if token else ()

    def call(self, method: str, request: Any = None) -> Any:
        name, _, verb = method.partition(".")
        descriptor = service(name).methods_by_name[verb]
        kind = self.channel.unary_stream if descriptor.server_streaming else self.channel.unary_unary
        invoke = kind(
            f"/{PACKAGE}.{name}/{verb}",
            request_serializer=message_factory.GetMessageClass(descriptor.input_type).SerializeToString,
            response_deserializer=message_factory.GetMessageClass(descriptor.output_type).FromString,
        )
        given = message_factory.GetMessageClass(descriptor.input_type)() if request is None else request
        return invoke(given, timeout=SECONDS, metadata=self._metadata)

    def refusal(self, method: str, request: Any = None) -> tuple[grpc.StatusCode, dict[str, str]]:
        error: Any = None
        try:
            answer = self.call(method, request)
            if hasattr(answer, "__next__"):
                list(answer)
        except grpc.RpcError as raised:
            error = raised
        assert error is not None, f"{method} was not refused"
        trailing = dict(error.trailing_metadata() or ())
        return error.code(), json.loads(trailing.get(ERROR_METADATA, "{}"))


@contextmanager
def reach(server: Harness, **settings: Any) -> Iterator[grpc.Channel]:
    with (
        serve_grpc(server.control, server.tokens, GrpcSettings("127.0.0.1:0", **settings)) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield channel


@pytest.fixture
def channel(server: Harness) -> Iterator[grpc.Channel]:
    with reach(server) as made:
        yield made


@pytest.fixture
def admin(server: Harness, channel: grpc.Channel) -> Rpc:
    return Rpc(channel, server.admin)


def wait_for_state(client: Rpc, name: str, state: str) -> None:
    for sample in client.call("Metrics.StreamMetrics", operations.MetricsRequest(pipeline=name, interval_ms=100)):
        if sample.state == state:
            return
    pytest.fail("the stream of metrics ended")


def create(client: Rpc, name: str, **spec: Any) -> Any:
    return client.call("Flows.Create", flows.CreateFlowRequest(document=json.dumps(document(name, **spec))))


def test_a_pipeline_lives_through_create_pause_resume_update_drain_and_delete(admin: Rpc) -> None:
    made = create(admin, "orders")
    assert made.name == "orders"
    assert dict(made.labels) == {"team": "pond"}
    assert "croak" not in made.spec_json, "secrets are masked"
    wait_for_state(admin, "orders", "running")
    ref = operations.PipelineRef(pipeline="orders", reason="a look")
    until(lambda: admin.call("Health.Check", ref).stage == operations.CDC)
    assert admin.call("Health.Check", ref).status == operations.HealthReport.SERVING
    assert admin.call("Control.Pause", ref).state == "paused"
    assert admin.call("Health.Check", ref).status == operations.HealthReport.NOT_SERVING
    assert admin.call("Control.Resume", ref).state == "running"
    patch = flows.UpdateFlowRequest(
        pipeline="orders", merge_patch_json='{"metadata": {"labels": {"team": "lake"}}}', expect_version=made.version
    )
    changed = admin.call("Flows.Update", patch)
    assert dict(changed.labels) == {"team": "lake"}
    code, error = admin.refusal("Flows.Update", patch)
    assert (code, error["code"]) == (grpc.StatusCode.ABORTED, "changed-meanwhile")
    until(lambda: admin.call("Status.GetStatus", ref).began)
    status = admin.call("Status.GetStatus", ref)
    assert (status.state, status.began, status.lag_bytes) == ("running", "0/1", 7)
    assert [sink.sink for sink in status.sinks] == ["bucket-orders"]
    drained = admin.call("Control.DrainAndStop", operations.DrainRequest(pipeline="orders", seconds=5))
    assert drained.state == "stopped"
    assert admin.call("Flows.Start", ref).state == "running"
    assert admin.call("Control.Stop", ref).state == "stopped"
    admin.call("Flows.Delete", flows.DeleteFlowRequest(pipeline="orders"))
    assert admin.refusal("Flows.Get", ref)[0] is grpc.StatusCode.NOT_FOUND


def test_an_empty_name_is_the_only_pipeline_and_never_the_one_to_delete(admin: Rpc) -> None:
    create(admin, "orders")
    assert admin.call("Flows.Get").name == "orders"
    assert admin.refusal("Flows.Delete")[0] is grpc.StatusCode.INVALID_ARGUMENT
    create(admin, "customers")
    assert admin.refusal("Flows.Get")[0] is grpc.StatusCode.NOT_FOUND


def test_flows_are_listed_by_page_state_and_label(admin: Rpc) -> None:
    for name in ("a", "b", "c"):
        document_ = json.dumps(document(name))
        admin.call("Flows.Create", flows.CreateFlowRequest(document=document_, leave_stopped=True))
    first = admin.call("Flows.List", flows.ListFlowsRequest(limit=2))
    assert ([each.name for each in first.flows], first.next_after) == (["a", "b"], "b")
    rest = admin.call("Flows.List", flows.ListFlowsRequest(limit=2, after=first.next_after))
    assert ([each.name for each in rest.flows], rest.next_after) == (["c"], "")
    assert admin.call("Flows.List", flows.ListFlowsRequest(state="failed")).flows == []
    assert len(admin.call("Flows.List", flows.ListFlowsRequest(labels={"team": "pond"})).flows) == 3


def test_a_failed_pipeline_is_not_serving_and_says_why(admin: Rpc) -> None:
    source = {"type": "pond", "config": {"id": "orders", "dsn": "pond://drought"}}
    create(admin, "orders", source=source)
    wait_for_state(admin, "orders", "failed")
    health = admin.call("Health.Check")
    assert (health.status, health.stage) == (operations.HealthReport.NOT_SERVING, operations.SETUP)
    assert "the pond is dry" in health.error_detail
    assert admin.call("Status.GetStatus").error.what == "the pond is dry"


def test_a_refused_document_comes_back_with_code_what_where_and_fix(admin: Rpc) -> None:
    code, error = admin.refusal("Flows.Create", flows.CreateFlowRequest(document="metadata: {name: ünglück}\nspec: {}"))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert error["code"]
    assert error["what"]


def test_a_token_is_asked_for_everywhere_and_its_role_counts(server: Harness, channel: grpc.Channel) -> None:
    create(Rpc(channel, server.admin), "orders")
    for name in SERVICES:
        for method in service(name).methods:
            call = f"{name}.{method.name}"
            assert Rpc(channel).refusal(call)[0] is grpc.StatusCode.UNAUTHENTICATED, call
            assert Rpc(channel, "tm_00000000_" + "x" * 43).refusal(call)[0] is grpc.StatusCode.UNAUTHENTICATED, call
            needed = CHANGES.get(call, CHANGES.get(name, Role.VIEWER))
            for role in Role:
                client = Rpc(channel, server.tokens.create("ann", role)[0])
                if not role.covers(needed):
                    assert client.refusal(call)[0] is grpc.StatusCode.PERMISSION_DENIED, (call, role)


def test_the_roles_in_the_code_are_those_of_this_page() -> None:
    kinds = (HealthService, ControlService, StatusService, MetricsService, FlowsService, DDLService,
             CheckpointsService, StreamsService, RunsService)  # fmt: skip
    for name, kind in zip(SERVICES, kinds, strict=True):
        for method in service(name).methods:
            handler = getattr(kind, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower())
            assert handler.needed_role is CHANGES.get(f"{name}.{method.name}", CHANGES.get(name, Role.VIEWER))


def test_every_change_is_in_the_audit_trail(server: Harness, admin: Rpc) -> None:
    create(admin, "orders")
    admin.call("Control.Stop", operations.PipelineRef(pipeline="orders", reason="maintenance"))
    entries = [(each.action, each.subject) for each in server.store.audit_trail(10)]
    assert ("stop", "orders") in entries
    assert ("create", "orders") in entries
    assert any("maintenance" in each.detail for each in server.store.audit_trail(10))


def test_a_revoked_token_ends_its_stream_of_metrics(
    server: Harness, channel: grpc.Channel, admin: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.api.rpc.operations.CHECK_SECONDS", 0.1)
    create(admin, "orders")
    token, stored = server.tokens.create("ann", Role.VIEWER)
    samples = Rpc(channel, token).call("Metrics.StreamMetrics", operations.MetricsRequest(interval_ms=100))
    assert next(samples).memory_bytes > 1 << 20
    server.tokens.revoke(stored.id)
    assert len(list(samples)) < SECONDS * 10, "it ends by itself"


def test_the_standard_health_service_needs_no_token_for_the_server_and_one_for_a_pipeline(
    server: Harness, channel: grpc.Channel, admin: Rpc
) -> None:
    create(admin, "orders")
    wait_for_state(admin, "orders", "running")
    stub = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS).status == serving
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="orders"), timeout=SECONDS)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    known = (("authorization", f"Bearer {server.admin}"),)
    of_one = health_pb2.HealthCheckRequest(service="orders")
    assert stub.Check(of_one, timeout=SECONDS, metadata=known).status == serving
    watch = stub.Watch(of_one, timeout=SECONDS, metadata=known)
    assert next(watch).status == serving
    admin.call("Control.Pause")
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()


def test_reflection_describes_every_service(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = stub.ServerReflectionInfo(iter([asked]), timeout=SECONDS)
    names = {each.name for each in answer.list_services_response.service}
    assert {f"{PACKAGE}.{name}" for name in SERVICES} <= names
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"{PACKAGE}.Streams")
    (answer,) = stub.ServerReflectionInfo(iter([asked]), timeout=SECONDS)
    assert answer.file_descriptor_response.file_descriptor_proto


def test_a_message_beyond_the_limit_is_refused(server: Harness) -> None:
    with reach(server, max_message=1000) as channel:
        client = Rpc(channel, server.admin)
        request = flows.CreateFlowRequest(document="x" * 2000)
        assert client.refusal("Flows.Create", request)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_taken_port_is_said_at_once(server: Harness) -> None:
    with serve_grpc(server.control, server.tokens, GrpcSettings("127.0.0.1:0")) as port:
        taken = GrpcSettings(f"127.0.0.1:{port}")
        with pytest.raises(EnvironmentProblem, match="cannot be used"), serve_grpc(server.control, None, taken):
            pytest.fail("two servers on one port")


def test_without_tokens_everybody_may_do_everything(serve: Serve) -> None:
    server = serve(auth=False)
    with (
        serve_grpc(server.control, None, GrpcSettings("127.0.0.1:0")) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert create(Rpc(channel), "orders").name == "orders"


def test_the_interface_is_shipped_for_other_languages() -> None:
    directory = Path(rpc.__file__).parent.parent / "proto"
    assert {path.name for path in directory.glob("*.proto")} == {"operations.proto", "flows.proto"}


def test_consumers_pull_ack_nack_extend_and_replay_over_grpc(server: Harness, admin: Rpc, database: str) -> None:
    sink = PgstreamSink(PgstreamConfig(id="queue", dsn=database, stream="orders"))
    (delivery,) = make_deliveries(make_events(40), 0, 40, lanes=1)
    sink.write(delivery)
    sink.close()
    queue = {"type": "pgstream", "config": {"id": "queue", "dsn": database, "stream": "orders"}}
    create(admin, "orders", sinks=[queue])
    at = flows.StreamRef(stream="orders", group="billing")
    pulled = admin.call("Streams.Pull", flows.PullRequest(stream=at, limit=3, visibility_seconds=600))
    assert [each.offset for each in pulled.messages] == [0, 1, 2]
    assert all(json.loads(each.payload)["offset"] == each.offset for each in pulled.messages)
    ids = [each.id for each in pulled.messages]
    settle = flows.SettleRequest(stream=at, token=pulled.token, ids=ids[:1])
    assert list(admin.call("Streams.Ack", settle).done) == ids[:1]
    again = admin.call("Streams.Ack", settle)
    assert (list(again.done), list(again.lost)) == ([], ids[:1])
    settle = flows.SettleRequest(stream=at, token=pulled.token, ids=ids[1:2], reason="not today")
    assert list(admin.call("Streams.Nack", settle).done) == ids[1:2]
    settle = flows.SettleRequest(stream=at, token=pulled.token, ids=ids[2:], seconds=600)
    assert list(admin.call("Streams.Extend", settle).done) == ids[2:]
    pull = flows.PullRequest(stream=at, limit=100, visibility_seconds=600)
    rest = [each for _ in range(2) for each in admin.call("Streams.Pull", pull).messages]
    assert (rest[0].offset, rest[0].attempts) == (1, 2), "what was put back comes again"
    assert {each.attempts for each in rest[1:]} == {1}
    assert [each.offset for each in rest[1:]] == list(range(3, len(rest) + 2)), "then what nobody had"
    back = flows.ReplayStreamRequest(stream=at, offset=0)
    assert admin.call("Streams.Replay", back).messages == len(rest) + 2
    assert admin.refusal("Streams.Replay", flows.ReplayStreamRequest(stream=at))[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert admin.refusal("Streams.Pull")[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_a_checkpoint_is_shown_and_moves_only_while_its_pipeline_stands(admin: Rpc) -> None:
    create(admin, "orders")
    found = admin.call("Checkpoints.Get")
    assert not found.HasField("checkpoint")
    assert [each.sink for each in found.sinks] == ["bucket-orders"]
    assert admin.refusal("Checkpoints.Set")[0] is grpc.StatusCode.INVALID_ARGUMENT
    since = flows.SetCheckpointRequest()
    since.since.FromDatetime(datetime(2026, 1, 1, tzinfo=UTC))
    code, error = admin.refusal("Checkpoints.Set", since)
    assert (code, error["code"]) == (grpc.StatusCode.FAILED_PRECONDITION, "already-running")
    since.dry_run = True
    assert "delivery begins at offset 0" in admin.call("Checkpoints.Set", since).consequence


def test_schema_changes_are_listed_decided_once_and_on_record(server: Harness, admin: Rpc) -> None:
    create(admin, "orders", ddl={"approvers_note": "required"})
    assert admin.call("DDL.List").changes == []
    seen(server, "a", "b")
    listed = admin.call("DDL.List").changes
    assert [(each.number, each.table, each.status) for each in listed] == [(2, "b", "pending"), (1, "a", "pending")]
    page = admin.call("DDL.List", flows.ListChangesRequest(limit=1))
    assert ([each.number for each in page.changes], page.next_before) == ([2], 2)
    page = admin.call("DDL.List", flows.ListChangesRequest(limit=1, before=2))
    assert ([each.number for each in page.changes], page.next_before) == ([1], 0)
    ref = flows.ChangeRef(number=1)
    assert admin.call("DDL.Get", ref).sinks[0].statements == ["ALTER TABLE t ADD n"]
    assert admin.call("DDL.Plan").changes == []
    assert admin.refusal("DDL.Approve", ref)[1]["what"].startswith("a decision")
    ref.reason = "fine"
    assert admin.call("DDL.Approve", ref).status == "approved"
    assert admin.refusal("DDL.Reject", ref)[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert admin.call("DDL.Reject", flows.ChangeRef(number=2, reason="no")).status == "rejected"
    assert "approve schema change" in {each.action for each in server.store.audit_trail(10)}


def test_a_pipeline_that_waits_for_approval_is_shown_so_and_its_life_goes_on(
    server: Harness, admin: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = WAITING

    def watch(capture: StandInCapture) -> CaptureStatus:
        return CaptureStatus(1, stage=stage, streaming_since=1.0, began="0/1")

    monkeypatch.setattr(StandInCapture, "watch", watch)
    client = server.client(Role.ADMIN)
    client.create(document("orders"))
    until(lambda: client.pipeline("orders").status == WAITING)
    assert [each.name for each in client.pipelines(state=WAITING)] == ["orders"]
    assert list(client.pipelines(state="running")) == []
    assert (client.status("orders")["state"], client.status("orders")["stage"]) == (WAITING, WAITING)
    health = admin.call("Health.Check")
    assert (health.status, health.stage_detail) == (operations.HealthReport.SERVING, WAITING)
    shown = server.metrics.registry.get_sample_value
    assert shown("tidemill_waiting_for_approval", {"pipeline": "orders"}) == 1
    stage = "cdc"
    until(lambda: client.pipeline("orders").status == "running")
    assert shown("tidemill_waiting_for_approval", {"pipeline": "orders"}) == 0
    stage = WAITING
    until(lambda: client.pipeline("orders").status == WAITING)
    assert client.pause("orders").status == "paused"
    states = [each["state"] for each in client.transitions("orders")]
    assert states[:5] == ["paused", "stopping", WAITING, "running", WAITING]


def test_a_fork_beside_a_server_of_grpc_writes_nothing_between_our_events() -> None:
    script = (
        "import asyncio, os, tidemill.api.rpc.server, grpc\n"
        "def fork():\n"
        "    for _ in range(5):\n"
        "        child = os.fork() or os._exit(0)\n"
        "        os.waitpid(child, 0)\n"
        "async def main():\n"
        "    server = grpc.aio.server()\n"
        "    server.add_insecure_port('127.0.0.1:0')\n"
        "    await server.start()\n"
        "    await asyncio.to_thread(fork)\n"
        "    await server.stop(0)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
