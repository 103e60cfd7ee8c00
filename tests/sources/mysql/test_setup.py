"""Setup and doctor against real servers: each thing that can be missing is named, with what to do about it."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal

import pytest
from pydantic import ValidationError

from tests.servers.mysql import KINDS, private_server
from tests.sources.mysupport import TABLE, account, config, opened, purge
from tests.support.binlogstream import MapTables, decode, end_of_binlog, record
from tests.support.decoded import rows
from tidemill.contracts import Check, Outcome, Resting
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.errors import SetupError
from tidemill.lab.servers.mysql_family import Server
from tidemill.sources.mariadb import MariadbConfig, MariadbSource
from tidemill.sources.mysql import MysqlConfig, MysqlSource, errors, setup
from tidemill.sources.mysql import server as facts
from tidemill.sources.mysql.catalog import read_databases, read_tables
from tidemill.sources.mysql.checks import _position as where_it_rests
from tidemill.sources.mysql.checks import retention
from tidemill.sources.mysql.client import connect
from tidemill.sources.mysql.tables import Selection

_names = itertools.count(1)
ALL = ("REPLICATION SLAVE, REPLICATION CLIENT ON *.*", "SELECT ON *.*")


@pytest.fixture
def shop(mysql_server: Server) -> Iterator[tuple[Server, str]]:
    """An empty database of the test's own."""
    name = f"setup{next(_names)}"
    with mysql_server.database(name):
        yield mysql_server, name


def checks(settings: MysqlConfig, resting: Resting | None = None) -> dict[str, Check]:
    found = {check.name: check for check in MysqlSource(settings).doctor(resting)}
    assert all(check.fix for check in found.values() if check.outcome is not Outcome.PASS), "every trouble has a fix"
    return found


@pytest.fixture(scope="module", params=KINDS)
def private(request: pytest.FixtureRequest) -> Iterator[Server]:
    with private_server(request.param) as server:
        server.query("CREATE DATABASE shop")
        server.query(TABLE, database="shop")
        yield server


def test_a_ready_server_passes_every_check(shop: tuple[Server, str]) -> None:
    server, name = shop
    server.query(TABLE, database=name)
    with account(server, *ALL) as (_, dsn):
        settings = config(dsn, f"{name}.t")
        prepared = MysqlSource(settings).setup()
        assert prepared.tables == (f"{name}.t",)
        assert prepared.notes == ()
        assert MysqlSource(settings).setup() == prepared
        found = checks(settings)
        assert {c.name for c in found.values() if c.outcome is Outcome.FAIL} == set()
        assert found["binlog_row_metadata"].outcome is Outcome.PASS
        assert found["gtid"].outcome is Outcome.PASS
        assert found["keys"].outcome is Outcome.PASS
        assert found["retention"].outcome is Outcome.PASS


@pytest.mark.parametrize("positions", ["gtid", "file"])
def test_the_doctor_compares_where_a_pipeline_rests_with_what_the_server_keeps(
    private: Server, positions: Literal["gtid", "file"]
) -> None:
    private.query("SET GLOBAL binlog_expire_logs_seconds = 36000")
    settings = config(private.dsn(), "shop.t", positions=positions)
    assert "none yet" in checks(settings)["position"].detail
    with opened(settings) as source:
        began = source.began

    def verdict(hours_ago: float) -> tuple[Outcome, str]:
        found = checks(settings, Resting(began, None, time.time() - hours_ago * 3600))["position"]
        return found.outcome, found.detail

    assert verdict(9) == (Outcome.PASS, "nothing waits after it")
    private.query(f"REPLACE INTO shop.t VALUES (1, '{positions}')")
    waiting = "1 transaction" if positions == "gtid" else "bytes of binlog"
    outcome, detail = verdict(1)
    assert (outcome, waiting in detail) == (Outcome.PASS, True), detail
    outcome, detail = verdict(6)
    assert (outcome, waiting in detail) == (Outcome.WARN, True), detail
    assert "capture last ran 6.0 hours ago, and the server keeps 10.0" in detail
    purge(private)
    outcome, detail = verdict(1)
    assert outcome is Outcome.FAIL
    assert "purged" in detail


def test_a_server_that_cannot_be_reached_is_one_failed_check() -> None:
    assert [c.name for c in MysqlSource(config("mysql://root@127.0.0.1:1/")).doctor()] == ["connection"]


