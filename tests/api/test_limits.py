"""Who gets as far as a handler: hosts, origins, TLS, sizes, rates, streams. Lines of docs/security.md."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.api.conftest import Harness, Serve, document, raw
from tests.crash.actors import wait_for
from tidemill.api import sse
from tidemill.api.app import create_app
from tidemill.api.client import ServerClient
from tidemill.api.ports import Address
from tidemill.api.rate import RateLimit
from tidemill.api.serve import ServerSettings, _announce, serving
from tidemill.errors import ConfigError, ServerError, TidemillError, Unauthenticated
from tidemill.lab.servers import tls
from tidemill.service.server.managed import PipelineView
from tidemill.service.server.tokens import Role
from tidemill.telemetry.metrics import Metrics

HANDLERS = 40  # threads of anyio, in which the handlers of a server run


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


@pytest.mark.parametrize("open_port", ["api", "grpc", "metrics"])
def test_tokens_that_go_over_the_network_in_clear_are_warned_of(
    server: Harness, open_port: str, caplog: pytest.LogCaptureFixture
) -> None:
    here, everywhere = Address("127.0.0.1", 0), Address("0.0.0.0", 0)
    ports = {name: everywhere if name == open_port else here for name in ("api", "grpc", "metrics")}
    given: dict[str, Any] = {**ports, "state": server.state, "metrics_auth": True}
    _announce(ServerSettings(**given), server.tokens, lambda line: None)
    assert "server.unencrypted" in caplog.text
    caplog.clear()
    _announce(ServerSettings(**given, certificate=Path("cert.pem")), server.tokens, lambda line: None)
    _announce(ServerSettings(**{**given, open_port: here}), server.tokens, lambda line: None)
    assert "server.unencrypted" not in caplog.text


def test_only_so_many_streams_are_open_at_once(server: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_STREAMS", 1)
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
        with pytest.raises(ServerError) as plain:
            list(ServerClient(f"http://localhost:{port}", server.admin).pipelines())
        assert "it begins with https://" in plain.value.fix
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
        untrusting = ssl.create_default_context()
        for refused, name in ((stranger, "_CERT"), (nobody, "_CERT"), (untrusting, "_CA")):
            with pytest.raises(ServerError) as said:
                list(ServerClient(address, server.admin, tls=refused).pipelines())
            assert f"TIDEMILL_TLS{name}" in said.value.fix
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
