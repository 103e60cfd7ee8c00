"""What a token of one tenant, or of one pipeline, reaches: nothing of another's. Lines of docs/security.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import grpc
import orjson
import pytest
from google.protobuf import message_factory

from tests.api.conftest import Harness, document
from tests.api.tenants import of_tenant, scoped
from tests.api.test_grpc import Rpc, reach
from tidemill.api.proto import SERVICES, service
from tidemill.api.proto import flows_pb2 as flows
from tidemill.errors import AccessRefused, ConfigError, UnknownPipeline
from tidemill.service.server import fleet
from tidemill.service.server.scope import Scope
from tidemill.service.server.tokens import Role


def test_a_token_of_a_tenant_reaches_nothing_of_another(server: Harness) -> None:
    everything = server.client()
    for name, tenant in (("orders", "shop"), ("baskets", "shop"), ("beds", "hotel")):
        everything.create(of_tenant(name, tenant))
    everything.create(document("nobodys"))
    client = scoped(server, tenant="hotel")
    assert [each.name for each in client.pipelines()] == ["beds"]
    assert client.pause("beds").status == "paused"
    paths = client.request("GET", "/openapi.json")["paths"]
    tried = 0
    for path, methods in paths.items():
        for method in methods if "{name}" in path else ():
            for name in ("orders", "nobodys", "there-is-none"):
                at = path.replace("{name}", name).replace("{number}", "1").replace("{table}", "public.t")
                body = {"level": "INFO", "mode": "snapshot", "from": "0", **document(name)}
                with pytest.raises(UnknownPipeline, match=f'there is no pipeline "{name}"'):
                    client.request(method.upper(), at, body if method in ("post", "put", "patch") else None)
                tried += 1
    assert tried > 60
    assert [each.status for each in everything.pipelines()] == ["running", "paused", "running", "running"]
    ready = client.request("GET", "/readyz")["pipelines"]
    assert ready == [{"name": "beds", "status": "paused"}]
    assert {each["subject"] for each in client.request("GET", "/audit")} == {"beds"}
    with pytest.raises(UnknownPipeline):
        client.request("POST", "/validate", of_tenant("orders", "hotel"), query=[("instead_of", "orders")])
    with pytest.raises(AccessRefused, match="about the server"):
        client.request("PUT", "/log-level", {"level": "DEBUG"})


def test_a_stream_of_events_has_only_what_the_token_is_for(server: Harness) -> None:
    everything = server.client()
    everything.create(of_tenant("orders", "shop"))
    everything.create(of_tenant("beds", "hotel"))
    stream = scoped(server, Role.VIEWER, tenant="hotel").events()
    assert next(stream).data["name"] == "beds"
    everything.pause("orders")
    everything.pause("beds")
    seen = [next(stream)]
    while seen[-1].data.get("state") != "paused":
        seen.append(next(stream))
    assert {each.data.get("name", each.data.get("pipeline")) for each in seen} == {"beds"}


def test_the_audit_trail_of_a_tenant_is_found_below_that_of_others(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much others do."""
    monkeypatch.setattr(fleet, "_AUDIT_PAGE", 2)
    everything = server.client()
    everything.create(of_tenant("beds", "hotel"))
    everything.create(of_tenant("orders", "shop"))
    for _ in range(4):
        everything.pause("orders")
        everything.resume("orders")
    client = scoped(server, tenant="hotel")
    assert [each["action"] for each in client.request("GET", "/audit")] == ["create"]
    everything.pause("beds")
    assert [each["action"] for each in client.request("GET", "/audit?limit=1")] == ["pause"]
    assert [each["action"] for each in client.request("GET", "/audit")] == ["pause", "create"]


def test_events_of_a_name_that_has_become_another_tenants_are_not_shown(server: Harness) -> None:
    everything = server.client()
    everything.create(of_tenant("beds", "hotel"))
    stream = scoped(server, Role.VIEWER, tenant="hotel").events("beds")
    assert next(stream).data["name"] == "beds"
    everything.delete("beds")
    everything.create(of_tenant("beds", "shop"))
    everything.pause("beds", reason="the shop's")
    everything.delete("beds")
    everything.create(of_tenant("beds", "hotel"))
    everything.drain("beds")
    seen = [next(stream)]
    while not seen[-1].data.get("drains"):
        seen.append(next(stream))
    assert "paused" not in {each.data.get("state") for each in seen}, "that was the shop's"


