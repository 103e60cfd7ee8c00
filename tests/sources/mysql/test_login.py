"""Login and TLS against real servers: every way PyMySQL knows, and errors that say what to change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.servers.mysql import KINDS, private_server
from tests.sources.mysupport import account, config
from tidemill.errors import ConnectionLost, SetupError
from tidemill.lab.servers.mysql_family import Server
from tidemill.sources.mysql import errors
from tidemill.sources.mysql.client import connect


@pytest.fixture(scope="module", params=KINDS)
def secure(request: pytest.FixtureRequest) -> Iterator[Server]:
    with private_server(request.param, ssl=True) as server:
        yield server


@pytest.fixture
def other_authority(tmp_path: Path) -> Path:
    from tidemill.lab.servers import tls

    return tls.make(tmp_path / "other").ca


@pytest.mark.parametrize("mode", ["required", "verify_ca", "verify_identity", "preferred"])
def test_each_mode_with_tls_is_encrypted(secure: Server, mode: str) -> None:
    with connect(config(secure.dsn(), ssl_mode=mode, ssl_ca=secure.ca)) as session:
        assert session.encrypted
        assert session.value("SHOW STATUS LIKE 'Ssl_cipher'")


def test_disabled_is_not_encrypted(secure: Server) -> None:
    with connect(config(secure.dsn(), ssl_mode="disabled")) as session:
        assert not session.encrypted


def test_options_of_the_dsn_count_and_those_beside_it_win(secure: Server) -> None:
    dsn = secure.dsn(ssl_mode="VERIFY_CA", ssl_ca=str(secure.ca))
    with connect(config(dsn, ssl_mode=None)) as session:
        assert session.encrypted
    with connect(config(dsn, ssl_mode="disabled")) as session:
        assert not session.encrypted


@pytest.mark.parametrize("mode", ["verify_ca", "verify_identity"])
def test_a_certificate_of_another_authority_is_not_trusted(secure: Server, other_authority: Path, mode: str) -> None:
    with pytest.raises(errors.TlsFailed) as caught:
        connect(config(secure.dsn(), ssl_mode=mode, ssl_ca=other_authority))
    assert "ssl_ca" in caught.value.fix


def test_a_certificate_for_another_name_passes_verify_ca_but_not_verify_identity(secure: Server) -> None:
    elsewhere = secure.dsn().replace("127.0.0.1", "127.1")  # the same address by a name that is not in the certificate
    connect(config(elsewhere, ssl_mode="verify_ca", ssl_ca=secure.ca)).close()
    with pytest.raises(errors.TlsFailed):
        connect(config(elsewhere, ssl_mode="verify_identity", ssl_ca=secure.ca))


def test_required_at_a_server_without_tls_is_an_error(mariadb: Server) -> None:
    with pytest.raises(errors.TlsFailed):
        connect(config(mariadb.dsn(), ssl_mode="required"))
    with connect(config(mariadb.dsn(), ssl_mode="preferred")) as session:
        assert not session.encrypted


def test_caching_sha2_without_tls_encrypts_the_password_itself(mysql: Server) -> None:
    with account(mysql, how="IDENTIFIED WITH caching_sha2_password BY 'secret'") as (user, dsn):
        for _ in range(2):  # the first login takes the long way, the second what the server remembers
            with connect(config(dsn)) as session:
                assert str(session.value("SELECT CURRENT_USER()")).startswith(user)


def test_native_password_logs_in(mariadb: Server) -> None:
    with account(mariadb, how="IDENTIFIED VIA mysql_native_password USING PASSWORD('secret')") as (_, dsn):
        connect(config(dsn)).close()


def test_ed25519_logs_in(mariadb: Server) -> None:
    pytest.importorskip("nacl")
    mariadb.query("INSTALL SONAME 'auth_ed25519'")
    try:
        with account(mariadb, how="IDENTIFIED VIA ed25519 USING PASSWORD('secret')") as (_, dsn):
            connect(config(dsn)).close()
    finally:
        mariadb.query("UNINSTALL SONAME 'auth_ed25519'")


def test_a_wrong_password_is_not_retried_and_not_shown(mysql_server: Server) -> None:
    with account(mysql_server) as (user, _):
        with pytest.raises(errors.LoginRefused) as caught:
            connect(config(mysql_server.dsn(user=user, password="hunter2")))
        assert "hunter2" not in str(caught.value)


def test_a_database_that_does_not_exist_is_said(mysql_server: Server) -> None:
    with pytest.raises(SetupError, match="nowhere"):
        connect(config(mysql_server.dsn("nowhere")))


def test_a_server_that_is_away_is_waited_for() -> None:
    with pytest.raises(ConnectionLost):
        connect(config("mysql://root@127.0.0.1:1/", connect_timeout_seconds=1))


@pytest.mark.parametrize(
    "dsn",
    ["postgres://a:hunter2@h/d", "mysql://a:hunter2@h:port/d", "mysql://a:hunter2@h/d/e", "mysql://a:hunter2@h/d?x=1"],
)
def test_a_dsn_that_cannot_be_read_is_refused_without_its_password(dsn: str) -> None:
    with pytest.raises(ValidationError) as caught:
        config(dsn)
    assert "hunter2" not in "".join(str(e["msg"]) for e in caught.value.errors())


def test_parts_of_a_dsn_are_unescaped() -> None:
    dsn = config("mysql://na%40me:p%2Fw%3A@h:3307/my%20shop").parsed_dsn
    assert (dsn.user, dsn.password, dsn.host, dsn.port, dsn.database) == ("na@me", "p/w:", "h", 3307, "my shop")
