"""The configuration model, and what `doctor` sees on real servers."""

from __future__ import annotations

import psycopg
import pytest
from pydantic import ValidationError

from tests.sources.support import config, execute, opened, query
from tidemill.contracts import Outcome, Resting
from tidemill.errors import SetupError
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.position import Position
from tidemill.sources.postgres import PostgresConfig, PostgresSource


def outcomes(source: PostgresSource, resting: Resting | None = None) -> dict[str, Outcome]:
    checks = list(source.doctor(resting))
    assert all(check.fix for check in checks if check.outcome is not Outcome.PASS)
    return {check.name: check.outcome for check in checks}


def test_a_source_that_is_ready_passes_every_check(database: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    source = PostgresSource(config(database, "a"))
    source.setup()
    found = outcomes(source)
    assert set(found.values()) == {Outcome.PASS}
    assert len(found) >= 10


def test_a_pipeline_that_ran_needs_its_slot_and_a_position_that_the_slot_has(database: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    source = PostgresSource(config(database, "a"))
    source.setup()
    ((confirmed,),) = query(database, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots")
    found = outcomes(source, Resting(confirmed, None, 0.0))
    assert (found["slot"], found["position"]) == (Outcome.PASS, Outcome.PASS)
    assert outcomes(source, Resting(Position("0/10"), None, 0.0))["position"] is Outcome.FAIL, "the slot was moved"
    execute(database, f"SELECT pg_drop_replication_slot('{source.config.slot_name}')")
    assert outcomes(source)["slot"] is Outcome.PASS
    assert outcomes(source, Resting(confirmed, None, 0.0))["slot"] is Outcome.FAIL, "it would be made anew"


def test_the_doctor_changes_nothing_and_warns_of_what_the_setup_will_do(database: str) -> None:
    execute(database, "CREATE TABLE a (t text)", "CREATE TABLE b (id int PRIMARY KEY, large text)")
    found = outcomes(PostgresSource(config(database, "a", "b")))
    warned = {name for name, outcome in found.items() if outcome is Outcome.WARN}
    assert warned == {"replica identity", "large values"}
    assert query(database, "SELECT count(*) FROM pg_publication") == [(0,)]
    assert query(database, "SELECT relreplident FROM pg_class WHERE relname = 'a'") == [("d",)]


def test_a_running_source_is_not_reported_as_a_slot_in_use(database: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    with opened(config(database, "a")) as source:
        source.setup()
        source.start(None)
        assert outcomes(source)["slot"] is Outcome.PASS
        other = PostgresSource(config(database, "a", id="x", slot=source.config.slot_name))
        assert outcomes(other)["slot"] is Outcome.FAIL


def test_what_would_stop_the_setup_fails(database: str) -> None:
    role = f"weak_{psycopg.conninfo.conninfo_to_dict(database)['dbname']}"
    execute(database, "CREATE TABLE a (t text)", f"CREATE ROLE {role} LOGIN")
    weak = database.replace("postgres@", f"{role}@")
    found = outcomes(PostgresSource(config(weak, "a", replica_identity="keep")))
    failed = {name for name, outcome in found.items() if outcome is Outcome.FAIL}
    assert failed == {"privilege", "replica identity", "replication login", "publication"}
    assert outcomes(PostgresSource(config(database, "missing")))["tables"] is Outcome.WARN
    execute(database, f"DROP ROLE {role}")


def test_a_role_that_may_not_make_the_publication_is_given_the_grants_that_let_it(database: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    owner, role = f"owner_{name}", f"role_{name}"
    execute(database, f"CREATE ROLE {owner}", f"CREATE ROLE {role} LOGIN REPLICATION",
            "CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a OWNER TO {owner}")  # fmt: skip
    source = PostgresSource(config(database.replace("postgres@", f"{role}@"), "a"))
    try:
        (check,) = (c for c in source.doctor() if c.name == "publication")
        assert check.outcome is Outcome.FAIL
        grants = check.fix.removeprefix("Run: ").split(". Or ")[0].split("; ")
        assert len(grants) == 2
        with pytest.raises(SetupError):
            source.setup()
        execute(database, *grants)
        assert outcomes(source)["publication"] is Outcome.PASS
        source.setup()
        assert outcomes(source)["publication"] is Outcome.PASS
    finally:
        execute(database, f"DROP PUBLICATION IF EXISTS {source.config.publication_name}",
                f"DROP OWNED BY {owner}, {role}", f"DROP ROLE {role}, {owner}")  # fmt: skip


def test_what_a_publication_leaves_out_is_a_warning_and_one_that_is_gone_a_failure(database: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)",
            "CREATE PUBLICATION mine FOR TABLE a WITH (publish = 'insert')")  # fmt: skip
    source = PostgresSource(config(database, "a", publication="mine"))
    assert outcomes(source)["publication"] is Outcome.WARN
    execute(database, "DROP PUBLICATION mine")
    assert outcomes(source)["publication"] is Outcome.PASS, "nothing was captured yet: it is made"
    assert outcomes(source, Resting(Position("0/10"), None, 0.0))["publication"] is Outcome.FAIL


def test_a_server_that_is_away_is_one_failed_check() -> None:
    source = PostgresSource(config("postgresql://x@127.0.0.1:1/x", connect_timeout_seconds=2))
    assert outcomes(source) == {"connection": Outcome.FAIL}


def test_wal_level_and_slots_are_looked_at() -> None:
    settings = {"wal_level": "replica", "max_replication_slots": 0, "wal_sender_timeout": "5s"}
    with Postgres(durable=False, **settings) as server:  # type: ignore[arg-type]
        server.query("CREATE TABLE a (id int PRIMARY KEY)")
        found = outcomes(PostgresSource(config(server.dsn(), "a")))
    assert found["wal_level"] is Outcome.FAIL
    assert found["slot"] is Outcome.FAIL
    assert found["wal_sender_timeout"] is Outcome.WARN


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("tables", ["a.b.c"], "not a table name"),
        ("tables", ['public."open'], "not a table name"),
        ("slot", "Upper-Case", "pattern"),
        ("start_position", "yesterday", "16/B374D848"),
        ("dsn", "postgresql://user:hunter2@[bad", "connection URI"),
        ("sslmode", "maybe", "verify-full"),
        ("replica_identity", "some", "auto"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_right(field: str, value: object, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PostgresConfig.model_validate({"id": "x", "dsn": "dbname=x", field: value})
    messages = " ".join(error["msg"] for error in caught.value.errors(include_input=False))
    assert words in messages
    assert "hunter2" not in messages


def test_names_are_made_from_the_id_unless_given() -> None:
    made = PostgresConfig(id="Orders-PG.eu", dsn="dbname=x")
    assert made.slot_name == made.publication_name == "tidemill_orders_pg_eu"
    given = PostgresConfig(id="x", dsn="dbname=x", slot="mine", publication='My "own"')
    assert (given.slot_name, given.publication_name) == ("mine", 'My "own"')


def test_every_field_has_a_description() -> None:
    assert [name for name, field in PostgresConfig.model_fields.items() if not field.description] == []
