"""A pipeline that runs as far as a snapshot is concerned: real source, log, state and capture loop, tasks in this
process."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import yaml

from tidemill.capture.loop import Capture, Limits
from tidemill.capture.snapshot import ChunkAdopter, live_ids
from tidemill.config.pipeline import Pipeline, load
from tidemill.contracts import TableCopy
from tidemill.log.reader import LogReader
from tidemill.log.writer import LogWriter
from tidemill.model.block import Op
from tidemill.model.snapshot import SnapshotState
from tidemill.schema.registry import SchemaRegistry
from tidemill.service.snapshot.driver import SnapshotDriver
from tidemill.service.snapshot.plan import begin_if_due

PATIENCE = 180.0


class LocalSpark:
    """A stand-in: runs a job's tasks one after the other, pickled as Spark would. Of readers that stand, one does."""

    defaultParallelism = 2

    def __init__(self) -> None:
        self.sparkContext = self
        self._tasks: list[Any] = []
        self._work: Callable[[Any], list[Any]] = list

    def getConf(self) -> dict[str, str]:
        return {}

    def setJobGroup(self, group: str, description: str, *, interruptOnCancel: bool) -> None: ...

    def parallelize(self, tasks: Iterable[Any], count: int) -> LocalSpark:
        made = LocalSpark()
        made._tasks = list(tasks)
        return made

    def flatMap(self, work: Callable[[Any], list[Any]]) -> LocalSpark:
        self._work = work
        return self

    def collect(self) -> list[Any]:
        return [result for task in self._tasks for result in pickle.loads(pickle.dumps(self._work))(task)]


@dataclass
class Copying:
    pipeline: Pipeline
    log: LogReader
    driver: SnapshotDriver
    dsn: str
    writer: LogWriter
    source: Any

    def tables(self) -> dict[str, TableCopy]:
        with closing(self.pipeline.build_state()) as state:
            newest = state.snapshots.records(self.pipeline.name, 1)
            return {t.name: t for t in state.snapshots.tables(self.pipeline.name, newest[0].id)} if newest else {}

    def state(self) -> SnapshotState | None:
        with closing(self.pipeline.build_state()) as state:
            newest = state.snapshots.records(self.pipeline.name, 1)
            return newest[0].state if newest else None

    def until(self, condition: Callable[[], Any], what: str = "did not happen in time") -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.05)

    def until_done(self) -> None:
        self.until(lambda: self.state() is SnapshotState.DONE, f"{self.tables()}")

    def rows(self, table: str) -> dict[Any, dict[str, Any]]:
        """The log applied in order, by the first column. What an update leaves out and nobody brings is a hole."""
        found: dict[Any, dict[str, Any]] = {}
        for ref in self.log.refs(self.log.head(), self.log.tail().offset):
            block = self.log.read(ref)
            if block.table.name != table:
                continue
            names, key = [c.name for c in block.table.columns], block.table.columns[0].name
            for row in block.batch.to_pylist():
                if row["op"] == int(Op.DDL):
                    continue
                if row["op"] == int(Op.TRUNCATE):
                    found.clear()
                    continue
                old, after = row.get("key") or row.get("before"), row.get("after")
                before = found.pop((old or after)[key], {})
                if after is not None:
                    holes = {names[place]: before.get(names[place], "a hole") for place in row.get("unchanged") or ()}
                    found[after[key]] = after | holes
        return found

    def equals(self, table: str) -> bool:
        with psycopg.connect(self.dsn, autocommit=True) as db:
            cursor = db.execute(f"SELECT * FROM {table}".encode())
            names = [column.name for column in cursor.description or ()]
            wanted = {row[0]: dict(zip(names, row, strict=True)) for row in cursor}
        return self.rows(table) == wanted


@contextmanager
def copying(
    dsn: str, directory: Path, /, *tables: str, sinks: list[dict[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None, **snapshot: Any,
) -> Iterator[Copying]:  # fmt: skip
    """A pipeline that runs, as far as a snapshot is concerned; again with the same directory it goes on. `settings` are
    further ones of the source."""
    database = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    document = {
        "metadata": {"name": "copied"},
        "spec": {
            "state_dir": str(directory / "state"),
            "source": {
                "type": "postgres",
                "config": {"id": f"src-{database}", "dsn": dsn, "tables": list(tables), "snapshot": snapshot}
                | dict(settings or {}),
            },
            "sinks": sinks or [{"type": "blackhole", "config": {"id": "none"}}],
            "log": {"fsync": False},
        },
    }
    file = directory / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document))
    (pipeline,) = load(file)
    pipeline.state_path.mkdir(parents=True, exist_ok=True)
    state = pipeline.build_state()
    begin_if_due(pipeline, state)
    writer = LogWriter.open(
        pipeline.log_uri, pipeline.spec.log, staged=live_ids(state.snapshots, "copied").__contains__
    )  # fmt: skip
    schemas = SchemaRegistry(pipeline.state_path / "registry.sqlite")
    source = pipeline.build_source()
    source.setup(writer.tail.position or None, schemas)
    reader = LogReader(pipeline.log_uri)
    adopter = ChunkAdopter(
        source, writer, LogReader(pipeline.log_uri), schemas, state.snapshots, "copied",
        filtered=snapshot.get("filters", ()),
    )  # fmt: skip
    adopter.begin()
    stop = threading.Event()
    failure: list[BaseException] = []
    known = state.confirmed("copied")
    loop = Capture(
        source, writer, schemas, Limits(1 << 30), stop, adopt=adopter.turn, wait=lambda: adopter.wait_seconds,
        confirmed=known.position if known else None, on_confirmed=lambda *place: state.confirm("copied", *place),
    )  # fmt: skip

    def run() -> None:
        try:
            loop.run()
        except BaseException as error:  # noqa: BLE001  the test's thread raises it
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    driver = SnapshotDriver(pipeline, LocalSpark(), state)
    driver.start()
    try:
        yield Copying(pipeline, reader, driver, dsn, writer, source)
    finally:
        driver.stop()
        stop.set()
        thread.join(PATIENCE)
        writer.close()
        schemas.close()
        state.close()
        assert not failure, failure
