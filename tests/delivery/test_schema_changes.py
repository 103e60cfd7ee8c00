"""A hundred schema changes under load, from each kind of source to every sink that keeps tables; a sample of them in
`make test`.

Columns come, go, get other names and wider types while rows are written in other sessions, before and after the change
in its transaction, too. PostgreSQL and MySQL are real ones, ClickHouse the engine behind our HTTP front, StarRocks the
stand-in, which keeps types and columns.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.delivery.altered import Copy, History, MysqlOrigin, Origin, PostgresCopy, PostgresOrigin, open_copies
from tests.support import seed
from tests.support.waiting import until
from tidemill import config
from tidemill.contracts.schema_change_store import ChangeStatus
from tidemill.lab.servers.postgres import Postgres
from tidemill.log import LogReader
from tidemill.service.run.status import State
from tidemill.service.runtime import Runtime
from tidemill.service.schema import changes as service

COUNT = 100 if seed.WHOLE else 15
SINKS = ("postgres", "clickhouse", "starrocks")
ORIGINS = ("triggers", "relation", "mysql")
MODES = ("micro_batch", "real_time")
TOGETHER = [(origin, SINKS, MODES[at % 2]) for at, origin in enumerate(ORIGINS)]
ALONE = [(origin, (sink,), MODES[at % 2]) for at, (origin, sink) in enumerate(itertools.product(ORIGINS, SINKS))]
CASES = [*TOGETHER, *ALONE] if seed.WHOLE else seed.choose("schema changes under load", TOGETHER)
DOCUMENT = """
metadata: {{name: {name}}}
spec:
  source: {source}
  sinks: [{sinks}]
  ddl: {{policies: [{{kinds: [change_type], action: try_evolve}}], allow_destructive_ddl: true}}
  trigger: {{mode: {mode}}}
  state_dir: {directory}/state
