"""Passwords and certificates, against a real server with SCRAM and TLS (PostgreSQL 15: the embedded 18 has no TLS)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.sources.support import config, messages, opened
from tidemill.errors import ConnectionLost, EnvironmentProblem
from tidemill.lab.servers import tls
from tidemill.lab.servers.postgres import Postgres, installed_bin
from tidemill.sources.postgres import PostgresSource, errors
from tidemill.sources.postgres.client import Endpoint, connect, login

PASSWORD = "pass word/ü%"


@pytest.fixture(scope="module")
def secured() -> Iterator[Postgres]:
    try:
        bin_dir = installed_bin(15)
    except EnvironmentProblem as problem:
        pytest.skip(problem.what)
    rules = ["hostssl all postgres 127.0.0.1/32 scram-sha-256", "host all all 127.0.0.1/32 reject"]
    with Postgres(bin_dir, password=PASSWORD, ssl=True, durable=False, hba=rules) as server:
        server.query("CREATE TABLE t (id int PRIMARY KEY)")
        yield server


def streams(server: Postgres, dsn: str = "", **options: Any) -> bool:
    """Whether the source gets a change through a connection with these options."""
    with opened(config(dsn or server.dsn(), "t", **options)) as source:
        source.setup()
        source.start(None)
        encrypted = server.query("SELECT s.ssl FROM pg_stat_ssl s JOIN pg_replication_slots r ON r.active_pid = s.pid")
        server.query("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")
        return bool(messages(source, "I", 1)) and encrypted == [(True,)]


@pytest.mark.parametrize("mode", ["prefer", "require", "verify-ca", "verify-full"])
def test_every_sslmode_gets_through_encrypted(secured: Postgres, mode: str) -> None:
    assert streams(secured, sslmode=mode, sslrootcert=secured.ca if mode.startswith("verify") else None)


def test_options_may_stand_in_the_dsn_or_as_keywords(secured: Postgres) -> None:
    assert streams(secured, secured.dsn(sslmode="verify-full", sslrootcert=str(secured.ca)))
    keywords = psycopg.conninfo.make_conninfo(
        host="127.0.0.1", port=secured.port, user="postgres", password=PASSWORD, dbname="postgres", sslmode="require"
    )
    assert streams(secured, keywords)


def test_a_host_name_is_verified_as_the_certificate_has_it(secured: Postgres) -> None:
    dsn = secured.dsn().replace("127.0.0.1", "localhost") + "?hostaddr=127.0.0.1"
    assert streams(secured, dsn, sslmode="verify-full", sslrootcert=secured.ca)


def test_a_certificate_for_another_name_is_refused_by_verify_full_only(secured: Postgres) -> None:
    dsn = secured.dsn().replace("127.0.0.1", "db.example") + "?hostaddr=127.0.0.1"
    with pytest.raises(errors.TlsFailed, match="sslrootcert"):
        PostgresSource(config(dsn, "t", sslmode="verify-full", sslrootcert=secured.ca)).setup()
    assert streams(secured, dsn, sslmode="verify-ca", sslrootcert=secured.ca)


def test_a_certificate_of_an_unknown_authority_is_refused(secured: Postgres, tmp_path: Path) -> None:
    stranger = tls.make(tmp_path / "tls").ca
    with pytest.raises(errors.TlsFailed):
        PostgresSource(config(secured.dsn(), "t", sslmode="verify-ca", sslrootcert=stranger)).setup()


def test_the_stream_verifies_for_itself(secured: Postgres, tmp_path: Path) -> None:
    settings = config(secured.dsn(), "t", sslmode="require")
    with connect(settings) as db:
        found = Endpoint.of(db)
    stranger = tls.make(tmp_path / "tls").ca
    unknown = replace(found, options={"sslmode": "verify-ca", "sslrootcert": str(stranger)})
    misnamed = replace(found, host="db.example", options={"sslmode": "verify-full", "sslrootcert": str(secured.ca)})
    for wrong in (unknown, misnamed):
        with pytest.raises(errors.TlsFailed, match="certificate"):
            login(settings, wrong)


def test_a_password_is_in_no_representation(secured: Postgres) -> None:
    settings = config(secured.dsn(password="hunter2"), "t")
    assert "hunter2" not in repr(settings)
    with connect(config(secured.dsn(), "t")) as db:
        assert PASSWORD not in repr(Endpoint.of(db))


def test_plain_text_is_refused_by_a_server_that_wants_tls(secured: Postgres) -> None:
    with pytest.raises(errors.LoginRefused, match="pg_hba"):
        PostgresSource(config(secured.dsn(), "t", sslmode="disable")).setup()


def test_a_server_without_tls_is_refused_when_tls_is_required(postgres18: Postgres) -> None:
    with pytest.raises(errors.TlsFailed):
        PostgresSource(config(postgres18.dsn(), "t", sslmode="require")).setup()


def test_a_wrong_password_is_not_retried_and_not_repeated(secured: Postgres) -> None:
    with pytest.raises(errors.LoginRefused) as caught:
        PostgresSource(config(secured.dsn(password="wrong-secret"), "t")).setup()
    assert "wrong-secret" not in str(caught.value)


def test_an_unknown_database_is_a_refused_login(postgres18: Postgres) -> None:
    with pytest.raises(errors.LoginRefused, match="nowhere"):
        PostgresSource(config(postgres18.dsn("nowhere"), "t")).setup()


def test_a_server_that_is_not_there_is_worth_another_try() -> None:
    with pytest.raises(ConnectionLost):
        PostgresSource(config("postgresql://x@127.0.0.1:1/x", "t", connect_timeout_seconds=2)).setup()
