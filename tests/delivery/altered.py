"""For changes of a table under load: the sources that it is altered at, and the copies that sinks keep of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Protocol

import psycopg

from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.lab.servers.mysql_family import Server
from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.servers.starrocks_standin import StarRocks

Statement = Callable[[str], Any]
History = dict[int, list[str]]
"""By id, the names that a row was given, in order."""

TABLE = "CREATE TABLE items (id int PRIMARY KEY, name varchar(50))"
RECORDED = """
CREATE SCHEMA recorded;
CREATE TABLE recorded.items (number bigserial PRIMARY KEY, id int, name text);
CREATE FUNCTION recorded.note() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO recorded.items (id, name) VALUES (NEW.id, NEW.name); RETURN NULL; END $$;
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON {0} FOR EACH ROW EXECUTE FUNCTION recorded.note();
ALTER TABLE {0} ENABLE ALWAYS TRIGGER noted
"""


class Origin(Protocol):
    """A source with a table `items (id, name)`, and a record of what its rows were called.

    `TELLS`: the source tells each statement; without it a rename is known only while the catalog is as far as the
    stream. `DDL` are the statements by kind of change.
    """

    TELLS: bool
    DDL: ClassVar[dict[str, str]]
    source: str

    def session(self) -> Any:
        """A context that executes statements, each committed by itself."""

    def transaction(self, statements: Iterable[str]) -> None: ...

    def rows(self, names: str) -> list[tuple[Any, ...]]: ...

    def history(self) -> History: ...


class PostgresOrigin:
    DDL: ClassVar[dict[str, str]] = {
        "add": "ADD {new} int", "rename": "RENAME {old} TO {new}", "drop": "DROP {old}",
        "widen": "ALTER {old} TYPE bigint",
    }  # fmt: skip

    def __init__(self, dsn: str, capture: str) -> None:
        self.TELLS, self._dsn = capture == "trigger", dsn
        settings = f'id: shop, dsn: "{dsn}", tables: [public.items], ddl: {{capture: {capture}}}'
        self.source = f"{{type: postgres, config: {{{settings}}}}}"
        with self.session() as execute:
            execute(TABLE)
            execute(RECORDED.format("public.items"))

    @contextmanager
    def session(self) -> Iterator[Statement]:
        with psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None) as db:
            yield lambda statement: db.execute(statement.encode())

    def transaction(self, statements: Iterable[str]) -> None:
        with psycopg.connect(self._dsn, prepare_threshold=None) as db:
            for statement in statements:
                db.execute(statement.encode())

    def rows(self, names: str) -> list[tuple[Any, ...]]:
        with self.session() as execute:
            found: list[tuple[Any, ...]] = execute(f"SELECT {names} FROM items ORDER BY id").fetchall()
        return found

    def history(self) -> History:
        with self.session() as execute:
            return by_id(execute("SELECT id, name FROM recorded.items ORDER BY number"))


class MysqlOrigin:
    """Each ALTER TABLE commits what is before it."""

    TELLS = True
    DDL: ClassVar[dict[str, str]] = {
        "add": "ADD {new} int", "rename": "RENAME COLUMN {old} TO {new}", "drop": "DROP {old}",
        "widen": "MODIFY {old} bigint",
    }  # fmt: skip

    def __init__(self, server: Server) -> None:
        self._server = server
        server.execute("DROP DATABASE IF EXISTS altered", "CREATE DATABASE altered")
        self.source = (
            f'{{type: mysql, config: {{id: shop, dsn: "{server.dsn()}", tables: [altered.items], server_id: 4711}}}}'
        )
        with self.session() as execute:
            execute(TABLE)
            execute("CREATE TABLE recorded (number bigint AUTO_INCREMENT PRIMARY KEY, id int, name varchar(50))")
            for what in ("INSERT", "UPDATE"):
                execute(f"CREATE TRIGGER noted_{what} AFTER {what} ON items FOR EACH ROW"
                        " INSERT INTO recorded (id, name) VALUES (NEW.id, NEW.name)")  # fmt: skip

    @contextmanager
    def session(self) -> Iterator[Statement]:
        with self._server.connect("altered", autocommit=True) as db, db.cursor() as cursor:
            yield cursor.execute

    def transaction(self, statements: Iterable[str]) -> None:
        with self._server.connect("altered", autocommit=False) as db, db.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            db.commit()

    def close(self) -> None:
        self._server.execute("DROP DATABASE altered")

    def rows(self, names: str) -> list[tuple[Any, ...]]:
        return self._server.query(f"SELECT {names} FROM altered.items ORDER BY id")

    def history(self) -> History:
        return by_id(self._server.query("SELECT id, name FROM altered.recorded ORDER BY number"))


class Copy(Protocol):
    """What a sink has of the table. `DROPS`: a column that is dropped goes; `RETYPES`: one gets another type."""

    DROPS: bool
    RETYPES: bool
    document: str

    def rows(self, names: str, where: str = "") -> list[tuple[Any, ...]]:
        """In the order of their ids; none while the table is not there."""

    def columns(self) -> set[str]:
        """Without what the sink keeps for itself."""


class PostgresCopy:
    DROPS = RETYPES = True

    def __init__(self, stack: ExitStack, dsn: str) -> None:
        self._db = stack.enter_context(psycopg.connect(dsn, autocommit=True, prepare_threshold=None))
        self.document = f'{{type: postgres, config: {{id: postgres, dsn: "{dsn}", table: "copy.items"}}}}'

    def record(self) -> None:
        """From here on; the table must be there."""
        self._db.execute(RECORDED.format("copy.items").encode())

    def history(self) -> History:
        return by_id(self._db.execute("SELECT id, name FROM recorded.items ORDER BY number"))

    def rows(self, names: str, where: str = "") -> list[tuple[Any, ...]]:
        if not self.columns():
            return []
        return self._db.execute(f"SELECT {names} FROM copy.items {where} ORDER BY id".encode()).fetchall()

    def columns(self) -> set[str]:
        found = self._db.execute("SELECT column_name FROM information_schema.columns WHERE table_schema = 'copy'")
        return own_columns(name for (name,) in found)


class ClickHouseCopy:
    DROPS = RETYPES = True

    def __init__(self, stack: ExitStack) -> None:
        self._server = stack.enter_context(ClickHouse())
        self.document = f'{{type: clickhouse, config: {{id: clickhouse, url: "{self._server.url}", database: copy}}}}'

    def rows(self, names: str, where: str = "") -> list[tuple[Any, ...]]:
        if not self.columns():
            return []
        found = self._server.query(f"SELECT {names} FROM copy.items FINAL {where} ORDER BY id")
        return [tuple(row.values()) for row in found]

    def columns(self) -> set[str]:
        found = self._server.query("SELECT name FROM system.columns WHERE database = 'copy' AND table = 'items'")
        return own_columns(row["name"] for row in found)


class StarRocksCopy:
    """It keeps columns that were dropped, and the types that its columns have."""

    DROPS = RETYPES = False

    def __init__(self, stack: ExitStack) -> None:
        self._server = stack.enter_context(StarRocks())
        where = f'url: "http://127.0.0.1:{self._server.http_port}", mysql_port: {self._server.mysql_port}'
        self.document = f"{{type: starrocks, config: {{id: starrocks, {where}, database: copy}}}}"

    def rows(self, names: str, where: str = "") -> list[tuple[Any, ...]]:
        if not self.columns():
            return []
        return sorted(
            tuple(value if key == "name" or value is None else int(value) for key, value in row.items())
            for row in self._server.query(f"SELECT {names} FROM `copy`.`items` {where}")
        )

    def columns(self) -> set[str]:
        found = self._server.query(
            "SELECT column_name, column_type, column_key FROM information_schema.columns"
            " WHERE table_schema = 'copy' AND table_name = 'items'"
        )
        return own_columns(next(iter(row.values())) for row in found)


def open_copies(stack: ExitStack, sinks: Sequence[str], postgres: Postgres, name: str) -> dict[str, Copy]:
    made: dict[str, Copy] = {}
    for sink in sinks:
        match sink:
            case "postgres":
                made[sink] = PostgresCopy(stack, stack.enter_context(postgres.database(f"{name}_copy")))
            case "clickhouse":
                made[sink] = ClickHouseCopy(stack)
            case _:
                made[sink] = StarRocksCopy(stack)
    return made


def own_columns(names: Iterable[str]) -> set[str]:
    return {name for name in names if not name.startswith(("_", "tidemill_"))}


def by_id(records: Iterable[Sequence[Any]]) -> History:
    found: History = defaultdict(list)
    for id, name in records:
        found[id].append(name)
    return dict(found)
