"""Attempts to get in, to read somebody else's, and to keep others out: docs/security.md names these tests too."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import urllib.request
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import grpc
import orjson
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from starlette.responses import Response

from tests.api.conftest import Harness, Serve, document, raw
from tests.api.tenants import of_tenant, scoped
from tests.api.test_grpc import Rpc, reach
from tests.crash.actors import wait_for
from tidemill.api import connections, ports, sse
from tidemill.api import serve as serve_module
from tidemill.api.app import create_app
from tidemill.api.client import ServerClient
from tidemill.api.metrics_port import tls_context
from tidemill.api.ports import Address, serve_metrics
from tidemill.api.proto import flows_pb2 as flows
from tidemill.api.rpc import server as grpc_server
from tidemill.api.rpc.server import GrpcSettings, serve_grpc
from tidemill.api.serve import ServerSettings, serving
from tidemill.errors import ConfigError, LifecycleError, TidemillError
from tidemill.lab.servers import tls
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.server.managed import PipelineView
from tidemill.service.server.scope import Scope
from tidemill.service.server.tokens import Role
from tidemill.state.installation import InstallationStore
from tidemill.telemetry.metrics import Metrics


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname or "", address.port or 0), 60)


def test_a_name_that_became_free_shows_nothing_of_who_had_it(server: Harness) -> None:
    everything, shop, hotel = server.client(), scoped(server, tenant="shop"), scoped(server, tenant="hotel")
    shop.create(of_tenant("orders", "shop"))
    shop.delete("orders")
    with pytest.raises(LifecycleError, match="its state is still there"):
        hotel.create(of_tenant("orders", "hotel"))
    assert [each.name for each in everything.pipelines()] == []
    assert shop.create(of_tenant("orders", "shop")).status == "running", "it goes on for whose it is"
    shop.delete("orders")
    assert everything.create(of_tenant("orders", "hotel")).tenant == "hotel", "who may see all may give it away"
    with pytest.raises(LifecycleError, match="already"):
        shop.create(of_tenant("orders", "shop"))
    hotel.delete("orders")
    with pytest.raises(LifecycleError, match="its state is still there"):
        shop.create(of_tenant("orders", "shop"))


def test_state_that_no_server_knows_of_is_nobodys_to_take(server: Harness) -> None:
    """`tidemill run` with the same state directory leaves it there."""
    (server.settings.state_dir / "payroll").mkdir(parents=True)
    with pytest.raises(LifecycleError, match="its state is still there"):
        scoped(server, tenant="hotel").create(of_tenant("payroll", "hotel"))


def test_who_owns_a_name_is_known_to_the_next_server_too(serve: Serve) -> None:
    first = serve()
    scoped(first, tenant="shop").create(of_tenant("orders", "shop"))
    scoped(first, tenant="shop").delete("orders")
    first.close()
    with pytest.raises(LifecycleError, match="its state is still there"):
        scoped(serve(), tenant="hotel").create(of_tenant("orders", "hotel"))


@pytest.mark.parametrize("name", ["../evil", "..", "a/../../b", "a%2f..%2fb", "/etc", "a\nb", "a\x00b", "-rf", "a b"])
def test_a_name_is_no_way_to_another_directory(server: Harness, name: str) -> None:
    before = sorted(os.walk(server.directory))
    with pytest.raises(TidemillError):
        server.client().create(document(name))
    for path in (f"/pipelines/{name}", f"/pipelines/{name}/log", f"/pipelines/{name}/sensing/schemas/..%2f..%2fx"):
        if path.isprintable() and " " not in path:
            assert raw(server, "GET", path)[0] in (404, 422)
    assert [each[0] for each in sorted(os.walk(server.directory))] == [each[0] for each in before]


def test_who_has_no_token_writes_nothing_to_the_store(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by an idempotency key either, on the paths that are open to everybody."""

    def claim(*given: object, **more: object) -> None:
        raise AssertionError("a key was claimed")

    monkeypatch.setattr(InstallationStore, "claim_key", claim)
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert raw(server, "POST", path, b"", {"Authorization": "", "Idempotency-Key": "k"})[0] == 405


