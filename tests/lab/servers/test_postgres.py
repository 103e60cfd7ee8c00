"""The private PostgreSQL that every other test stands on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psycopg
import pytest

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.postgres import Postgres, installed_bin


def test_a_server_is_ready_for_logical_replication(postgres: Postgres) -> None:
    assert postgres.query("SHOW wal_level") == [("logical",)]
    assert postgres.query("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'") == [(0,)]


def test_a_database_is_dropped_together_with_its_slots(postgres: Postgres) -> None:
    with postgres.database("with a slot"):
        postgres.query("SELECT pg_create_logical_replication_slot('kept', 'pgoutput')", dbname="with a slot")
    assert postgres.query("SELECT 1 FROM pg_database WHERE datname = 'with a slot'") == []
    assert postgres.query("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'kept'") == []


def test_committed_rows_survive_a_kill_and_the_port_stays(private_postgres: Postgres) -> None:
    port = private_postgres.port
    private_postgres.query("CREATE TABLE t AS SELECT 1 AS n")
    private_postgres.kill()
    assert not private_postgres.running
    private_postgres.start()
    assert private_postgres.query("SELECT n FROM t") == [(1,)]
    assert private_postgres.port == port


def test_a_setting_that_needs_a_restart_gets_one(private_postgres: Postgres) -> None:
    pid = private_postgres.pid
    private_postgres.config(logical_decoding_work_mem="64kB")
    assert private_postgres.query("SHOW logical_decoding_work_mem") == [("64kB",)]
    assert private_postgres.pid == pid
    private_postgres.config(max_wal_senders=7)
    assert private_postgres.query("SHOW max_wal_senders") == [("7",)]
    assert private_postgres.pid != pid


@pytest.mark.parametrize("end", ["close", "kill"])
def test_nothing_is_left_behind(end: str) -> None:
    with Postgres(durable=False) as server:
        directory, pid = server.directory, server.pid
        if end == "kill":
            server.kill()
    assert not directory.exists()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    segments = subprocess.run(["ipcs", "-m", "-p"], capture_output=True, text=True, check=True).stdout
    assert str(pid) not in segments.split()


def test_a_directory_that_was_there_keeps_its_data(tmp_path: Path) -> None:
    for expected in ([], [("t",)]):
        with Postgres(directory=tmp_path, durable=False) as server:
            assert server.query("SELECT relname FROM pg_class WHERE relname = 't'") == expected
            server.query("CREATE TABLE IF NOT EXISTS t (n int)")


def test_a_password_is_asked_for_by_scram() -> None:
    with Postgres(password="quote ' at @ space", durable=False) as server:
        assert server.query("SELECT rolpassword ~ '^SCRAM' FROM pg_authid WHERE rolname = 'postgres'") == [(True,)]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.dsn(password="wrong"))


def test_a_certificate_is_verified_up_to_the_name() -> None:
    try:
        bin_dir = installed_bin(15)
    except EnvironmentProblem as problem:
        pytest.skip(problem.what)
    with Postgres(bin_dir, ssl=True, durable=False) as server:
        options = {"sslmode": "verify-full", "sslrootcert": str(server.ca)}
        with psycopg.connect(server.dsn(**options)) as connection:
            assert connection.pgconn.ssl_in_use
        with pytest.raises(psycopg.OperationalError, match="certificate"):
            psycopg.connect(server.dsn(sslmode="verify-full", sslrootcert="/dev/null"))


def test_a_server_that_cannot_start_says_why() -> None:
    server = Postgres(durable=False, shared_buffers="nonsense")
    with pytest.raises(EnvironmentProblem, match="shared_buffers"):
        server.start()
    server.close()


def test_a_missing_installation_names_the_package() -> None:
    with pytest.raises(EnvironmentProblem, match="apt-get install postgresql-9"):
        installed_bin(9)
