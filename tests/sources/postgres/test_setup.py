"""Setup against real servers: each step, its error, and that a second run changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.sources.support import config, execute, opened, query
from tidemill.errors import PositionLost, SetupError, is_retryable
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.position import Position
from tidemill.sources.postgres import PostgresSource, errors
from tidemill.sources.postgres.tables import find


def test_a_fresh_database_is_made_ready_and_a_second_setup_changes_nothing(database: str) -> None:
    execute(database, "CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE notes (t text)")
    source = PostgresSource(config(database, "orders", "public.notes"))
    first = source.setup()
    assert first.tables == ("public.notes", "public.orders")
    assert len(first.did) == 3
    again = source.setup()
    assert again.did == ()
    assert again.position == first.position
    identities = dict(
        query(database, "SELECT relname, relreplident FROM pg_class WHERE relname IN ('orders', 'notes')")
    )
    assert identities == {"orders": "d", "notes": "f"}
    assert query(database, "SELECT plugin FROM pg_replication_slots WHERE database = current_database()") == [
        ("pgoutput",)
    ]


def test_tables_named_later_are_added_and_none_is_taken_away(database: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    PostgresSource(config(database, "a")).setup()
    done = PostgresSource(config(database, "b")).setup()
    assert [d for d in done.did if "public.b" in d]
    assert [n for n in done.notes if "public.a" in n]
    assert {t for (t,) in query(database, "SELECT tablename FROM pg_publication_tables")} == {"a", "b"}


def test_patterns_quotes_and_other_alphabets_find_their_tables(database: str) -> None:
    plain = ("shop_a", "shop_b", "other", '"Shop_C"')
    quoted = ('"Süd.Ost"."Größe ""x"""', '"Süd.Ost"."заказ*"', '"Süd.Ost"."заказы"')
    tables_made = (f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in plain + quoted)
    execute(database, 'CREATE SCHEMA "Süd.Ost"', *tables_made)

    def tables(*patterns: str) -> tuple[str, ...]:
        return PostgresSource(config(database, *patterns)).setup().tables

    assert tables("public.shop%") == ("public.shop_a", "public.shop_b")
    assert tables("public.*") == ("public.Shop_C", "public.other", "public.shop_a", "public.shop_b")
    assert tables('"Süd.Ost"."Größe ""x"""') == ('Süd.Ost.Größe "x"',)
    assert tables('"Süd.Ost"."заказ*"') == ("Süd.Ost.заказ*",)
    assert tables('"Süd.Ost".заказ*') == ("Süd.Ost.заказ*", "Süd.Ost.заказы")
    assert len(tables()) == 7


def test_a_partitioned_table_is_published_by_its_root_and_all_its_parts_get_an_identity(database: str) -> None:
    execute(
        database,
        "CREATE TABLE m (k int, v text) PARTITION BY RANGE (k)",
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE m2 PARTITION OF m FOR VALUES FROM (10) TO (20)",
    )
    done = PostgresSource(config(database, "public.m1")).setup()
    assert done.tables == ("public.m",)
    assert query(database, "SELECT relreplident FROM pg_class WHERE relname IN ('m', 'm1', 'm2')") == [("f",)] * 3
    assert query(database, "SELECT pubviaroot FROM pg_publication") == [(True,)]
    execute(database, "INSERT INTO m VALUES (1, 'a')", "UPDATE m SET v = 'b'", "DELETE FROM m")