def test_the_grant_for_the_state_of_the_binlog_is_named(shop: tuple[Server, str]) -> None:
    server, name = shop
    server.query(TABLE, database=name)
    with account(server, "REPLICATION SLAVE ON *.*", "SELECT ON *.*") as (user, dsn):
        grant = "BINLOG MONITOR" if server.name == "MariaDB" else "REPLICATION CLIENT"
        with pytest.raises(errors.GrantMissing) as caught:
            MysqlSource(config(dsn, f"{name}.t")).setup()
        assert f"GRANT {grant} ON *.* TO '{user}'@'%'" in caught.value.fix
        failed = checks(config(dsn, f"{name}.t"))["binlog privilege"]
        assert (failed.outcome, failed.fix) == (Outcome.FAIL, caught.value.fix)


def test_the_grant_for_reading_the_binlog_is_named(shop: tuple[Server, str]) -> None:
    server, name = shop
    server.query(TABLE, database=name)
    with account(server, "REPLICATION CLIENT ON *.*", "SELECT ON *.*") as (user, dsn):
        with pytest.raises(errors.GrantMissing) as caught:
            MysqlSource(config(dsn, f"{name}.t")).setup()
        assert f"GRANT REPLICATION SLAVE ON *.* TO '{user}'@'%'" in caught.value.fix
        assert checks(config(dsn, f"{name}.t"))["replication privilege"].outcome is Outcome.FAIL


def test_the_grants_may_come_through_a_role(mysql: Server) -> None:
    with mysql.database("byrole"), account(mysql) as (user, dsn):
        mysql.query(TABLE, database="byrole")
        mysql.execute("CREATE ROLE capture", *(f"GRANT {grant} TO capture" for grant in ALL),
                      f"GRANT capture TO '{user}'@'%'", f"SET DEFAULT ROLE ALL TO '{user}'@'%'")  # fmt: skip
        try:
            assert MysqlSource(config(dsn, "byrole.t")).setup().tables == ("byrole.t",)
        finally:
            mysql.query("DROP ROLE capture")


def test_a_table_that_may_be_seen_but_not_read_names_its_grant(shop: tuple[Server, str]) -> None:
    server, name = shop
    server.query(TABLE, database=name)
    with account(server, ALL[0], f"INSERT ON {name}.t") as (user, dsn):
        with pytest.raises(errors.GrantMissing) as caught:
            MysqlSource(config(dsn, f"{name}.t")).setup()
        assert f"GRANT SELECT ON `{name}`.`t` TO '{user}'@'%'" in caught.value.fix
        assert checks(config(dsn, f"{name}.t"))["tables"].outcome is Outcome.FAIL


def test_a_table_that_may_not_be_seen_names_its_grant(shop: tuple[Server, str]) -> None:
    server, name = shop
    server.query(TABLE, database=name)
    with account(server, ALL[0]) as (user, dsn):
        for table, granted in ((f"{name}.t", f"`{name}`.`t`"), (f"{name}.*", f"`{name}`.*"), ("*.t", "*.*")):
            assert f'no table matches "{table}" yet' in MysqlSource(config(dsn, table)).setup().notes
            [warned] = unmatched(config(dsn, table))
            assert f"GRANT SELECT ON {granted} TO '{user}'@'%'" in warned.fix


def test_databases_of_the_server_are_meant_only_where_they_are_named() -> None:
    def chosen(*tables: str, database: str = "") -> list[str]:
        selection = Selection.of(tables, database)
        assert set(selection.left_out) <= {"mysql", "sys", "information_schema", "performance_schema"}
        return [f"{d}.{t}" for d in ("mysql", "sys", "shop") for t in ("a", "b") if selection(d, t)]

    assert chosen() == chosen("*.*") == chosen("%.%") == ["shop.a", "shop.b"]
    assert chosen("*.*", "mysql.a") == ["mysql.a", "shop.a", "shop.b"]
    assert chosen("`mysql`.*") == chosen("*", database="mysql") == ["mysql.a", "mysql.b"]
    assert chosen("my%.a") == []


def test_a_table_that_does_not_exist_suggests_the_nearest(shop: tuple[Server, str]) -> None:
    server, name = shop
    server.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE VIEW v AS SELECT * FROM orders", database=name)
    [near, view] = unmatched(config(server.dsn(), f"{name}.order", f"{name}.orders", f"{name}.v"))
    assert f"Did you mean {name}.orders?" in near.fix
    assert "GRANT" not in near.fix, "this account sees every table"
    assert "no base table" in view.detail
    assert MysqlSource(config(server.dsn(), f"{name}.v")).setup().tables == ()