"""
_names = itertools.count(1)
_PATIENCE = 300.0


class Stage:
    """A pipeline from the table to its copies."""

    def __init__(
        self, directory: Path, runtime: Runtime, name: str, origin: Origin, copies: dict[str, Copy], mode: str
    ) -> None:
        self.name, self.runtime, self.origin, self.copies = name, runtime, origin, copies
        path = directory / f"{name}.yaml"
        sinks = ", ".join(each.document for each in copies.values())
        path.write_text(DOCUMENT.format(name=name, source=origin.source, sinks=sinks, mode=mode, directory=directory))
        (self.pipeline,) = config.load(path)
        self._log = LogReader(self.pipeline.log_uri)

    def begin(self) -> None:
        self.runtime.add(self.pipeline)
        self.runtime.start(self.name)
        until(lambda: self.runtime.status(self.name).stage == "cdc", _PATIENCE)
        self.insert(1, "a")

    def capture(self, id: int, name: str) -> None:
        """A row, with which all before it is in the log; the copies may be far from there."""
        before = self._log.tail().offset
        with self.origin.session() as execute:
            execute(f"INSERT INTO items (id, name) VALUES ({id}, '{name}')")

        def captured() -> bool:
            rows = (self._log.read(ref).struct("after") for ref in self._log.refs(before, self._log.tail().offset))
            return any(id in row["id"].to_pylist() for row in rows if row is not None)

        until(captured, _PATIENCE)

    def insert(self, id: int, name: str) -> None:
        """A row that is waited for at every copy."""
        with self.origin.session() as execute:
            execute(f"INSERT INTO items (id, name) VALUES ({id}, '{name}')")

        def arrived() -> bool:
            status = self.runtime.status(self.name)
            assert status.state is State.RUNNING, status.error
            return all(copy.rows("id", f"WHERE id = {id}") for copy in self.copies.values())

        self.wait(arrived)

    def wait(self, condition: Callable[[], bool]) -> None:
        """As long as changes are made: a machine with other work takes its time for a hundred of them."""
        made, deadline = -1, 0.0
        while not condition():
            now = len(service.list_changes(self.pipeline, 1000))
            if now > made:
                made, deadline = now, time.monotonic() + _PATIENCE
            assert time.monotonic() < deadline, f"{made} changes were made, and nothing since"
            time.sleep(0.1)


@contextmanager
def staged(
    directory: Path,
    spark: Any,
    postgres: Postgres,
    request: pytest.FixtureRequest,
    case: tuple[str, Sequence[str], str],
) -> Iterator[Stage]:
    kind, sinks, mode = case
    name = f"altered{next(_names)}"
    with ExitStack() as stack:
        origin: Origin
        if kind == "mysql":
            origin = stack.enter_context(closing(MysqlOrigin(request.getfixturevalue("mysql"))))
        else:
            capture = "trigger" if kind == "triggers" else kind
            origin = PostgresOrigin(stack.enter_context(postgres.database(name)), capture)
        copies = open_copies(stack, sinks, postgres, name)
        with Runtime(spark=spark) as runtime:
            yield Stage(directory, runtime, name, origin, copies, mode)
            runtime.close()  # before its slots go with the database


@pytest.mark.timeout(5 * _PATIENCE)  # it goes on for as long as changes are made
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join([case[0], "+".join(case[1]), case[2]]))
def test_every_copy_equals_the_source_after_many_changes_under_load(
    case: tuple[str, Sequence[str], str],
    tmp_path: Path,
    spark: Any,
    postgres18: Postgres,
    request: pytest.FixtureRequest,
) -> None:
    with staged(tmp_path, spark, postgres18, request, case) as stage:
        origin, copies = stage.origin, stage.copies
        stage.begin()
        recorded = copies.get("postgres")
        if isinstance(recorded, PostgresCopy):
            recorded.record()
        columns, statements = change_under_load(stage, COUNT)
        stage.insert(2, "last")
        stage.wait(lambda: stage.runtime.status(stage.name).lag_events == 0)
        names = ", ".join(["id", "name", *columns])
        expected = origin.rows(names)
        for sink, copy in copies.items():
            assert copy.rows(names) == expected, sink
            kept = copy.columns() - {"id", "name", *columns}
            assert not (kept and copy.DROPS), sink
        if isinstance(recorded, PostgresCopy):
            assert_order_kept(origin.history(), recorded.history())
        changes = list(reversed(service.list_changes(stage.pipeline, 1000)))
        assert [each.offset for each in changes] == sorted({each.offset for each in changes})
        if origin.TELLS:
            assert [each.text for each in changes] == statements
        else:
            assert len(changes) >= 5
        assert all(each.outcomes.keys() == copies.keys() for each in changes)
        for sink, copy in copies.items():
            made = [each.outcomes[sink].at for each in changes]
            assert made == sorted(made), sink
            left_out = [each.kinds for each in changes if each.outcomes[sink].status != ChangeStatus.APPLIED]
            assert not (left_out and copy.RETYPES), left_out
            assert all("change_type" in kinds for kinds in left_out), left_out
        assert stage.runtime.status(stage.name).state is State.RUNNING


def change_under_load(stage: Stage, count: int) -> tuple[list[str], list[str]]:
    """The columns that are there in the end, and the statements. Where the source does not tell them, capture has come
    as far before each rename, and after it: the catalog tells it only then."""
    origin, chance, stop, ids = stage.origin, seed.dice("schema changes"), threading.Event(), itertools.count(100)

    def write() -> None:
        with origin.session() as execute:
            while not stop.wait(0.01):
                execute(f"INSERT INTO items (id, name) VALUES ({next(ids)}, 'x')")

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
            waits = what == "rename" and not origin.TELLS
            if waits:
                stage.capture(-2 * number - 1, "before")
            statement = f"ALTER TABLE items {origin.DDL[what].format(old=old, new=column)}"
            if what != "widen" or old not in wide:  # else nothing changes
                statements.append(statement)
            wide |= {"widen": {old}, "rename": {column} if old in wide else set()}.get(what, set())
            columns += {"add": [column], "rename": [column], "widen": [old], "drop": []}[what]
            assigned = "".join(f", {each} = {number}" for each in columns)
            origin.transaction([
                f"UPDATE items SET name = 'before {number}' WHERE id % 5 = {number % 5}",
                statement,
                f"UPDATE items SET name = 'n{number}'{assigned} WHERE id % 7 = {number % 7}",
            ])  # fmt: skip
            if waits:
                stage.capture(-2 * number - 2, "after")
    finally:
        stop.set()
        writer.join()
    return columns, statements


def assert_order_kept(source: History, copy: History) -> None:
    """A batch leaves out what it overwrites itself; what the copy was given stands in the source's order, the last one
    last."""
    for id, names in copy.items():
        rest = iter(source[id])
        assert all(name in rest for name in names), (id, names, source[id])
    assert source.keys() - copy.keys() <= {1}  # it came before the record
    assert {id: source[id][-1] for id in copy} == {id: names[-1] for id, names in copy.items()}