def test_generated_columns_are_published_where_the_server_can(postgres18: Postgres) -> None:
    with postgres18.database("generated") as dsn:
        execute(dsn, "CREATE TABLE g (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
        PostgresSource(config(dsn, "g")).setup()
        assert query(dsn, "SELECT attnames::text[] FROM pg_publication_tables") == [(["id", "twice"],)]


def test_a_failover_slot_is_made_when_asked_for(postgres18: Postgres) -> None:
    with postgres18.database("failover") as dsn:
        execute(dsn, "CREATE TABLE g (id int PRIMARY KEY)")
        PostgresSource(config(dsn, "g", failover=True)).setup()
        slots = query(dsn, "SELECT failover FROM pg_replication_slots WHERE database = current_database()")
        assert slots == [(True,)]


def test_replica_identity_full_is_set_everywhere_when_asked_for(database: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    PostgresSource(config(database, "a", replica_identity="full")).setup()
    assert query(database, "SELECT relreplident FROM pg_class WHERE relname = 'a'") == [("f",)]


def test_a_table_without_identity_is_refused_when_it_must_be_kept_as_it_is(database: str) -> None:
    execute(database, "CREATE TABLE a (t text)")
    with pytest.raises(errors.NoReplicaIdentity, match=r'ALTER TABLE "public"\."a" REPLICA IDENTITY FULL'):
        PostgresSource(config(database, "a", replica_identity="keep")).setup()
    assert query(database, "SELECT count(*) FROM pg_publication") == [(0,)]


def test_a_missing_table_is_named_with_the_nearest_that_exists(database: str) -> None:
    execute(database, "CREATE TABLE orders (id int PRIMARY KEY)")
    with psycopg.connect(database) as db:
        found, (unmatched,) = find(db, ["public.ordres"])
    assert not found
    assert "public.ordres" in unmatched.what
    assert "Did you mean public.orders?" in unmatched.fix


def test_a_pipeline_whose_tables_are_not_there_yet_is_made_ready(database: str) -> None:
    done = PostgresSource(config(database, "public.ordres", "shop.*")).setup()
    assert done.tables == ()
    assert len([note for note in done.notes if "no table matches" in note]) == 2
    assert query(database, "SELECT count(*) FROM pg_publication_tables") == [(0,)]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE VIEW v AS SELECT 1 AS a", "a view"),
        ("CREATE UNLOGGED TABLE v (id int PRIMARY KEY)", "an unlogged table"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1 AS a", "a materialized view"),
    ],
)
def test_what_has_no_changes_in_the_wal_is_named_with_the_reason(database: str, statement: str, reason: str) -> None:
    execute(database, statement)
    assert any(f"is {reason}" in note for note in PostgresSource(config(database, "v")).setup().notes)


@pytest.fixture
def limited(postgres: Postgres, database: str) -> Iterator[str]:
    """DSN of a role that may log in and nothing else."""
    role = f"limited_{psycopg.conninfo.conninfo_to_dict(database)['dbname']}"
    execute(database, f"CREATE ROLE {role} LOGIN")
    yield database.replace("postgres@", f"{role}@")
    execute(database, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_role_without_replication_is_told_what_to_grant(database: str, limited: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    with pytest.raises(errors.NoReplicationPrivilege, match="REPLICATION"):
        PostgresSource(config(limited, "a")).setup()


def test_a_role_that_may_not_publish_is_given_the_statement_to_run(database: str, limited: str) -> None:
    role = psycopg.conninfo.conninfo_to_dict(limited)["user"]
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)", f"ALTER ROLE {role} REPLICATION")
    with pytest.raises(errors.PublicationProblem, match=r'CREATE PUBLICATION .* FOR TABLE "public"\."a"'):
        PostgresSource(config(limited, "a")).setup()
    execute(database, "CREATE TABLE b (t text)")
    with pytest.raises(errors.NoReplicaIdentity, match=r'ALTER TABLE "public"\."b"'):
        PostgresSource(config(limited, "b")).setup()


def test_a_role_with_only_replication_is_enough_once_a_publication_is_there(database: str, limited: str) -> None:
    role = psycopg.conninfo.conninfo_to_dict(limited)["user"]
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)", f"ALTER ROLE {role} REPLICATION",
            "CREATE PUBLICATION mine FOR TABLE a WITH (publish_via_partition_root = true)")  # fmt: skip
    with opened(config(limited, "a", publication="mine")) as source:
        assert source.setup().did == (f'created replication slot "{source.config.slot_name}"',)
        source.start(None)


