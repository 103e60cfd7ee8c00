"""A pipeline from a table of PostgreSQL to its copy in another schema, for tests of schema changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import psycopg

from tests.support.waiting import until as until_in_time
from tidemill import config
from tidemill.contracts.schema_change_store import ChangeStatus, Decision
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.cause import Cause
from tidemill.service.run.status import WAITING, State
from tidemill.service.runtime import Runtime
from tidemill.service.schema import changes as service

_names = itertools.count(1)
PATIENCE = 300.0

DOCUMENT = """
metadata: {{name: {name}}}
spec:
  source:
    type: postgres
    config: {{id: {name}, dsn: "{dsn}", tables: [{tables}]{source}}}
  sinks:{copy}{more}
  processors: {processors}
  ddl: {ddl}{sensing}
  trigger: {{mode: {trigger}}}
  state_dir: {directory}/state
"""
COPY = """
    - {{type: postgres, config: {{id: copy, dsn: "{dsn}", table: "copy.${{source.table}}"{sink}}}}}"""
ANN = Cause("ann", "looked at it")


def until(condition: Callable[[], object]) -> None:
    until_in_time(condition, PATIENCE)


class Mirror:
    """A table, and its copy in another schema of the same database."""

    def __init__(self, directory: Path, dsn: str, runtime: Runtime) -> None:
        self.directory, self.dsn, self.runtime = directory, dsn, runtime
        self.db = psycopg.connect(dsn, autocommit=True, prepare_threshold=None)  # the types of a plan would be kept
        self.db.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
        self.name = f"mirror{next(_names)}"
        self.tables, self.trigger, self.processors = "public.items", "micro_batch", "[]"
        self.elsewhere: Callable[[], Collection[int]] | None = None
        """Which ids are there, of a pipeline whose sinks are all in `more`."""

    def begin(
        self, ddl: str = "{}", sink: str = "", source: str = "", more: str = "", sensing: str = ""
    ) -> config.Pipeline:
        """Starts with these settings and copies a first row. `more` are other sinks."""
        self.pipeline = self.load(ddl, sink, source, more, sensing)
        self.runtime.add(self.pipeline)
        self.runtime.start(self.name)
        until(lambda: self.runtime.status(self.name).stage == "cdc")
        self.db.execute("INSERT INTO items VALUES (1, 'a')")
        self.arrives(1)
        return self.pipeline

    def load(self, ddl: str, sink: str = "", source: str = "", more: str = "", sensing: str = "") -> config.Pipeline:
        path = self.directory / f"{self.name}.yaml"
        copy = "" if self.elsewhere else COPY.format(dsn=self.dsn, sink=sink and f", {sink}")
        path.write_text(
            DOCUMENT.format(
                name=self.name,
                dsn=self.dsn,
                directory=self.directory,
                ddl=ddl,
                tables=self.tables,
                trigger=self.trigger,
                copy=copy,
                source=source and f", {source}",
                more=more,
                sensing=sensing,
                processors=self.processors,
            )
        )
        (pipeline,) = config.load(path)
        return pipeline

    def again(self, ddl: str = "") -> None:
        """A new process, as far as the pipeline can tell; with another document if it is given."""
        self.runtime.remove(self.name)
        if ddl:
            self.pipeline = self.load(ddl)
        self.runtime.add(self.pipeline)
        self.runtime.start(self.name)

    def rows(self, schema: str, columns: str = "*") -> list[Any]:
        return self.db.execute(f"SELECT {columns} FROM {schema}.items ORDER BY id".encode()).fetchall()

    def has_copy(self) -> bool:
        return self.db.execute("SELECT to_regclass('copy.items') IS NOT NULL").fetchone() == (True,)

    def arrives(self, id: int) -> None:
        def arrived() -> bool:
            status = self.runtime.status(self.name)
            assert status.state is State.RUNNING, status.error
            return id in self.elsewhere() if self.elsewhere else self.has_copy() and (id,) in self.rows("copy", "id")

        until(arrived)

    def columns(self) -> list[str]:
        found = self.db.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'copy' ORDER BY ordinal_position"
        )
        return [name for (name,) in found]

    def gets(self, column: str) -> None:
        def is_there() -> bool:
            status = self.runtime.status(self.name)
            assert status.state is State.RUNNING, status.error
            return column in self.columns()

        until(is_there)

    def drift(self) -> list[dict[str, Any]]:
        """What came to the sink of drift, in order."""
        files = sorted((self.directory / "drift" / "tidemill.drift").glob("*.jsonl"))
        return [orjson.loads(line)["after"] for file in files for line in file.read_text().splitlines()]

    def waits(self) -> None:
        until(lambda: self.runtime.status(self.name).stage == WAITING)

    def fails(self, code: str) -> None:
        until(lambda: self.runtime.status(self.name).state is State.FAILED)
        error = self.runtime.error(self.name)
        assert error is not None
        assert (error.code, bool(error.fix)) == (code, True), error

    def decide(self, number: int, decision: Decision, cause: Cause = ANN) -> None:
        service.decide(self.pipeline, number, decision, cause)

    def statuses(self) -> list[ChangeStatus]:
        return [each.status for each in reversed(service.list_changes(self.pipeline))]


@contextmanager
def open_mirror(directory: Path, spark: Any, server: Postgres) -> Iterator[Mirror]:
    with server.database(f"mirrored_{next(_names)}") as dsn, Runtime(spark=spark) as runtime:
        made = Mirror(directory, dsn, runtime)
        yield made
        made.db.close()
        runtime.close()  # before its slots go with the database
