"""A hundred schema changes under load, to every sink that keeps tables; a sample of them in `make test`.

Columns come, go, get other names and wider types while rows are written in other sessions, before and after the change
in its transaction, too. PostgreSQL is a real one, ClickHouse the engine behind our HTTP front, StarRocks the stand-in,
which keeps types and columns.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support import seed
from tests.support.mirror import Mirror, open_mirror, until
from tidemill.contracts.schema_change_store import ChangeStatus
from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.servers.starrocks_standin import StarRocks
from tidemill.service.run.status import State
from tidemill.service.schema import changes as service

COUNT = 100 if seed.WHOLE else 15
SINKS = ("postgres", "clickhouse", "starrocks")
TOGETHER = [(SINKS, "relation"), (SINKS, "trigger")]
ALONE = [((sink,), "trigger") for sink in SINKS]
CASES = [*TOGETHER, *ALONE] if seed.WHOLE else seed.choose("schema changes under load", TOGETHER)
DDL = "{policies: [{kinds: [change_type], action: try_evolve}], allow_destructive_ddl: true}"
RECORDED = """
CREATE SCHEMA IF NOT EXISTS recorded;
CREATE TABLE recorded.{0} (number bigserial PRIMARY KEY, id int, name text);
CREATE FUNCTION recorded.note_{0}() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO recorded.{0} (id, name) VALUES (NEW.id, NEW.name); RETURN NULL; END $$;
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON {0}.items FOR EACH ROW EXECUTE FUNCTION recorded.note_{0}();
ALTER TABLE {0}.items ENABLE ALWAYS TRIGGER noted
"""


class Copies:
    """The destinations of a pipeline, and what each has of the table."""

    def __init__(self, stack: ExitStack, mirror: Mirror, sinks: tuple[str, ...]) -> None:
        self.mirror, self.sinks = mirror, sinks
        self.documents = ""
        if "clickhouse" in sinks:
            self.clickhouse = stack.enter_context(ClickHouse())
            self.documents += f"""
    - {{type: clickhouse, config: {{id: clickhouse, url: "{self.clickhouse.url}", database: copy}}}}"""
        if "starrocks" in sinks:
            self.starrocks = stack.enter_context(StarRocks())
            where = f'url: "http://127.0.0.1:{self.starrocks.http_port}", mysql_port: {self.starrocks.mysql_port}'
            self.documents += f"""
    - {{type: starrocks, config: {{id: starrocks, {where}, database: copy}}}}"""
        if "postgres" not in sinks:
            mirror.elsewhere = lambda: [id for (id,) in self.rows(sinks[0], "id")]

    @property
    def ids(self) -> set[str]:
        return {"copy" if sink == "postgres" else sink for sink in self.sinks}

    def rows(self, sink: str, names: str) -> list[tuple[Any, ...]]:
        """In the order of their ids; none while the table is not there."""
        match sink:
            case "postgres":
                return self.mirror.rows("copy", names)
            case "clickhouse":
                there = self.clickhouse.query(
                    "SELECT name FROM system.tables WHERE database = 'copy' AND name = 'items'"
                )
                found = self.clickhouse.query(f"SELECT {names} FROM copy.items FINAL ORDER BY id") if there else []
                return [tuple(row.values()) for row in found]
            case _:
                if not self.columns(sink):
                    return []
                found = self.starrocks.query(f"SELECT {names} FROM `copy`.`items`")
                return sorted(
                    tuple(value if key == "name" or value is None else int(value) for key, value in row.items())
                    for row in found
                )

    def columns(self, sink: str) -> set[str]:
        match sink:
            case "postgres":
                found = self.mirror.columns()
            case "clickhouse":
                asked = "SELECT name FROM system.columns WHERE database = 'copy' AND table = 'items'"
                found = [row["name"] for row in self.clickhouse.query(asked)]
            case _:
                asked = (
                    "SELECT column_name, column_type, column_key FROM information_schema.columns"
                    " WHERE table_schema = 'copy' AND table_name = 'items'"
                )
                found = [next(iter(row.values())) for row in self.starrocks.query(asked)]
        return {name for name in found if not name.startswith(("_", "tidemill_"))}  # what the sink keeps for itself


@pytest.fixture
def mirror(tmp_path: Path, spark: Any, postgres18: Postgres) -> Iterator[Mirror]:
    with open_mirror(tmp_path, spark, postgres18) as made:
        yield made


@pytest.mark.parametrize(
    ("sinks", "capture"), CASES, ids=lambda case: case if isinstance(case, str) else "+".join(case)
)
def test_every_copy_equals_the_source_after_many_changes_under_load(
    mirror: Mirror, sinks: tuple[str, ...], capture: str
) -> None:
    with ExitStack() as stack:
        copies = Copies(stack, mirror, sinks)
        mirror.begin(DDL, "", f"ddl: {{capture: {capture}}}", copies.documents)
        recorded = ("public", "copy") if "postgres" in sinks else ("public",)
        for schema in recorded:
            mirror.db.execute(RECORDED.format(schema).encode())
        columns, statements = change_under_load(mirror, COUNT, waits=capture == "relation")
        mirror.db.execute("INSERT INTO items (id, name) VALUES (2, 'last')")
        mirror.arrives(2)
        until(lambda: mirror.runtime.status(mirror.name).lag_events == 0)  # by every sink
        names = ", ".join(["id", "name", *columns])
        expected = mirror.rows("public", names)
        for sink in sinks:
            assert copies.rows(sink, names) == expected, sink
            if sink == "starrocks":  # it keeps columns that were dropped
                assert copies.columns(sink) >= {"id", "name", *columns}
            else:
                assert copies.columns(sink) == {"id", "name", *columns}, sink
        if "postgres" in sinks:
            assert_order_kept(*(history(mirror, schema) for schema in recorded))
    changes = list(reversed(service.list_changes(mirror.pipeline, 1000)))
    assert [each.offset for each in changes] == sorted({each.offset for each in changes})
    if capture == "trigger":
        assert [each.text for each in changes] == statements
    else:
        assert len(changes) >= 5
    assert all(each.outcomes.keys() == copies.ids for each in changes)
    for sink in copies.ids:
        made = [each.outcomes[sink].at for each in changes]
        assert made == sorted(made), sink
        left_out = [each.kinds for each in changes if each.outcomes[sink].status != ChangeStatus.APPLIED]
        assert sink == "starrocks" or not left_out, left_out
        assert all("change_type" in kinds for kinds in left_out), left_out  # it keeps its types
    assert mirror.runtime.status(mirror.name).state is State.RUNNING


def change_under_load(mirror: Mirror, count: int, *, waits: bool) -> tuple[list[str], list[str]]:
    """The columns that are there in the end, and the statements. With `waits` the stream has come as far before each
    rename, and after it: without triggers the catalog tells it only then."""
    chance, stop, ids = seed.dice("schema changes"), threading.Event(), itertools.count(100)

    def write() -> None:
        with psycopg.connect(mirror.dsn, autocommit=True) as db:
            while not stop.wait(0.01):
                db.execute("INSERT INTO items (id, name) VALUES (%s, 'x')", [next(ids)])

    writer = threading.Thread(target=write)
    writer.start()
    columns: list[str] = []
    statements: list[str] = []
    wide: set[str] = set()
    try:
        for number in range(count):
            what = chance.choice(["add", "add", "rename", "drop", "widen"]) if columns else "add"
            column = f"c{number}"
            old = columns.pop(chance.randrange(len(columns))) if what != "add" else ""
            if what == "rename" and waits:
                mirror.db.execute("INSERT INTO items (id, name) VALUES (%s, 'here')", [-number])
                mirror.arrives(-number)
            change = {
                "add": f"ADD {column} int", "rename": f"RENAME {old} TO {column}", "drop": f"DROP {old}",
                "widen": f"ALTER {old} TYPE bigint",
            }[what]  # fmt: skip
            statement = f"ALTER TABLE items {change}"
            if what != "widen" or old not in wide:  # else nothing changes
                statements.append(statement)
            wide |= {"widen": {old}, "rename": {column} if old in wide else set()}.get(what, set())
            with mirror.db.transaction():
                mirror.db.execute(f"UPDATE items SET name = 'before {number}' WHERE id % 5 = {number % 5}".encode())
                mirror.db.execute(statement.encode())
                columns += {"add": [column], "rename": [column], "widen": [old], "drop": []}[what]
                assigned = "".join(f", {each} = {number}" for each in columns)
                mirror.db.execute(f"UPDATE items SET name = 'n{number}'{assigned} WHERE id % 7 = {number % 7}".encode())
            if what == "rename" and waits:
                mirror.gets(column)
    finally:
        stop.set()
        writer.join()
    return columns, statements


def history(mirror: Mirror, schema: str) -> dict[int, list[str]]:
    """By id, the names that a row of the table was given, in order."""
    found = defaultdict(list)
    for id, name in mirror.db.execute(f"SELECT id, name FROM recorded.{schema} ORDER BY number".encode()):
        found[id].append(name)
    return dict(found)


def assert_order_kept(source: dict[int, list[str]], copy: dict[int, list[str]]) -> None:
    """A batch leaves out what it overwrites itself; what the copy was given stands in the source's order, the last one
    last."""
    for id, names in copy.items():
        rest = iter(source[id])
        assert all(name in rest for name in names), (id, names, source[id])
    assert {id: names[-1] for id, names in source.items()} == {id: copy[id][-1] for id in source}
