"""The threat model, line by line: docs/security.md names each of these tests."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import orjson
import pytest
from google.protobuf import message_factory

from tests.api.conftest import Harness, Serve, document, raw
from tests.api.test_grpc import Rpc, reach
from tests.crash.actors import wait_for
from tidemill.api.app import create_app
from tidemill.api.client import ServerClient
from tidemill.api.ports import Address
from tidemill.api.proto import SERVICES, service
from tidemill.api.proto import flows_pb2 as flows
from tidemill.api.rate import RateLimit
from tidemill.api.routes import events
from tidemill.api.serve import ServerSettings, serving
from tidemill.config.posted import UsedValues
from tidemill.errors import AccessRefused, ConfigError, ServerError, TidemillError, Unauthenticated, UnknownPipeline
from tidemill.lab.servers import tls
from tidemill.service.server import tokens
from tidemill.service.server.managed import PipelineView
from tidemill.service.server.scope import Scope
from tidemill.service.server.tokens import Role, Tokens, state_of
from tidemill.state import open_installation
from tidemill.telemetry.metrics import Metrics

HANDLERS = 40  # threads of anyio, in which the handlers of a server run
OPEN = {"/healthz", "/readyz", "/openapi.json"}
PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def test_every_line_of_the_threat_model_has_its_test() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    here = Path(__file__).parent
    files = (here / "test_security.py", here / "test_attacks.py", here.parent / "config" / "test_confine.py")
    source = "\n".join(each.read_text() for each in files)
    there = set(re.findall(r"^def (test_\w+)", source, re.M))
    assert len(named) > 15
    assert named <= there


def test_no_path_but_health_and_the_description_answers_without_a_token(server: Harness) -> None:
    paths = server.client().request("GET", "/openapi.json")["paths"]
    tried = 0
    for path, methods in paths.items():
        for method in methods:
            status, body, headers = raw(
                server, method.upper(), path.replace("{name}", "orders").replace("{number}", "1"), None,
                {"Authorization": ""},
            )  # fmt: skip
            if path in OPEN:
                assert status == 200
            else:
                tried += 1
                assert (status, body["code"]) == (401, "unauthenticated")
                assert headers["www-authenticate"] == "Bearer"
    assert tried > 25
    assert raw(server, "GET", "/pipelines/x/drift", headers={"Authorization": ""})[0] == 401
    assert raw(server, "GET", "/no/such/path", headers={"Authorization": ""})[0] == 401


def test_readiness_without_a_token_names_no_pipeline(server: Harness) -> None:
    server.client().create(document("orders"))
    assert raw(server, "GET", "/readyz", headers={"Authorization": ""})[1] == {"status": "ready"}
    assert raw(server, "GET", "/readyz")[1]["pipelines"] == [{"name": "orders", "status": "running"}]


@pytest.mark.parametrize(
    "token", ["", "tm_", "tm_00000000_" + "a" * 43, "x" * 10_000, "tm_0000000g_" + "a" * 43, "\xff"]
)
def test_a_wrong_token_is_refused(server: Harness, token: str) -> None:
    assert server.tokens.authenticate(token) is None
    given = {"Authorization": f"Bearer {token}"}
    assert raw(server, "GET", "/pipelines", headers=given)[0] in (400, 401, 431)


def test_a_token_with_one_letter_changed_is_refused(server: Harness) -> None:
    token = server.tokens.create("ann", Role.VIEWER)[0]
    assert server.tokens.authenticate(token) is not None
    for at in (4, 20, len(token) - 2):
        changed = token[:at] + ("b" if token[at] != "b" else "c") + token[at + 1 :]
        assert server.tokens.authenticate(changed) is None


def test_a_role_allows_what_it_says_and_nothing_more(server: Harness) -> None:
    viewer, operator, admin = (server.client(role) for role in Role)
    admin.create(document("orders", dlq={}))
    for path in ("/pipelines", "/pipelines/orders", "/pipelines/orders/status", "/components/sinks/files"):
        assert viewer.request("GET", path)
    for method, path, body in (
        ("POST", "/pipelines/orders/pause", None), ("GET", "/pipelines/orders/log", None),
        ("GET", "/pipelines/orders/dead-letters/1", None), ("POST", "/pipelines/orders/doctor", None),
        ("POST", "/pipelines/orders/checkpoints", {"offset": 0}), ("POST", "/validate", document("x")),
        ("POST", "/pipelines/orders/dead-letters/purge", {"all": True}),
    ):  # fmt: skip
        with pytest.raises(AccessRefused, match="viewer"):
            viewer.request(method, path, body)
    assert operator.pause("orders").status == "paused"
    assert operator.request("GET", "/pipelines/orders/log") == []
    for method, path, body in (
        ("POST", "/pipelines", document("x")), ("PATCH", "/pipelines/orders", {}), ("PUT", "/pipelines/orders", {}),
        ("DELETE", "/pipelines/orders", None), ("GET", "/audit", None),
    ):  # fmt: skip
        with pytest.raises(AccessRefused, match="operator"):
            operator.request(method, path, body)
    assert [each.name for each in admin.pipelines()] == ["orders"]


def of_tenant(name: str, tenant: str) -> dict[str, Any]:
    made = document(name, dlq={})
    made["metadata"]["tenant"] = tenant
    return made


def scoped(server: Harness, role: Role = Role.ADMIN, **scope: str) -> ServerClient:
    return ServerClient(server.url, server.tokens.create("ann", role, scope=Scope(**scope))[0], timeout=30)


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


def test_a_revoked_or_expired_token_is_refused_at_once(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, token = server.tokens.create("ann", Role.VIEWER)
    client = ServerClient(server.url, secret)
    assert list(client.pipelines()) == []
    server.tokens.revoke(token.id)
    with pytest.raises(Unauthenticated):
        list(client.pipelines())
    short, expiring = server.tokens.create("bob", Role.VIEWER, expires="1h")
    assert state_of(expiring) == "valid"
    later = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setattr(tokens, "_now", lambda: later)
    assert server.tokens.authenticate(short) is None
    assert state_of(expiring) == "expired"
    with pytest.raises(ConfigError, match="not a duration"):
        server.tokens.create("bob", Role.VIEWER, expires="soon")


def test_a_stream_of_a_revoked_token_ends(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(events, "CHECK_SECONDS", 0.1)
    secret, token = server.tokens.create("ann", Role.VIEWER)
    server.client().create(document("orders"))
    stream = ServerClient(server.url, secret).events()
    assert next(stream).kind == "status"
    server.tokens.revoke(token.id)
    assert len(list(stream)) < 1000, "it ends by itself"


def test_the_store_holds_no_secret_of_a_token_and_only_its_owner_reads_it(server: Harness) -> None:
    secret, _ = server.tokens.create("ann", Role.ADMIN)
    files = [each for each in Path(server.state).parent.iterdir() if each.name.startswith("state.sqlite")]
    assert files
    for file in files:
        assert secret.rpartition("_")[2].encode() not in file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0


def test_no_answer_and_no_event_shows_a_secret(server: Harness, caplog: pytest.LogCaptureFixture) -> None:
    client = server.client()
    client.create(document("orders"))
    shown = [
        orjson.dumps(client.request("GET", path)).decode()
        for path in ("/pipelines", "/pipelines/orders", "/pipelines/orders/status", "/audit", "/readyz")
    ]
    stream = client.events("orders")
    shown.append(str(next(stream)))
    with pytest.raises(TidemillError) as refused:
        client.patch("orders", {"spec": {"source": {"config": {"dsn": "pond://frog:croak@drought"}}}})
    assert not [text for text in [*shown, str(refused.value), caplog.text] if "croak" in text]


def test_who_checks_a_document_reads_no_variable(server: Harness) -> None:
    """Only admins may make a server use variables, and only its connections see them."""
    operator = server.client(Role.OPERATOR)
    posted = document("orders", batch={"max_events": "${POND_COUNT}"}, commit_policy={"mode": "${POND_DSN}"})
    posted["metadata"] |= {"tenant": "${POND_DSN}", "labels": {"x": "a ${POND_DSN} b"}}
    with pytest.raises(ConfigError) as refused:
        operator.request("POST", "/validate", posted)
    del posted["spec"]["commit_policy"], posted["spec"]["batch"]
    shown = operator.request("POST", "/validate", posted)
    assert shown["metadata"] == {"name": "orders", "tenant": "***", "labels": {"x": "***"}}
    for text in (str(refused.value), orjson.dumps(shown).decode()):
        assert not [part for part in ("frog", "croak", "127.0.0.1", "lake") if part in text], text


def test_a_variable_is_hidden_also_as_a_number_and_in_a_message() -> None:
    written = {"port": "${PORT:-1}", "dsn": "${DSN}", "name": "lake"}
    used = UsedValues(written, {"PORT": "6543", "DSN": "x://frog:c@h.example/lake"})
    resolved = {"port": 6543, "dsn": "x://frog:***@h.example/lake", "name": "lake", "slot": "t_6543", "lanes": [1]}
    assert used.hide(resolved) == {"port": "***", "dsn": "***", "name": "lake", "slot": "t_***", "lanes": [1]}
    assert used.hide_in_text('no host "h.example", at 6543') == 'no host "***", at ***'


def test_a_busy_stream_of_a_revoked_token_ends(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock, not only when nothing happens."""
    monkeypatch.setattr(events, "CHECK_SECONDS", 0.2)
    secret, token = server.tokens.create("ann", Role.VIEWER)
    client = server.client()
    client.create(document("orders"))
    stream = ServerClient(server.url, secret).events()
    assert next(stream).kind == "status"
    ended = threading.Event()

    def keep_busy() -> None:
        status = server.control.runtime.status("orders")
        while not ended.wait(0.005):
            server.control.runtime._subscribers.tell("on_status", status)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        server.tokens.revoke(token.id)
        assert sum(1 for _ in stream) < 5000, "it ends by itself"
    finally:
        ended.set()
        busy.join()


