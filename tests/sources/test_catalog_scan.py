"""Catalogs of real servers against what their streams registered: clean at first, and each change found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sources import mysupport, support
from tests.support.capturing import capturing, eventually
from tidemill.contracts.catalog_scan import CatalogReader
from tidemill.lab.servers.mysql_family import Server
from tidemill.lab.servers.postgres import Postgres
from tidemill.schema.catalog_scan import BASELINE, CatalogBaseline
from tidemill.schema.registry import RegistryFile, SchemaRegistry
from tidemill.sources.mysql import MysqlSource
from tidemill.sources.postgres import PostgresSource

Found = set[tuple[str, str, str]]


class Scans:
    """The registry of a stream that has ended, and looks at the catalog against it."""

    def __init__(self, registry: SchemaRegistry, reader: object) -> None:
        assert isinstance(reader, CatalogReader)
        self._registry, self._reader = registry, reader

    def look(self) -> Found:
        found: Found = set()
        scan, tables = self._reader.scan_catalog(60), self._registry.tables_in_force()

        def advance(document: bytes | None) -> bytes:
            nonlocal found
            baseline = CatalogBaseline.from_json(document)
            comparison = baseline.compare(scan, tables)
            found = {(each.table, str(each.kind), each.subject) for each in comparison.findings}
            return baseline.advance(comparison, ()).to_json()

        self._registry.revise(BASELINE, advance)
        return found


@contextmanager
def scans(directory: Path, source: MysqlSource | PostgresSource) -> Iterator[Scans]:
    found = RegistryFile(directory / "registry.sqlite").find_registry()
    assert found is not None
    try:
        yield Scans(found, source.snapshot_reader())
    finally:
        found.close()


def test_a_postgres_catalog_is_what_the_stream_said_until_somebody_changes_it(
    postgres18: Postgres, tmp_path: Path
) -> None:
    with postgres18.database("catalog_scan") as dsn:
        support.execute(
            dsn,
            "CREATE TYPE mood AS ENUM ('sad', 'ok')",
            "CREATE TABLE a (id bigint PRIMARY KEY, name varchar(40) NOT NULL DEFAULT 'x', price numeric(12,2),"
            " tags text[], felt mood, total numeric GENERATED ALWAYS AS (price * 2) STORED)",
            "CREATE TABLE b (id int PRIMARY KEY, v text, n int GENERATED ALWAYS AS (id + 1) STORED)",
            "CREATE TABLE parts (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
            "CREATE TABLE parts_1 PARTITION OF parts DEFAULT",
        )
        settings = support.config(dsn, "public.*")
        source = PostgresSource(settings)
        with capturing(source, tmp_path) as running:
            support.execute(
                dsn, "INSERT INTO a (id) VALUES (1)", "INSERT INTO b VALUES (1)",
                "INSERT INTO parts VALUES (1, '2026-01-31')",
            )  # fmt: skip
            eventually(lambda: running.events == 3, running)
        with scans(tmp_path, source) as it:
            assert it.look() == set()
            assert it.look() == set(), "defaults and expressions are known now"
            support.execute(
                dsn,
                "ALTER TABLE a ALTER name SET DEFAULT 'y', ALTER name DROP NOT NULL",
                "ALTER TABLE a DROP total",
                "ALTER TABLE a ADD twice numeric GENERATED ALWAYS AS (price + price) STORED",
                "ALTER TABLE a ALTER tags TYPE varchar[] USING tags::varchar[]",
                "ALTER TABLE b DROP CONSTRAINT b_pkey, REPLICA IDENTITY FULL",
                "ALTER TABLE b ALTER n SET EXPRESSION AS (id + 2)",
                f"ALTER PUBLICATION {settings.publication_name} DROP TABLE parts",
            )
            assert it.look() == {
                ("public.a", "default", "name"), ("public.a", "nullability", "name"),
                ("public.a", "dropped_column", "total"),
                ("public.a", "added_column", "twice"), ("public.a", "type", "tags"), ("public.b", "key", ""),
                ("public.b", "key_index", ""), ("public.b", "replica_identity", ""), ("public.b", "generated", "n"),
                ("public.parts", "unpublished", ""),
            }  # fmt: skip
            support.execute(
                dsn, f"ALTER PUBLICATION {settings.publication_name} ADD TABLE parts",
                "ALTER TABLE b ALTER n DROP EXPRESSION",
            )  # fmt: skip
            found = it.look()
            assert ("public.parts", "unpublished", "") not in found
            assert ("public.b", "generated", "n") in found, "it is a column like others now"


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_a_catalog_of_mysql_is_what_the_stream_said_until_somebody_changes_it(
    flavor: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: Server = request.getfixturevalue(flavor)
    shop = f"catalog_scan_{flavor}"
    server.query(f"CREATE DATABASE {shop}")
    try:
        server.execute(
            "CREATE TABLE a (id bigint unsigned PRIMARY KEY, name varchar(40) NOT NULL DEFAULT 'x',"
            " price decimal(12,2), doc json, felt enum('sad','ok'),"
            " total decimal(14,2) AS (price * 2) STORED, at datetime(6))",
            "CREATE TABLE b (id int PRIMARY KEY, v text)",
            database=shop,
        )
        source = MysqlSource(mysupport.config(server.dsn(database=shop), f"{shop}.*"))
        with capturing(source, tmp_path) as running:
            eventually(lambda: running.log.tail().position, running)  # it begins with what is written from then on
            server.execute("INSERT INTO a (id) VALUES (1)", "INSERT INTO b VALUES (1, 'x')", database=shop)
            eventually(lambda: running.events == 2, running)
        with scans(tmp_path, source) as it:
            assert it.look() == set()
            server.execute(
                "ALTER TABLE a ALTER name SET DEFAULT 'y', MODIFY price decimal(14,2),"
                " MODIFY total decimal(14,2) AS (price * 3) STORED, MODIFY at datetime(6) NOT NULL, ADD note text",
                "ALTER TABLE b DROP PRIMARY KEY",
                database=shop,
            )
            assert it.look() == {
                (f"{shop}.a", "default", "name"), (f"{shop}.a", "type", "price"), (f"{shop}.a", "generated", "total"),
                (f"{shop}.a", "nullability", "at"), (f"{shop}.a", "added_column", "note"), (f"{shop}.b", "key", ""),
                (f"{shop}.b", "key_index", ""),
            }  # fmt: skip
    finally:
        server.query(f"DROP DATABASE {shop}")