def test_a_token_of_one_pipeline_reaches_no_other(server: Harness) -> None:
    everything = server.client()
    everything.create(of_tenant("orders", "shop"))
    everything.create(of_tenant("baskets", "shop"))
    client = scoped(server, pipeline="baskets")
    assert [each.name for each in client.pipelines()] == ["baskets"]
    assert client.stop("baskets").status == "stopped"
    with pytest.raises(UnknownPipeline):
        client.stop("orders")
    with pytest.raises(AccessRefused, match="for pipeline baskets only"):
        client.create(document("more"))


def test_an_admin_of_a_tenant_makes_pipelines_of_that_tenant_only(server: Harness) -> None:
    client = scoped(server, tenant="hotel")
    assert client.create(of_tenant("beds", "hotel")).tenant == "hotel"
    refused: tuple[Callable[[], object], ...] = (
        lambda: client.create(of_tenant("rooms", "shop")),
        lambda: client.create(document("rooms")),
        lambda: client.request("POST", "/validate", of_tenant("rooms", "shop")),
        lambda: client.patch("beds", {"metadata": {"tenant": "shop"}}),
        lambda: client.patch("beds", {"metadata": {"tenant": None}}),
        lambda: client.replace(of_tenant("beds", "shop")),
    )
    for attempt in refused:
        with pytest.raises(AccessRefused, match="for tenant hotel only"):
            attempt()
    assert [(each.name, each.tenant) for each in server.client().pipelines()] == [("beds", "hotel")]
    client.delete("beds")


def test_a_token_of_a_tenant_reaches_nothing_of_another_over_grpc(server: Harness) -> None:
    everything = server.client()
    everything.create(of_tenant("orders", "shop"))
    everything.create(of_tenant("beds", "hotel"))
    with reach(server) as channel:
        hotel = Rpc(channel, server.tokens.create("ann", Role.ADMIN, scope=Scope(tenant="hotel"))[0])
        assert [each.name for each in hotel.call("Flows.List").flows] == ["beds"]
        assert hotel.call("Flows.Get").name == "beds", "the only one, for this token"
        for service_name in SERVICES:
            for method in service(service_name).methods:
                request = message_factory.GetMessageClass(method.input_type)()
                if "pipeline" in request.DESCRIPTOR.fields_by_name:
                    request.pipeline = "orders"
                elif "stream" in request.DESCRIPTOR.fields_by_name:
                    request.stream.pipeline, request.stream.stream, request.stream.group = "orders", "s", "g"
                else:
                    continue
                for field, text in (("merge_patch_json", "{}"), ("mode", 1)):
                    if field in request.DESCRIPTOR.fields_by_name:
                        setattr(request, field, text)
                call = f"{service_name}.{method.name}"
                assert hotel.refusal(call, request)[0] is grpc.StatusCode.NOT_FOUND, call
        made = flows.CreateFlowRequest(document=orjson.dumps(of_tenant("rooms", "shop")).decode())
        assert hotel.refusal("Flows.Create", made)[0] is grpc.StatusCode.PERMISSION_DENIED
        assert hotel.refusal("Control.ReloadConfig")[0] is grpc.StatusCode.PERMISSION_DENIED
    assert [each.status for each in everything.pipelines()] == ["running", "running"]


def test_what_another_tenant_occupies_is_refused_without_saying_whose_it_is(server: Harness) -> None:
    """A guessed id of a source, or place of a sink, must not tell who else is here and where their files are."""
    theirs = of_tenant("orders", "shop")
    place = str(server.directory / "root" / "x")
    theirs["spec"]["sinks"] = [{"type": "files", "config": {"id": "vault", "path": place}}]
    server.client().create(theirs)
    client = scoped(server, tenant="hotel")
    same_source, same_place = of_tenant("beds", "hotel"), of_tenant("beds", "hotel")
    same_source["spec"]["source"]["config"]["id"] = "orders"
    same_place["spec"]["sinks"] = [{"type": "files", "config": {"id": "mine", "path": place}}]
    for guessed in (same_source, same_place):
        attempts: tuple[Callable[[], object], ...] = (
            partial(client.create, guessed),
            partial(client.request, "POST", "/validate", guessed),
        )
        for attempt in attempts:
            with pytest.raises(ConfigError, match="this token is not for") as refused:
                attempt()
            said = f"{refused.value.what} {refused.value.where} {refused.value.fix}"
            assert not any(word in said for word in ('"orders"', "is orders", "vault", "pipeline orders")), said
    own = of_tenant("rooms", "hotel")
    client.create(own)
    own["metadata"]["name"] = "suites"
    with pytest.raises(ConfigError, match="source called"):
        client.create(own)