def test_calls_that_wait_for_a_pipeline_do_not_keep_others_out(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = server.client()
    client.create(document("orders"))
    begun, goes_on = list[str](), threading.Event()

    def restart(name: str, cause: object) -> PipelineView:
        begun.append(name)
        goes_on.wait(30)
        return server.control.view(name)

    monkeypatch.setattr(server.control, "restart", restart)
    waiting = [threading.Thread(target=raw, args=(server, "POST", "/pipelines/orders/restart")) for _ in range(45)]
    for each in waiting:
        each.start()
    try:
        wait_for(lambda: len(begun) == HANDLERS, 30, lambda: f"{len(begun)} calls have a thread")
        status, _, _ = raw(server, "GET", "/pipelines", headers={"Authorization": "Bearer wrong"})
        assert status == 401, "who somebody is, is found out without a handler's thread"
    finally:
        goes_on.set()
        for each in waiting:
            each.join()


@pytest.mark.parametrize("name", ["SECRET_DSN", "PATH", "AWS_SECRET_ACCESS_KEY"])
def test_a_document_uses_only_variables_on_the_list(server: Harness, name: str) -> None:
    posted = document("orders", source={"type": "pond", "config": {"id": "o", "dsn": f"${{{name}}}"}})
    with pytest.raises(ConfigError, match=f"{name} is not set") as refused:
        server.client().create(posted)
    assert "--allow-env" in refused.value.fix
    assert "toor" not in str(refused.value)


def test_a_document_names_only_files_below_the_roots(server: Harness, tmp_path: Path) -> None:
    client = server.client()
    for path in ("/etc/cron.d", "./x", f"{tmp_path}/root/../x"):
        with pytest.raises(ConfigError, match="file or socket of the server"):
            client.create(document("orders", sinks=[{"type": "files", "config": {"id": "f", "path": path}}]))
    inside = {"type": "files", "config": {"id": "f", "path": f"{tmp_path}/root/events"}}
    assert client.create(document("orders", sinks=[inside]), start=False).status == "created"
    with pytest.raises(ConfigError, match="file or socket of the server"):
        client.patch("orders", {"spec": {"state_dir": "/var/lib/elsewhere"}})


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Harness) -> None:
    status, body, _ = raw(server, "POST", "/pipelines", b" " * 100_001)
    assert (status, body["code"]) == (413, "body-too-large")
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname or "", address.port or 0), 10) as plain:
        head = f"POST /pipelines HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.admin}\r\n"
        plain.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
        plain.sendall(chunk * 4)
        assert b" 413 " in plain.recv(100), "also where no length is declared"