@pytest.mark.parametrize(
    "text",
    [
        "batch: {max_events: 99999999999999999999}",
        "batch: {max_events: " + "1" * 5000 + "}",
        "ddl: {gate_timeout_seconds: .inf}",
        r'state_uri: "\ud800"',
        "dlq: {max_letters: !!int many}",
    ],
    ids=lambda text: str(text)[:40],
)
def test_a_document_that_json_and_the_store_would_not_keep_is_refused(server: Harness, text: str) -> None:
    """YAML can write more than JSON has: such a document is refused where it stands, and nothing breaks later."""
    smallest = orjson.dumps(document("orders")).decode()
    posted = f"{smallest[: smallest.rindex('}}')]}, {text}}}}}".encode()
    for path in ("/validate", "/pipelines"):
        status, problem, _headers = raw(server, "POST", path, posted, {"Content-Type": "application/yaml"})
        assert (status, problem["code"]) == (422, "document-invalid"), problem


def test_connections_that_send_nothing_are_closed(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count against the most connections that the server has, and need no token."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    with connect(server.url) as silent, connect(server.url) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert silent.recv(10) == b"", "the server ends it"
        assert slow.recv(10) == b""
    with connect(server.url) as kept:
        kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nG")
        answered = b""
        while piece := kept.recv(1000):
            answered += piece
        assert answered.endswith(b"ok"), "answered, and ended although a second request had begun"
    assert raw(server, "GET", "/healthz")[1] == b"ok"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /pipelines HTTP/1.1\r\nHost: x\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
    ],
    ids=["nothing", "half a request", "a body that never comes"],
)
def test_who_takes_every_connection_and_waits_keeps_nobody_out(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(serve_module, "_MOST_CONNECTIONS", 5)
    server = serve()
    with ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(connect(server.url)).sendall(sent)
        for _ in range(5):
            assert raw(server, "GET", "/healthz")[0] == 200
            assert raw(server, "GET", "/pipelines")[0] == 200
            stack.enter_context(connect(server.url)).sendall(sent)


def test_handshakes_that_never_come_are_only_so_many_and_keep_nobody_out(
    server: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn does not count them. Each has buffers of a third of a megabyte, and needs neither token nor
    certificate."""
    monkeypatch.setattr(connections, "_MOST_HANDSHAKES", 5)
    made = tls.make(tmp_path)
    trust = ssl.create_default_context(cafile=str(made.ca))
    settings = ServerSettings(
        Address("127.0.0.1", 0), None, server.state, certificate=made.certificate, key=made.key, client_ca=made.ca
    )
    trust.load_cert_chain(made.certificate, made.key)
    app = create_app(server.control, server.tokens)
    with serving(app, settings, Metrics().registry, lambda line: None) as (url, _), ExitStack() as stack:
        at = f"https://localhost:{urlsplit(url).port}/healthz"
        for _ in range(3):
            silent = [stack.enter_context(connect(url)) for _ in range(8)]
            for each in silent[:3]:
                each.settimeout(20)  # a handshake may last a minute
                with suppress(ConnectionResetError):
                    assert each.recv(1) == b"", "the oldest make room"
            for _ in range(6):
                with urllib.request.urlopen(at, timeout=30, context=trust) as answer:
                    assert answer.read() == b"ok"


def test_who_reads_no_answers_on_every_connection_keeps_nobody_out(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_module, "_MOST_CONNECTIONS", 3)
    monkeypatch.setattr(connections, "STALLED_SECONDS", 600.0)
    app = create_app(server.control, server.tokens)
    app.add_api_route("/large", lambda: Response(bytes(32 << 20)))
    settings = ServerSettings(Address("127.0.0.1", 0), None, server.state)
    with (
        serving(app, settings, Metrics().registry, lambda line: None) as (url, _), ExitStack() as stack,
    ):  # fmt: skip
        asked = f"GET /large HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.admin}\r\n\r\n".encode()
        for _ in range(6):
            deaf = stack.enter_context(connect(url))
            deaf.sendall(asked)
            assert deaf.recv(1), "it is being answered"
        wait_for(lambda: _answers(url), 60, "nobody else is answered")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=30) as answer:
            return bool(answer.read() == b"ok")
    except HTTPError:
        return False


def test_a_request_that_takes_long_is_not_taken_for_silence(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    client = server.client()
    client.create(document("orders"))
    stream = client.events("orders")
    assert next(stream).kind == "status"

    def restart(name: str, cause: object) -> PipelineView:
        with connect(server.url) as silent:
            assert silent.recv(1) == b"", "the time that a silent connection has is over"
        return server.control.view(name)

    monkeypatch.setattr(server.control, "restart", restart)
    assert client.restart("orders").status == "running"
    client.pause("orders")
    seen = next(stream)
    while seen.data.get("state") != "paused":
        seen = next(stream)


def test_who_does_not_read_an_answer_loses_the_connection(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.3)
    lost = threading.Event()

    class Noted(connections.ImpatientProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    monkeypatch.setattr(connections, "ImpatientProtocol", Noted)
    app = create_app(server.control, server.tokens)
    app.add_api_route("/large", lambda: Response(bytes(32 << 20)))
    settings = ServerSettings(Address("127.0.0.1", 0), None, server.state)
    with serving(app, settings, Metrics().registry, lambda line: None) as (url, _), connect(url) as deaf:
        deaf.sendall(f"GET /large HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.admin}\r\n\r\n".encode())
        assert lost.wait(60)


def test_one_token_cannot_have_all_streams(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_STREAMS_OF_ONE", 1)
    greedy, other = server.client(name="greedy"), server.client(name="other")
    greedy.create(document("orders"))
    first = greedy.events()
    next(first)
    with pytest.raises(TidemillError, match="or 1 of this token"):
        next(greedy.events())
    assert next(other.events()).kind == "status"


def test_guesses_and_floods_over_grpc_are_refused_for_a_while(server: Harness) -> None:
    with reach(server, rate=0.5) as channel:
        ann = Rpc(channel, server.admin)
        assert ann.call("Flows.List").flows == []
        refusals = {ann.refusal("Flows.Get")[0] for _ in range(5)}
        assert grpc.StatusCode.RESOURCE_EXHAUSTED in refusals
        bob = Rpc(channel, server.tokens.create("bob", Role.VIEWER)[0])
        assert bob.call("Flows.List").flows == [], "each token has a rate of its own"
        guesses = [Rpc(channel, f"tm_0000000{n}_{'a' * 43}").refusal("Flows.List")[0] for n in range(5)]
        assert guesses[0] is grpc.StatusCode.UNAUTHENTICATED
        assert guesses[-1] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_watches_of_health_do_not_take_every_call(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """They need no token."""
    monkeypatch.setattr(grpc_server, "MAX_WATCHES", 1)
    with reach(server) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        first = health.Watch(health_pb2.HealthCheckRequest())
        assert next(first).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as refused:
            next(health.Watch(health_pb2.HealthCheckRequest()))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        first.cancel()


def test_the_metrics_port_speaks_tls_and_wants_a_certificate(server: Harness, tmp_path: Path) -> None:
    made, theirs = tls.make(tmp_path / "ca"), tls.make(tmp_path / "clients")
    settings = ServerSettings(
        Address("127.0.0.1", 0), Address("127.0.0.1", 0), server.state, certificate=made.certificate, key=made.key,
        client_ca=theirs.ca,
    )  # fmt: skip
    app, registry = create_app(server.control, server.tokens), server.metrics.registry
    with serving(app, settings, registry, lambda line: None) as (_, url):
        assert url is not None
        assert url.startswith("https://")
        at = f"https://localhost:{urlsplit(url).port}/metrics"
        known, nobody = (ssl.create_default_context(cafile=str(made.ca)) for _ in range(2))
        known.load_cert_chain(theirs.certificate, theirs.key)
        silent = socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), 10)
        with urllib.request.urlopen(at, context=known, timeout=30) as answer:
            assert b"tidemill_events" in answer.read(), "one that says nothing keeps nobody waiting"
        for context in (nobody, ssl.create_default_context()):
            with pytest.raises((URLError, OSError)):
                urllib.request.urlopen(at, context=context, timeout=30).read()
        with pytest.raises((URLError, OSError, http.client.HTTPException)):
            urllib.request.urlopen(at.replace("https", "http"), timeout=30).read()
        silent.close()


def test_a_certificate_that_is_replaced_is_used_by_new_connections(
    server: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "LOOK_SECONDS", 0.05)
    made, later = tls.make(tmp_path / "ca"), tls.make(tmp_path / "later")
    settings = ServerSettings(
        Address("127.0.0.1", 0), Address("127.0.0.1", 0), server.state, certificate=made.certificate, key=made.key
    )  # fmt: skip
    app, registry = create_app(server.control, server.tokens), server.metrics.registry
    given = GrpcSettings("127.0.0.1:0", made.certificate, made.key)
    with (
        serving(app, settings, registry, lambda line: None) as (api, metrics),
        serve_grpc(server.control, server.tokens, given) as grpc_port,
    ):
        places = [urlsplit(api).port or 0, urlsplit(str(metrics)).port or 0, grpc_port]

        def trusts(ca: Path) -> list[bool]:
            return [_shakes_hands(port, ca) for port in places]

        assert (trusts(made.ca), trusts(later.ca)) == ([True] * 3, [False] * 3)
        made.key.write_bytes(later.key.read_bytes())
        assert trusts(made.ca) == [True] * 3, "half of a pair is not used"
        made.certificate.write_bytes(later.certificate.read_bytes())
        wait_for(lambda: trusts(later.ca) == [True] * 3, 60, "the old certificate is still shown")


def _shakes_hands(port: int, ca: Path) -> bool:
    context = ssl.create_default_context(cafile=str(ca))
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(("127.0.0.1", port), 30) as plain,
            context.wrap_socket(plain, server_hostname="localhost"),
        ):
            return True
    except ssl.SSLError:
        return False


def test_metrics_are_shown_only_to_a_token_for_all_pipelines_where_that_is_asked_for(server: Harness) -> None:
    url, stop = serve_metrics(Address("127.0.0.1", 0), server.metrics.registry, callers=server.tokens)
    whole, record = server.tokens.create("prometheus", Role.VIEWER)
    tenant, _ = server.tokens.create("ann", Role.ADMIN, scope=Scope(tenant="pond"))

    def ask(token: str, scheme: str = "Bearer") -> int:
        request = urllib.request.Request(url, headers={"Authorization": f"{scheme} {token}"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code if b"tidemill_" not in error.read() else 0

    try:
        assert [ask(whole), ask(whole, "Basic"), ask("tm_wrong"), ask(""), ask(tenant)] == [200, 401, 401, 401, 403]
        server.tokens.revoke(record.id)
        assert ask(whole) == 401
    finally:
        stop()
    with pytest.raises(ConfigError, match="there are no tokens"):
        ServerSettings(Address("127.0.0.1", 0), None, "x", auth=False, metrics_auth=True).check()


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_metrics_port_answers_while_as_many_as_it_takes_are_silent(tmp_path: Path, encrypted: bool) -> None:
    """Silent from the beginning, which with TLS is the handshake."""
    made = tls.make(tmp_path) if encrypted else None
    context = tls_context(made.certificate, made.key, None) if made is not None else None
    trust = ssl.create_default_context(cafile=str(made.ca)) if made is not None else None
    url, stop = serve_metrics(Address("127.0.0.1", 0), Metrics().registry, context)
    place = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
    with ExitStack() as stack:
        stack.callback(stop)
        silent = [stack.enter_context(socket.create_connection(place, 30)) for _ in range(40)]
        for each in silent[:8]:
            with suppress(ConnectionResetError):
                assert each.recv(1) == b"", "the oldest make room"
        for _ in range(3):
            silent += [stack.enter_context(socket.create_connection(place, 30)) for _ in range(40)]
            assert b"# HELP" in urllib.request.urlopen(url, timeout=30, context=trust).read()


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"source": {"config": {"dsn": "postgresql://u@h/d?passfile=/etc/passwd"}}}},
        {"spec": {"processors": [{"type": "python", "config": {"id": "p", "file": "ROOT/x.py", "function": "f"}}]}},
        {"spec": {"processors": [{"type": "sql", "config": {"id": "p", "query": "SELECT * FROM '/etc/passwd'"}}]}},
        {"spec": {"processors": [{"type": "javascript", "config": {"id": "p", "file": "/etc/passwd"}}]}},
        {"spec": {"checkpoints": {"type": "file", "config": {"path": "/etc/cron.d/x"}}}},
        {"spec": {"log": {"uri": "file:///etc"}}},
        {"spec": {"state_dir": "/etc"}},
        {"spec": {"spark": {"conf": {"spark.jars": "/tmp/evil.jar"}}}},
    ],
    ids=lambda body: str(body)[9:60],
)
def test_no_patch_reaches_further_than_a_new_document_may(server: Harness, body: dict[str, Any]) -> None:
    """The pipeline runs on as it was."""
    client = server.client()
    before = client.create(document("orders")).version
    with pytest.raises(TidemillError):
        client.patch("orders", body)
    assert client.pipeline("orders").version == before
    assert client.pipeline("orders").status == "running"


def test_nul_in_an_address_or_a_body_is_the_callers_mistake(
    tmp_path: Path, stand_ins: None, postgres18: Postgres
) -> None:
    """PostgreSQL keeps no text with it: as state store it would refuse, and the server say that it cannot be used."""
    with postgres18.database("nul_in_requests") as state, closing(Harness(tmp_path, state=state)) as server:
        server.client().create(document("orders", dlq={}))
        paths = server.client().request("GET", "/openapi.json")["paths"]
        bodies = [{"tables": ["a\0b"]}, {"sink": "a\0b"}, {"where": "a\0b"}, {"from": "a\0b"}, {"a\0b": 1}]
        tried = 0
        for path, methods in paths.items():
            at = path.replace("{name}", "orders").replace("{number}", "1").replace("{family}", "sinks")
            for method, said in methods.items():
                parameters = [each["name"] for each in said.get("parameters", ()) if each.get("in") == "query"]
                for each in parameters:
                    place = at.replace("{table}", "t").replace("{component}", "files")
                    status, answer, _ = raw(server, method.upper(), f"{place}?{each}=a%00b", b"{}")
                    assert (status, answer["code"]) == (422, "request-invalid"), (method, path, each)
                    tried += 1
                if "{table}" in path or "{component}" in path:
                    place = at.replace("{table}", "a%00b").replace("{component}", "a%00b")
                    assert raw(server, method.upper(), place)[0] == 422, path
                if method == "post" and "application/yaml" not in said.get("requestBody", {}).get("content", {}):
                    for body in bodies:
                        status, answer, _ = raw(server, "POST", at, body)
                        assert status < 500, (path, body, answer)
        assert tried > 20


@pytest.mark.parametrize("written", ["\0", '"\\0"'], ids=["as it is", "escaped"])
def test_a_document_with_the_character_nul_is_refused_and_breaks_nothing(server: Harness, written: str) -> None:
    text = f"metadata: {{name: orders, labels: {{team: {written}}}}}\nspec: {{}}\n"
    status, body, _ = raw(server, "POST", "/pipelines", text.encode(), {"Content-Type": "application/yaml"})
    assert (status, body["code"]) == (422, "document-invalid")
    spoilt = document("orders", state_dir="a\0b")
    assert raw(server, "POST", "/pipelines", spoilt)[0] == 422
    with reach(server) as channel:
        for sent in (text, orjson.dumps(spoilt).decode()):
            code, error = Rpc(channel, server.admin).refusal("Flows.Create", flows.CreateFlowRequest(document=sent))
            assert (code, error["code"]) == (grpc.StatusCode.INVALID_ARGUMENT, "document-invalid")
    made = server.client().create(document("orders")).version
    assert raw(server, "PATCH", "/pipelines/orders", {"metadata": {"labels": {"team": "a\0b"}}})[0] == 422
    assert server.client().pipeline("orders").version == made


def test_a_client_of_the_server_needs_no_more_than_its_token(server: Harness) -> None:
    """Neither a cookie nor a query carries one: a link cannot."""
    for headers in ({"Cookie": f"token={server.admin}"}, {"X-Token": server.admin}, {"Authorization": server.admin}):
        assert raw(server, "GET", "/pipelines", headers={"Authorization": "", **headers})[0] == 401
    assert raw(server, "GET", f"/pipelines?token={server.admin}", headers={"Authorization": ""})[0] == 401
    assert list(ServerClient(server.url, server.admin).pipelines()) == []


def test_grpc_speaks_tls_and_wants_a_certificate(server: Harness, tmp_path: Path) -> None:
    made, theirs = tls.make(tmp_path / "ca"), tls.make(tmp_path / "clients")
    settings = GrpcSettings("127.0.0.1:0", made.certificate, made.key, theirs.ca)
    with serve_grpc(server.control, server.tokens, settings) as port:
        ca = made.ca.read_bytes()
        ours = theirs.key.read_bytes(), theirs.certificate.read_bytes()
        for pair, refused in ((ours, False), ((None, None), True)):
            with grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(ca, *pair)) as channel:
                rpc = Rpc(channel, server.admin)
                if refused:
                    assert rpc.refusal("Flows.List")[0] is grpc.StatusCode.UNAVAILABLE
                else:
                    assert rpc.call("Flows.List").flows == []
        with grpc.insecure_channel(f"localhost:{port}") as channel:
            assert Rpc(channel, server.admin).refusal("Flows.List")[0] is grpc.StatusCode.UNAVAILABLE