def unmatched(settings: MysqlConfig) -> list[Check]:
    return [c for c in MysqlSource(settings).doctor() if c.name == "tables" and c.outcome is Outcome.WARN]


def test_patterns_choose_tables_and_a_name_alone_is_in_the_dsns_database(shop: tuple[Server, str]) -> None:
    server, name = shop
    server.execute(*(f"CREATE TABLE `{t}` (id int PRIMARY KEY)" for t in ("a1", "a2", "b", "x.y")), database=name)

    def chosen(*tables: str) -> list[str]:
        found = MysqlSource(config(server.dsn(name), *tables)).setup().tables
        return [t.removeprefix(f"{name}.") for t in found]

    assert chosen(f"{name}.*") == ["a1", "a2", "b", "x.y"]
    assert chosen(f"{name}.a%") == ["a1", "a2"]
    assert chosen("b") == ["b"]
    assert chosen(f"`{name}`.`x.y`") == ["x.y"]
    with pytest.raises(ValidationError):
        config(server.dsn(name), "a.b.c")


def test_a_table_without_a_key_is_a_warning(shop: tuple[Server, str]) -> None:
    server, name = shop
    server.query("CREATE TABLE bare (v int)", database=name)
    found = checks(config(server.dsn(name), "bare"))["keys"]
    assert (found.outcome, found.detail) == (Outcome.WARN, f"no primary key on {name}.bare")


@pytest.mark.parametrize(
    ("setting", "value", "error", "check"),
    [
        ("binlog_format", "STATEMENT", errors.FormatNotRows, "binlog_format"),
        ("binlog_format", "MIXED", errors.FormatNotRows, "binlog_format"),
    ],
)
def test_a_binlog_of_statements_is_refused(
    private: Server, setting: str, value: str, error: type[SetupError], check: str
) -> None:
    private.query(f"SET GLOBAL {setting} = '{value}'")
    try:
        with pytest.raises(error):
            MysqlSource(config(private.dsn(), "shop.t")).setup()
        with pytest.raises(error), opened(config(private.dsn(), "shop.t")):
            pass
        assert checks(config(private.dsn(), "shop.t"))[check].outcome is Outcome.FAIL
    finally:
        private.query(f"SET GLOBAL {setting} = 'ROW'")


@pytest.mark.parametrize(
    ("setting", "value", "check", "words"),
    [
        ("binlog_row_image", "MINIMAL", "binlog_row_image", "unchanged"),
        ("binlog_row_image", "NOBLOB", "binlog_row_image", "unchanged"),
        ("binlog_row_metadata", "MINIMAL", "binlog_row_metadata", "schema history"),
    ],
)
def test_settings_that_change_events_are_warned_about(
    private: Server, setting: str, value: str, check: str, words: str
) -> None:
    private.query(f"SET GLOBAL {setting} = '{value}'")
    try:
        assert any(words in note for note in MysqlSource(config(private.dsn(), "shop.t")).setup().notes)
        found = checks(config(private.dsn(), "shop.t"))[check]
        assert found.outcome is Outcome.WARN
        assert words in found.detail
    finally:
        private.query(f"SET GLOBAL {setting} = 'FULL'")


def test_a_short_retention_is_warned_about(private: Server) -> None:
    private.query("SET GLOBAL binlog_expire_logs_seconds = 3600")
    try:
        assert checks(config(private.dsn(), "shop.t"))["retention"].outcome is Outcome.WARN
    finally:
        private.query("SET GLOBAL binlog_expire_logs_seconds = 2592000")
    assert checks(config(private.dsn(), "shop.t"))["retention"].detail.startswith("30 days")


def test_binlog_that_is_kept_up_to_a_size_only_is_warned_about(private: Server) -> None:
    with connect(config(private.dsn())) as db:
        known = facts.MysqlServerInfo.read(db)
        assert [check.name for check in retention(db, known)] == ["retention"]
        for name in ("max_binlog_total_size", "binlog_space_limit"):  # of servers that are not here
            limited = replace(known, settings=known.settings | {name: str(64 << 20)})
            _, found = retention(db, limited)
            assert found.outcome is Outcome.WARN
            assert "64 MiB" in found.detail


def test_what_waits_is_compared_with_the_size_that_is_kept(private: Server) -> None:
    settings = config(private.dsn(), "shop.t", positions="file")
    with opened(settings) as source:
        resting = Resting(source.began, None, time.time())
    private.query("REPLACE INTO shop.t VALUES (3, REPEAT('x', 100))")
    with connect(settings) as db:
        known = facts.MysqlServerInfo.read(db)
        for limit, outcome in ((100, Outcome.WARN), (1 << 30, Outcome.PASS)):
            limited = replace(known, settings=known.settings | {"max_binlog_total_size": str(limit)})
            assert where_it_rests(db, limited, settings, resting).outcome is outcome