def test_no_other_origin_is_allowed_to_read_answers(server: Harness) -> None:
    _, _, headers = raw(server, "GET", "/pipelines", headers={"Origin": "https://evil.example"})
    assert not [name for name in headers if name.startswith("access-control")]
    status, _, headers = raw(
        server, "OPTIONS", "/pipelines",
        headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"},
    )  # fmt: skip
    assert status == 405
    assert not [name for name in headers if name.startswith("access-control")]


def test_without_tokens_only_programs_on_this_machine_are_answered(serve: Serve) -> None:
    server = serve(auth=False)
    no_token = {"Authorization": ""}
    assert raw(server, "GET", "/pipelines", headers=no_token)[0] == 200
    for headers in ({"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Origin": "https://evil.example"}):
        status, body, _ = raw(server, "POST", "/pipelines", document("x"), {**no_token, **headers})
        assert (status, body["code"]) == (403, "access-refused")
    assert list(ServerClient(server.url).pipelines()) == []


def test_without_tokens_the_server_binds_only_to_loopback() -> None:
    for host in ("0.0.0.0", "10.0.0.1", "example.org", "::"):
        with pytest.raises(ConfigError, match="open to whoever reaches"):
            ServerSettings(Address(host, 8080), None, "x", auth=False).check()
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        ServerSettings(Address(host, 8080), None, "x", auth=False).check()


