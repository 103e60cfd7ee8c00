"""The threat model, line by line: docs/security.md names each of these tests, those of the limits and of tenants."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest

from tests.api.conftest import Harness, document, raw
from tidemill.api import sse
from tidemill.api.client import ServerClient
from tidemill.api.routes import events
from tidemill.config.posted import UsedValues
from tidemill.errors import AccessRefused, ConfigError, TidemillError, Unauthenticated
from tidemill.service.cause import current_actor
from tidemill.service.server import tokens
from tidemill.service.server.tokens import Role, Tokens, state_of
from tidemill.state import open_installation

OPEN = {"/healthz", "/readyz", "/openapi.json"}
PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def test_every_line_of_the_threat_model_has_its_test() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    here = Path(__file__).parent
    names = ("security", "roles", "tenants", "limits", "attacks", "grpc_attacks", "events", "log")
    others = (here.parent / "config" / "test_confine.py", here.parent / "cli" / "test_plain_text.py")
    files = (*(here / f"test_{name}.py" for name in names), *others)
    source = "\n".join(each.read_text() for each in files)
    there = set(re.findall(r"^def (test_\w+)", source, re.M))
    assert len(named) > 15
    assert named <= there
    table = PAGE.read_text().partition("## Threat model")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(lines) >= 40
    assert [line for line in lines if not re.search(r"`test_\w+`", line.rpartition(" | ")[2])] == []


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
    monkeypatch.setattr(events, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(sse, "CHECK_SECONDS", 0.1)
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
    monkeypatch.setattr(sse, "CHECK_SECONDS", 0.2)
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


def test_every_change_is_in_the_audit_trail_with_who_made_it(server: Harness) -> None:
    client = server.client(name="ann")
    client.create(document("orders"))
    client.pause("orders", reason="maintenance")
    client.stop("orders")
    client.request("POST", "/pipelines/orders/checkpoints", {"offset": 0})
    client.delete("orders")
    (made,) = (each for each in server.tokens.list() if each.name == "ann")
    server.tokens.revoke(made.id)
    trail = server.client(name="bob").request("GET", "/audit")
    by_ann = [each for each in trail if each["actor"].startswith("ann (token ")]
    assert [each["action"] for each in by_ann[::-1]] == ["create", "pause", "stop", "set checkpoint", "delete"]
    assert by_ann[3]["detail"] == "maintenance"
    of_ann = [each for each in trail if each["detail"] == f"{made.id} (ann): admin, all pipelines"]
    assert [(each["action"], each["actor"]) for each in of_ann] == [
        ("revoke token", current_actor()), ("create token", current_actor()),
    ]  # fmt: skip
    assert len(trail) == len(by_ann) + 4, "two more tokens were made"


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