def test_a_publication_that_differs_in_partition_root_is_not_changed_silently(database: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE a1 PARTITION OF a DEFAULT", "CREATE PUBLICATION mine FOR TABLE a")  # fmt: skip
    with pytest.raises(errors.PublicationProblem, match="publish_via_partition_root"):
        PostgresSource(config(database, "a", publication="mine")).setup()


def test_a_publication_that_differs_in_partition_root_serves_where_nothing_is_partitioned(database: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE PUBLICATION mine FOR TABLE a")
    assert PostgresSource(config(database, "a", publication="mine")).setup().position


def test_a_publication_of_all_tables_needs_no_addition(database: str) -> None:
    options = "publish_via_partition_root = true, publish = 'insert'"
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)", f"CREATE PUBLICATION mine FOR ALL TABLES WITH ({options})")
    done = PostgresSource(config(database, "a", publication="mine")).setup()
    assert len(done.did) == 1
    assert any("update, delete, truncate" in note for note in done.notes)


def test_a_slot_of_another_plugin_is_not_taken_over(database: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    settings = config(database, "a")
    execute(database, f"SELECT pg_create_logical_replication_slot('{settings.slot_name}', 'test_decoding')")
    with pytest.raises(errors.SlotMismatch, match="test_decoding"):
        PostgresSource(settings).setup()


def test_a_slot_that_is_gone_is_not_made_anew_once_a_position_is_known(database: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    source = PostgresSource(config(database, "a"))
    begin = source.setup().position
    execute(database, f"SELECT pg_drop_replication_slot('{source.config.slot_name}')")
    with pytest.raises(errors.SlotLost, match="recover") as caught:
        source.setup(after=begin)
    assert isinstance(caught.value, PositionLost)
    assert not is_retryable(caught.value)
    with pytest.raises(errors.SlotLost):
        source.start(begin)


def test_a_publication_that_is_gone_is_not_made_anew_once_a_position_is_known(database: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    source = PostgresSource(config(database, "a"))
    begin = source.setup().position
    execute(database, f"DROP PUBLICATION {source.config.publication_name}")
    with pytest.raises(errors.PublicationLost, match="gone") as caught:
        source.setup(after=begin)
    assert not is_retryable(caught.value)


def test_an_open_transaction_in_the_way_of_the_slot_is_named(database: str) -> None:
    execute(
        database,
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE PUBLICATION mine FOR TABLE a WITH (publish_via_partition_root)",
    )
    with psycopg.connect(database) as writer:
        writer.execute("INSERT INTO a VALUES (1)")
        pid = writer.info.backend_pid
        with pytest.raises(errors.ServerBusy, match=f"process {pid}"):
            PostgresSource(config(database, "a", publication="mine", setup_timeout_seconds=0.5)).setup()
        writer.rollback()
    PostgresSource(config(database, "a", publication="mine", setup_timeout_seconds=10)).setup()


def test_a_locked_table_is_an_error_and_not_a_queue_in_front_of_the_application(database: str) -> None:
    execute(database, "CREATE TABLE a (t text)")
    with psycopg.connect(database) as reader:
        reader.execute("SELECT * FROM a")
        with pytest.raises(errors.ServerBusy):
            PostgresSource(config(database, "a", lock_timeout_seconds=0.2)).setup()


def test_wal_level_replica_is_an_error_that_says_how_to_raise_it() -> None:
    with Postgres(durable=False, wal_level="replica", max_wal_senders=2) as server:
        execute(server.dsn(), "CREATE TABLE a (id int PRIMARY KEY)")
        with pytest.raises(errors.WalLevelTooLow, match="ALTER SYSTEM SET wal_level"):
            PostgresSource(config(server.dsn(), "a")).setup()


def test_a_server_without_a_free_slot_names_those_nobody_uses() -> None:
    with Postgres(durable=False, max_replication_slots=1) as server:
        execute(
            server.dsn(),
            "CREATE TABLE a (id int PRIMARY KEY)",
            "SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')",
        )
        with pytest.raises(errors.NoFreeSlot, match="forgotten"):
            PostgresSource(config(server.dsn(), "a")).setup()


def test_a_server_without_a_free_sender_says_so() -> None:
    with Postgres(durable=False, max_wal_senders=1) as server:
        execute(server.dsn(), "CREATE TABLE a (id int PRIMARY KEY)")
        with opened(config(server.dsn(), "a", id="one")) as first:
            first.setup()
            first.start(None)
            with opened(config(server.dsn(), "a", id="two")) as second:
                with pytest.raises(errors.NoFreeSender, match="max_wal_senders"):
                    second.setup()
                execute(
                    server.dsn(), f"SELECT pg_create_logical_replication_slot('{second.config.slot_name}', 'pgoutput')"
                )
                with pytest.raises(errors.NoFreeSender):
                    second.start(None)


def test_a_known_position_of_another_server_is_not_taken_for_granted(database: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    with opened(config(database, "a")) as source:
        source.setup()
        with pytest.raises(PositionLost, match="another server"):
            source.start(Position("FFFF/0"))


def test_every_setup_error_is_for_a_person_and_exits_with_the_environment_code() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SetupError)]
    assert len(kinds) >= 12
    assert all(kind.exit_code == 3 and not is_retryable(kind("")) for kind in kinds)