def test_only_so_many_streams_are_open_at_once(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_STREAMS", 1)
    client = server.client()
    client.create(document("orders"))
    first = client.events()
    next(first)
    with pytest.raises(TidemillError, match="streams of events are open"):
        next(client.events())
    assert client.request("GET", "/healthz") == "ok"
    first.close()  # type: ignore[attr-defined]


def test_the_api_speaks_tls(server: Harness, tmp_path: Path) -> None:
    made = tls.make(tmp_path / "ca")
    settings = ServerSettings(
        Address("127.0.0.1", 0), None, server.state, certificate=made.certificate, key=made.key
    )  # fmt: skip
    app = create_app(server.control, server.tokens)
    with serving(app, settings, Metrics().registry, lambda line: None) as (url, _):
        assert url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(made.ca))
        port = url.rpartition(":")[2]
        client = ServerClient(f"https://localhost:{port}", server.admin, tls=trusting)
        assert list(client.pipelines()) == []
        with pytest.raises(ServerError):
            list(ServerClient(f"https://localhost:{port}", server.admin).pipelines())
        with pytest.raises(ServerError):
            list(ServerClient(f"http://localhost:{port}", server.admin).pipelines())
    wrong = ServerSettings(Address("127.0.0.1", 0), None, "x", certificate=made.key, key=made.key)
    with pytest.raises(ConfigError, match="TLS files"), serving(app, wrong, Metrics().registry, lambda line: None):
        pass


def test_with_a_client_ca_a_client_needs_a_certificate(server: Harness, tmp_path: Path) -> None:
    made, theirs = tls.make(tmp_path / "ca"), tls.make(tmp_path / "clients")
    settings = ServerSettings(
        Address("127.0.0.1", 0), None, server.state, certificate=made.certificate, key=made.key, client_ca=theirs.ca
    )  # fmt: skip
    app = create_app(server.control, server.tokens)
    with serving(app, settings, Metrics().registry, lambda line: None) as (url, _):
        address = f"https://localhost:{url.rpartition(':')[2]}"
        known, stranger, nobody = (ssl.create_default_context(cafile=str(made.ca)) for _ in range(3))
        known.load_cert_chain(theirs.certificate, theirs.key)
        stranger.load_cert_chain(made.certificate, made.key)
        assert list(ServerClient(address, server.admin, tls=known).pipelines()) == []
        with pytest.raises(Unauthenticated):
            list(ServerClient(address, tls=known).pipelines())
        for refused in (stranger, nobody):
            with pytest.raises(ServerError):
                list(ServerClient(address, server.admin, tls=refused).pipelines())
    with pytest.raises(ConfigError, match="need TLS"):
        ServerSettings(Address("127.0.0.1", 0), None, "x", client_ca=theirs.ca).check()


def test_more_requests_than_the_rate_are_refused_for_a_while(server: Harness) -> None:
    app = create_app(server.control, server.tokens, rate=0.5)
    settings = ServerSettings(Address("127.0.0.1", 0), None, server.state)
    with serving(app, settings, Metrics().registry, lambda line: None) as (url, _):
        client = ServerClient(url, server.admin)
        assert client.request("GET", "/version")

        def flood() -> None:
            for _ in range(20):
                client.request("GET", "/version")

        with pytest.raises(TidemillError, match="more requests than this server takes"):
            flood()
        other = ServerClient(url, server.tokens.create("bob", Role.VIEWER)[0])
        assert other.request("GET", "/version"), "each token has a rate of its own"
        assert client.request("GET", "/healthz") == "ok"


def test_a_rate_is_an_average_with_bursts() -> None:
    now = [0.0]
    limit = RateLimit(2.0, 4.0, clock=lambda: now[0])
    assert [limit.take("ann") for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert limit.take("bob") == 0.0
    now[0] = 1.0
    assert [limit.take("ann") for _ in range(3)] == [0.0, 0.0, 0.5]


def test_every_change_is_in_the_audit_trail_with_who_made_it(server: Harness) -> None:
    client = server.client(name="ann")
    client.create(document("orders"))
    client.pause("orders", reason="maintenance")
    client.stop("orders")
    client.request("POST", "/pipelines/orders/checkpoints", {"offset": 0})
    client.delete("orders")
    trail = client.request("GET", "/audit")
    assert [each["action"] for each in trail[::-1]] == ["create", "pause", "stop", "set checkpoint", "delete"]
    assert all(each["actor"].startswith("ann (token ") for each in trail)
    assert trail[3]["detail"] == "maintenance"


def test_a_defect_of_ours_shows_no_traceback(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("the secret is croak")

    monkeypatch.setattr(server.control, "views", broken)
    status, body, headers = raw(server, "GET", "/pipelines")
    assert (status, body["code"], headers["content-type"]) == (500, "unexpected", "application/problem+json")
    assert "croak" not in orjson.dumps(body).decode()


def test_a_first_start_makes_one_admin_token(tmp_path: Path) -> None:
    store = open_installation(str(tmp_path / "state.sqlite"))
    tokens = Tokens(store)
    first = tokens.create_first()
    assert first is not None
    found = tokens.authenticate(first)
    assert found is not None
    assert found.role is Role.ADMIN
    assert tokens.create_first() is None
    store.close()


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