@pytest.mark.parametrize("kind", ["mysql", "mysql with keys of the engine", "mariadb"])
def test_changes_by_foreign_keys_are_warned_about_where_the_server_does_not_log_them(kind: str) -> None:
    own = {"innodb_native_foreign_keys": True} if "engine" in kind else {}
    with private_server(kind.split(" ", maxsplit=1)[0], **own) as server, server.database("shop"):
        rules = ("DELETE CASCADE", "DELETE SET NULL", "UPDATE CASCADE", "UPDATE SET NULL")
        server.query("CREATE TABLE p (id int PRIMARY KEY)", database="shop")
        for i, rule in enumerate(rules):
            key = f"FOREIGN KEY (p) REFERENCES p (id) ON {rule}"
            server.query(f"CREATE TABLE c{i} (id int PRIMARY KEY, p int, {key})", database="shop")
        server.query("CREATE TABLE r (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES p (id))", database="shop")
        found = checks(config(server.dsn(), "shop.*")).get("foreign keys")
        server.query(f"INSERT INTO p VALUES {', '.join(f'({i})' for i in range(4))}", database="shop")
        for i in range(4):
            server.query(f"INSERT INTO c{i} VALUES ({i}, {i})", database="shop")
        for i, rule in enumerate(rules):
            begin = end_of_binlog(server)
            change = "DELETE FROM p" if "DELETE" in rule else "UPDATE p SET id = id + 10"
            server.query(f"{change} WHERE id = {i}", database="shop")
            flavor = Flavor.MYSQL if server.name == "MySQL" else Flavor.MARIADB
            logged = [row["table"] for row in rows(decode(record(server, begin), MapTables(), flavor))]
            assert (f"shop.c{i}" in logged, "shop.p" in logged) == (found is None, True), rule
        assert found is None or found.detail.endswith("shop.c0, shop.c1, shop.c2, shop.c3")


def gtid_mode(server: Server, *steps: str) -> None:
    """It can be changed while the server runs, one step at a time."""
    server.execute(*(f"SET GLOBAL gtid_mode = {step}" for step in steps))


def test_positions_by_gtid_without_gtids_are_refused_and_files_are_warned_about(private: Server) -> None:
    assert checks(config(private.dsn(), "shop.t", positions="file"))["gtid"].outcome is Outcome.WARN
    by_gtid = MysqlSource(config(private.dsn(), "shop.t")).renew()
    if private.name == "MySQL":
        gtid_mode(private, "ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF")
        try:
            assert checks(config(private.dsn(), "shop.t"))["gtid"].outcome is Outcome.WARN
            assert checks(config(private.dsn(), "shop.t", positions="gtid"))["gtid"].outcome is Outcome.FAIL
            with pytest.raises(errors.GtidOff), opened(config(private.dsn(), "shop.t", positions="gtid")):
                pass
            with pytest.raises(errors.GtidOff, match="GTID set"), opened(config(private.dsn(), "shop.t"), by_gtid):
                pass
            with opened(config(private.dsn(), "shop.t")) as source:
                assert "@" in source.began, "file and byte"
        finally:
            gtid_mode(private, "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON")
    else:
        private.query("SET GLOBAL gtid_strict_mode = OFF")
        assert checks(config(private.dsn(), "shop.t"))["gtid"].outcome is Outcome.WARN
        private.query("SET GLOBAL gtid_strict_mode = ON")


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_without_a_binlog_is_refused(kind: str) -> None:
    with private_server(kind) as server:
        server.query("CREATE DATABASE shop")
        server.query(TABLE, database="shop")
        server._settings.pop("log_bin")
        server.restart(**({"skip_log_bin": True} if kind == "mysql" else {}))
        with pytest.raises(errors.BinlogOff) as caught:
            MysqlSource(config(server.dsn(), "shop.t")).setup()
        assert "log_bin" in caught.value.fix
        assert checks(config(server.dsn(), "shop.t"))["log_bin"].outcome is Outcome.FAIL


