"""The commands of docs/security.md: certificates, and a server that asks for them; tokens."""

from __future__ import annotations

import re
import shlex
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.api import conftest
from tests.api.conftest import Serve
from tests.support.terminal import Terminal
from tidemill.api.app import create_app
from tidemill.api.client import ServerClient, tls_of_environment
from tidemill.api.ports import Address
from tidemill.api.serve import ServerSettings, serving
from tidemill.errors import ServerError
from tidemill.lab.servers import tls
from tidemill.telemetry.metrics import Metrics

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
serve, stand_ins = conftest.serve, conftest.stand_ins


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def test_the_certificates_of_the_page_are_taken_by_curl_and_by_the_command(serve: Serve, tmp_path: Path) -> None:
    made, asked = (block for block in blocks() if "ca.pem" in block)
    commands, _, options = made.partition("tidemill serve ")
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, check=True, capture_output=True)
    files = {name: tmp_path / file for name, file in re.findall(r"--(\S+) (\S+)", options)}
    server = serve()
    settings = ServerSettings(
        Address("127.0.0.1", 0), None, server.state,
        certificate=files["tls-cert"], key=files["tls-key"], client_ca=files["tls-client-ca"],
    )  # fmt: skip
    app = create_app(server.control, server.tokens)
    with serving(app, settings, Metrics().registry, lambda line: None) as (url, _):
        address = f"https://localhost:{url.rpartition(':')[2]}"
        curl, exports, _ = asked.replace("https://localhost:8080", address).splitlines()
        done = subprocess.run(["sh", "-c", curl], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == "ok"
        given = dict(re.findall(r"(TIDEMILL_TLS_\w+)=(\S+)", exports))
        context = tls_of_environment({name: str(tmp_path / file) for name, file in given.items()})
        assert context is not None
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13 on
        assert list(ServerClient(address, server.admin, tls=context).pipelines()) == []
        with pytest.raises(ServerError):
            list(ServerClient(address, server.admin).pipelines())


def test_certificates_of_the_tests_are_taken_by_a_python_that_is_strict(tmp_path: Path) -> None:
    made = tls.make(tmp_path)
    strict = ["openssl", "verify", "-x509_strict", "-CAfile", str(made.ca), str(made.certificate)]
    assert subprocess.run(strict, capture_output=True, check=False).returncode == 0


def test_the_tokens_of_the_page_are_made_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_STATE", str(tmp_path / "state.sqlite"))
    tidemill = Terminal(capsys)
    [block] = (block for block in blocks() if "tidemill token" in block)
    *made, listed, revoke = (shlex.split(line, comments=True)[1:] for line in block.splitlines())
    assert [tidemill(*command).out[:3] for command in made] == ["tm_"] * 3

    def tokens() -> dict[str, list[str]]:
        return {line.split()[1]: line.split() for line in tidemill(*listed).out.splitlines()[1:]}

    assert {name: line[2:6] for name, line in tokens().items()} == {
        "ann": ["operator", "all", "pipelines", "valid"],
        "shop-ops": ["operator", "tenant", "shop", "valid"],
        "orders-bot": ["viewer", "pipeline", "orders", "valid"],
    }
    assert tidemill(*revoke[:-1], tokens()["ann"][0]).code == 0
    assert tokens()["ann"][5] == "revoked"
