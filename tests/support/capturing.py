"""A capture loop in a thread over any source, and what it has stored and said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemill.capture.confirmed import import_confirmed, read_confirmed
from tidemill.capture.loop import Capture, Limits
from tidemill.contracts import Source
from tidemill.errors import TidemillError
from tidemill.log import LogConfig, LogReader, acknowledge
from tidemill.log.writer import LogWriter
from tidemill.model.position import Offset, Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.state import open_store

PATIENCE = 120.0  # seconds; only a failure waits for so long
NAME = "captured"  # of the pipeline


@dataclass
class Running:
    log: LogReader
    uri: str
    stop: threading.Event
    confirmed: list[Position] = field(default_factory=list)
    last_error: list[TidemillError] = field(default_factory=list)
    failure: list[BaseException] = field(default_factory=list)

    @property
    def events(self) -> int:
        return self.log.tail().offset

    def rows(self, last: int | None = None) -> list[dict[str, Any]]:
        """Every visible event in offset order, or the `last` ones, with the name of its table."""
        tail = self.log.tail().offset
        head = self.log.head() if last is None else max(self.log.head(), tail - last)
        absent = {"key": None, "before": None, "after": None}
        found = [
            {"table": block.table.full_name, **absent, **row}
            for block in (self.log.read(ref) for ref in self.log.refs(head, tail))
            for row in block.batch.to_pylist()
        ]
        return sorted(found, key=lambda row: int(row["offset"]))

    def deliver(self) -> None:
        """What the stream does after a checkpoint."""
        acknowledge(self.uri, self.log.tail())


@contextmanager
def capturing(
    source: Source,
    directory: Path,
    *,
    limits: Limits | None = None,
    log: Path | None = None,
    adopt: Callable[[], int] = lambda: 0,
    accepted: threading.Event | None = None,
) -> Iterator[Running]:
    """Goes on with what an earlier run left in `directory`, as a new capture process would. `adopt` is called in the
    loop's thread, the only one that may use the source."""
    uri = str(log or directory / "log")
    writer = LogWriter.open(uri, LogConfig.model_validate({"fsync": False}))
    state = open_store(str(directory / "state.sqlite"))
    import_confirmed(state, NAME, directory)
    known = read_confirmed(state, NAME, directory, writer.tail.offset)
    schemas = SchemaRegistry(directory / "registry.sqlite")
    try:
        source.setup(writer.tail.position or known, schemas)
    except TidemillError:
        writer.close()
        schemas.close()
        state.close()
        raise
    running = Running(LogReader(uri), uri, threading.Event())

    def confirmed(position: Position, offset: Offset) -> None:
        running.confirmed.append(position)
        state.confirm(NAME, position, offset)

    loop = Capture(
        source, writer, schemas, limits or Limits(ahead_bytes=1 << 30), running.stop,
        confirmed=known, on_confirmed=confirmed, on_error=running.last_error.append, adopt=adopt,
        accepted=accepted,
    )  # fmt: skip

    def run() -> None:
        try:
            loop.run()
        except Exception as error:  # noqa: BLE001  (the test's thread raises it)
            running.failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield running
    finally:
        running.stop.set()
        thread.join(PATIENCE)
        writer.close()
        schemas.close()
        state.close()
        assert not thread.is_alive()


def eventually(condition: Callable[[], Any], running: Running | None = None) -> Any:
    """Its first true answer. A capture loop that gave up is not waited for."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        if running is not None and running.failure:
            raise running.failure[0]
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
    return value