def test_type_mariadb_takes_mariadb_only(mysql: Server, mariadb: Server) -> None:
    with pytest.raises(errors.OtherFlavor) as caught:
        MariadbSource(MariadbConfig(id="m", dsn=mysql.dsn(ssl_mode="disabled"))).setup()
    assert caught.value.fix == "Write `type: mysql`."
    with mariadb.database("flavor"):
        mariadb.query(TABLE, database="flavor")
        settings = MariadbConfig(id="m", dsn=mariadb.dsn(ssl_mode="disabled"), tables=("flavor.t",))
        assert MariadbSource(settings).setup().server.startswith("MariaDB 10.")


def test_the_servers_own_id_is_not_ours(mysql_server: Server) -> None:
    with pytest.raises(errors.ServerIdTaken) as caught:
        MysqlSource(config(mysql_server.dsn(), server_id=1)).setup()
    assert "`server_id`" in caught.value.fix


def test_an_id_of_another_replica_is_not_ours(shop: tuple[Server, str]) -> None:
    server, name = shop
    server.query(TABLE, database=name)
    with opened(config(server.dsn(), f"{name}.t", id="theirs", server_id=4711)):
        with pytest.raises(errors.ServerIdTaken, match="theirs"):
            MysqlSource(config(server.dsn(), f"{name}.t", id="ours", server_id=4711)).setup()
        found = checks(config(server.dsn(), f"{name}.t", id="ours", server_id=4711))["server_id"]
        assert found.outcome is Outcome.FAIL


def test_a_source_whose_id_only_begins_like_ours_is_not_waited_for(
    shop: tuple[Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, name = shop
    server.query(TABLE, database=name)

    def waited(seconds: float) -> None:
        raise AssertionError("waited for a replica of another source")

    with opened(config(server.dsn(), f"{name}.t", id="orders_eu", server_id=4712)):
        monkeypatch.setattr(setup, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waited))
        ours = config(server.dsn(), f"{name}.t", id="orders", server_id=4712)
        with pytest.raises(errors.ServerIdTaken, match="orders_eu"), opened(ours):
            pass


@pytest.mark.parametrize(("id", "replica"), [("orders", 4713), ("заказы и клиенты всех магазинов на севере", 4714)])
def test_what_another_pipeline_of_the_source_left_is_waited_for(
    shop: tuple[Server, str], monkeypatch: pytest.MonkeyPatch, id: str, replica: int
) -> None:
    """The state directory is gone, and with it the uuid by which the stream that is left would be known."""
    server, name = shop
    server.query(TABLE, database=name)
    settings = config(server.dsn(), f"{name}.t", id=id, server_id=replica, heartbeat_seconds=0.5)
    waited: list[float] = []
    with ExitStack() as left:
        left.enter_context(opened(settings))

        def sleep(seconds: float) -> None:
            waited.append(seconds)
            left.close()
            time.sleep(seconds)

        # A clock that stands still: however long the server takes to notice.
        monkeypatch.setattr(setup, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
        with opened(settings, own=str(uuid.uuid4())):
            assert waited


def test_ids_made_from_names_differ_and_stay() -> None:
    made = [config("mysql://h/", id=name).replica_id for name in ("orders", "customers", "orders")]
    assert made[0] == made[2] != made[1]
    assert all(1_000_000_000 <= number < 1 << 32 for number in made)


def test_the_catalog_has_what_a_schema_history_needs(shop: tuple[Server, str]) -> None:
    server, name = shop
    hidden = "INVISIBLE" if server.name == "MySQL" else "INVISIBLE DEFAULT 1"
    server.query(
        "CREATE TABLE t (b int unsigned NOT NULL, a varchar(10) CHARACTER SET latin1 NOT NULL, e enum('x','y\\'z'),"
        f" g int AS (b + 1) STORED, h int {hidden}, j json, PRIMARY KEY (b, a)) DEFAULT CHARSET utf8mb4",
        database=name,
    )
    with connect(config(server.dsn())) as db:
        (table,) = [table for table in read_tables(db, facts.MysqlServerInfo.read(db)) if table.database == name]
        assert name in {database.name: database for database in read_databases(db)}
    columns = {c.name: c for c in table.columns}
    assert table.full_name == f"{name}.t"
    assert (table.key, table.charset) == (("b", "a"), "utf8mb4")
    assert list(columns) == ["b", "a", "e", "g", "h", "j"]
    assert columns["b"].type.startswith("int")
    assert columns["b"].type.endswith("unsigned")
    assert (columns["a"].charset, columns["a"].nullable, columns["e"].nullable) == ("latin1", False, True)
    assert columns["e"].type == "enum('x','y''z')"
    assert [c.name for c in table.columns if c.generated] == ["g"]
    assert [c.name for c in table.columns if c.invisible] == ["h"]
