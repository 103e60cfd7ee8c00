"""`tidemill serve` as a process, and the commands at its other end. No pipeline starts, so there is no Spark."""

from __future__ import annotations

import http.client
import re
import resource
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import psycopg
import pytest

from tests.api.conftest import Harness, Serve, document
from tests.support.terminal import Terminal
from tidemill.api.client import ServerClient
from tidemill.api.ports import Address, serve_metrics
from tidemill.api.serve import allow_open_files
from tidemill.contracts.installation import StoredDocument
from tidemill.errors import ConfigError, EnvironmentProblem, ServerError, Unauthenticated
from tidemill.lab.servers import tls
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.server.tokens import Role, Tokens
from tidemill.state import open_installation
from tidemill.telemetry.metrics import Metrics

STOPPED = """
metadata: {name: NAME}
spec:
  source: {type: postgres, config: {id: NAME, dsn: "postgresql://nobody@127.0.0.1:1/none", tables: [public.t]}}
  sinks: [{type: blackhole, config: {id: hole-NAME}}]
"""


@contextmanager
def serving(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its URL, and what it said until then."""
    ports = ["--api", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    given = ["serve", *ports, "--state-dir", str(directory), *arguments]
    script = f"from tidemill.cli.main import main; main({given!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=directory
    )
    said = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "admin token" in line:
                break
        found = re.search(r"API on (\S+?),", said)
        assert found, said
        yield process, found[1], said
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def desire(state: Path, name: str, desired: str) -> None:
    """As if an operator had stopped it in an earlier life of the server."""
    store = open_installation(str(state))
    store.add_document(StoredDocument(name, "file", "", "v", desired, "test", ""))
    store.close()


@pytest.mark.slow
def test_a_server_answers_reloads_and_ends_cleanly(tmp_path: Path) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "one.yaml").write_text(STOPPED.replace("NAME", "one"))
    desire(tmp_path / "state.sqlite", "one", "stopped")
    desire(tmp_path / "state.sqlite", "two", "stopped")
    with serving(tmp_path, "--config", str(folder)) as (process, url, said):
        token = re.search(r"tm_\S+", said)
        assert token
        client = ServerClient(url, token[0], timeout=30)
        assert client.request("GET", "/healthz") == "ok"
        assert client.request("GET", "/readyz")["pipelines"] == [{"name": "one", "status": "stopped"}]
        with pytest.raises(Unauthenticated):
            list(ServerClient(url).pipelines())
        desire(tmp_path / "state.sqlite", "two", "stopped")
        (folder / "one.yaml").write_text("metadata: {name: one}\nspec: {}\n")
        process.send_signal(signal.SIGHUP)
        _read_until(process, "server.reload_refused")
        assert [each.name for each in client.pipelines()] == ["one"], "a mistake changes nothing"
        (folder / "one.yaml").unlink()
        process.send_signal(signal.SIGHUP)
        _read_until(process, "server.reloaded")
        assert list(client.pipelines()) == []
        process.send_signal(signal.SIGTERM)
        _read_until(process, "server.stopped")
        assert process.wait(120) == 0
        with pytest.raises(ServerError, match="did not answer"):
            client.request("GET", "/healthz")


def test_a_server_that_cannot_run_says_why_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (("--auth", "none", "--api", "0.0.0.0:8080"), "open to whoever reaches"),
        (("--auth", "maybe"), "There are: token, none."),
        (("--api", "nonsense"), "is no address"),
        (("--tls-cert", "x.pem"), "TLS needs both files"),
        (("--root", ""), "--root is empty"),
    ):
        answer = Terminal(capsys)("serve", "--state-dir", tmp_path, *arguments)
        assert (answer.code, said in answer.err) == (2, True), answer.err


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_the_port_of_metrics_answers_until_it_is_stopped_and_is_free_then(host: str) -> None:
    metrics = Metrics()
    try:
        url, stop = serve_metrics(Address(host, 0), metrics.registry)
    except EnvironmentProblem:
        assert host == "::1", "this machine has no IPv6"
        return
    port = urlsplit(url).port
    assert port is not None
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    assert (answer.status, b"tidemill_" in answer.read()) == (200, True)
    connection.close()
    with pytest.raises(EnvironmentProblem, match="cannot be used"):
        serve_metrics(Address(host, port), metrics.registry)
    stop()
    again, stop = serve_metrics(Address(host, port), metrics.registry)
    stop()
    assert again == url


def test_a_worker_that_cannot_run_says_why_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worker = ("worker", "--pipeline", "orders", "--state-dir", tmp_path)
    for arguments, said in (
        (("--lease-seconds", "1"), "cannot be renewed in time"), (("--metrics", "nowhere"), "is no address"),
    ):  # fmt: skip
        answer = Terminal(capsys)(*worker, *arguments)
        assert (answer.code, said in answer.err) == (2, True), answer.err


@pytest.mark.slow
def test_the_metrics_of_a_worker_speak_tls_and_want_a_token(tmp_path: Path) -> None:
    made = tls.make(tmp_path / "ca")
    store = open_installation(str(tmp_path / "state.sqlite"))
    token = Tokens(store).create("prometheus", Role.VIEWER)[0]
    store.close()
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill", "worker", "--pipeline", "orders", "--state-dir", str(tmp_path),
         "--metrics", "127.0.0.1:0", "--metrics-auth", "token", "--tls-cert", str(made.certificate),
         "--tls-key", str(made.key)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.fullmatch(r"metrics on (https://127\.0\.0\.1:(\d+)/metrics)\n", process.stdout.readline())
        assert found
        trusting = ssl.create_default_context(cafile=str(made.ca))
        connection = http.client.HTTPSConnection("localhost", int(found[2]), timeout=60, context=trusting)
        answers = []
        for given in ({}, {"Authorization": f"Bearer {token}"}):
            connection.request("GET", "/metrics", headers=given)
            answer = connection.getresponse()
            answers.append((answer.status, b"# HELP tidemill_" in answer.read()))
            connection.close()
        assert answers == [(401, False), (200, True)]
        process.terminate()
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_server_may_have_as_many_files_open_as_its_user_may() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(before[1], 65_536), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_file_that_is_wrong_keeps_a_server_from_starting(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("metadata: {name: one}\nspec: {}\n")
    with pytest.raises(ConfigError, match='"source" is missing'):
        serve(files=(tmp_path / "wrong.yaml",))


def test_two_servers_share_a_state_store_in_postgresql(postgres18: Postgres, tmp_path: Path, stand_ins: None) -> None:
    """What one was told of tokens and documents the other knows."""
    with postgres18.database("server_state") as dsn:
        store = open_installation(dsn)
        secret, _ = Tokens(store).create("ann", Role.ADMIN)
        other = open_installation(dsn)
        found = Tokens(other).authenticate(secret)
        assert found is not None
        assert found.name == "ann"
        with psycopg.connect(dsn) as db:
            assert db.execute("SELECT count(*) FROM tidemill_state.tokens").fetchone() == (1,)
        store.close()
        other.close()


@pytest.fixture
def tidemill(server: Harness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TIDEMILL_SERVER", server.url)
    monkeypatch.setenv("TIDEMILL_TOKEN", server.admin)
    return Terminal(capsys)


def test_a_pipeline_is_operated_from_the_command_line(tidemill: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_bytes(orjson.dumps(document("orders")))
    assert tidemill("pipelines", "apply", "-f", file).out == "orders is running\n"
    assert tidemill("pipelines", "ls").out.splitlines()[1].split() == ["orders", "running", "running", "api"]
    assert tidemill("pipelines", "pause", "orders", "--reason", "x").out == "orders is paused\n"
    assert tidemill("pipelines", "resume", "orders", "--json").json[0]["status"] == "running"
    assert tidemill("pipelines", "get", "orders").json["spec"]["source"]["config"]["dsn"].count("***") == 1
    assert "orders running" in tidemill("pipelines", "status", "orders").out
    assert tidemill("pipelines", "status", "orders", "--json").json["state"] == "running"
    refused = tidemill("pipelines", "pause", "others", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "unknown-pipeline")
    for verb, state in (("restart", "running"), ("drain", "stopped"), ("start", "running"), ("stop", "stopped")):
        assert tidemill("pipelines", verb, "orders").out == f"orders is {state}\n"
    assert tidemill("pipelines", "delete", "orders").code == 2
    assert tidemill("pipelines", "delete", "orders", "--yes").out == "orders is deleted\n"


def test_the_server_may_be_named_anywhere_on_the_line(
    server: Harness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEMILL_SERVER", raising=False)
    monkeypatch.delenv("TIDEMILL_TOKEN", raising=False)
    server.client().create(document("orders"), start=False)
    tidemill, given = Terminal(capsys), ("--server", server.url, "--token", server.admin)
    for line in ((*given, "pipelines", "ls"), ("pipelines", *given, "ls"), ("pipelines", "ls", *given)):
        assert "orders" in tidemill(*line).out, line
    assert "orders" in tidemill("--server", "http://127.0.0.1:1", "pipelines", "ls", *given).out, "the last one counts"


def test_an_empty_list_is_a_sentence(tidemill: Terminal, server: Harness) -> None:
    for line in (("ls",), ("status",)):
        assert tidemill("pipelines", *line).out.startswith(f"{server.url} has no pipelines"), line
    assert tidemill("pipelines", "ls", "--json").json == []
    assert "is like that" in tidemill("pipelines", "ls", "--state", "failed").out


def test_status_shows_state_lag_position_and_the_last_error(tidemill: Terminal, server: Harness) -> None:
    client = server.client()
    client.create(document("orders"))
    dry = document("dry")
    dry["spec"]["source"]["config"]["dsn"] = "pond://drought"
    client.create(dry)
    deadline = time.monotonic() + 60
    while client.status("dry")["state"] != "failed":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    head, *rows = tidemill("pipelines", "status").out.splitlines()
    assert head.split("  ")[0] == "pipeline"
    assert [row.split()[:2] for row in rows] == [["dry", "failed"], ["orders", "running"]]
    assert rows[0].endswith("the pond is dry")
    one = tidemill("pipelines", "status", "dry").out
    assert "dry failed" in one
    assert "position=none error: the pond is dry" in one
    assert [each["name"] for each in tidemill("pipelines", "status", "--json").json] == ["dry", "orders"]


def test_an_error_of_the_server_speaks_of_the_pipeline_and_ends_as_documented(
    tidemill: Terminal, server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client().create(document("orders"), start=False)
    refused = tidemill("pipelines", "pause", "orders")
    assert (refused.code, 'pipeline "orders" is created' in refused.err) == (1, True), refused.err
    unknown = tidemill("pipelines", "start", "others")
    assert (unknown.code, 'there is no pipeline "others"' in unknown.err) == (1, True)
    monkeypatch.setenv("TIDEMILL_TOKEN", server.tokens.create("eve", Role.VIEWER)[0])
    forbidden = tidemill("pipelines", "start", "orders")
    assert (forbidden.code, "viewer" in forbidden.err) == (3, True)
    monkeypatch.setenv("TIDEMILL_TOKEN", "tm_wrong")
    wrong = tidemill("pipelines", "start", "orders")
    assert (wrong.code, "TIDEMILL_TOKEN" in wrong.err) == (3, True)
    for said in (refused, unknown, forbidden, wrong):
        assert not re.search(r"\b(4\d\d|HTTP|GET|POST|PATCH|PUT|Bearer|header)\b", said.err), said.err


def test_a_lost_position_is_recovered_from_the_command_line(tidemill: Terminal, server: Harness) -> None:
    server.client().create(document("orders"), start=False)
    assert tidemill("pipelines", "recover", "orders").code == 2
    assert tidemill("pipelines", "recover", "orders", "--accept-gap").code == 2, "nobody was asked"
    done = tidemill("pipelines", "recover", "orders", "--accept-gap", "--yes")
    assert (done.code, "committed after 0/99" in done.out) == (0, True), done.err


def test_a_server_that_is_not_there_and_a_store_that_is_not_there_are_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TIDEMILL_SERVER", raising=False)
    answer = Terminal(capsys)("pipelines", "ls", "--state-dir", tmp_path)
    assert (answer.code, "there is no state store" in answer.err, "--server" in answer.err) == (3, True, True)
    assert list(tmp_path.iterdir()) == []
    nobody = Terminal(capsys)("--server", "http://127.0.0.1:1", "pipelines", "ls")
    assert (nobody.code, "did not answer" in nobody.err) == (3, True)


def test_tokens_are_made_listed_and_revoked_from_the_command_line(
    server: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    tidemill = Terminal(capsys)
    made = tidemill(
        "token", "create", "bob", "--role", "operator", "--expires", "1d", "--state", server.state, "--json"
    )
    client = ServerClient(server.url, made.json["token"])
    assert list(client.pipelines()) == []
    listed = tidemill("token", "ls", "--state", server.state)
    assert "bob" in listed.out
    assert made.json["token"] not in listed.out
    assert tidemill("token", "revoke", made.json["id"], "--state", server.state).code == 0
    with pytest.raises(Unauthenticated):
        list(client.pipelines())
    assert tidemill("token", "revoke", "none", "--state", server.state).code == 2
    assert tidemill("token", "create", "x", "--role", "king", "--state", server.state).code == 2


@pytest.mark.parametrize("option", ["--tenant", "--pipeline", "--expires"])
def test_an_option_of_a_token_that_is_empty_is_refused(
    server: Harness, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    """A script's variable that is not set made a token for all pipelines, or one for ever."""
    tidemill = Terminal(capsys)
    before = len(server.tokens.list())
    made = tidemill("token", "create", "bob", "--role", "admin", option, "", "--state", server.state)
    assert (made.code, f"{option} is empty" in made.err) == (2, True)
    assert len(server.tokens.list()) == before


def test_tokens_are_those_of_the_store_that_the_server_was_told_of(
    server: Harness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tidemill = Terminal(capsys)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEMILL_STATE", server.state)
    made = tidemill("token", "create", "bob", "--json")
    assert (list(ServerClient(server.url, made.json["token"]).pipelines()), made.err) == ([], "")
    monkeypatch.delenv("TIDEMILL_STATE")
    listed = tidemill("token", "ls", "--state-dir", str(Path(server.state).parent), "--json")
    assert made.json["id"] in [each["id"] for each in listed.json["tokens"]]
    for command in (("ls",), ("revoke", made.json["id"])):
        refused = tidemill("token", *command)
        assert (refused.code, "there is no state store" in refused.err) == (3, True)
    assert not (tmp_path / ".tidemill").exists()
    new = tidemill("token", "create", "ann", "--json")
    assert (new.code, "There was no state store" in new.err, ".tidemill/state.sqlite" in new.err) == (0, True, True)


def _read_until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    pytest.fail(f"it ended without {word}")
