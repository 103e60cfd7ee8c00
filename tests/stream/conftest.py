"""A log, a sink that remembers, and a loop between them."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.stream import scribe
from tidemill.checkpoints.file import FileCheckpoints, FileConfig
from tidemill.config.spec import CommitPolicy, Trigger
from tidemill.log import LogConfig, LogWriter
from tidemill.retry import RetryPolicy
from tidemill.state import open_store
from tidemill.stream.loop import StreamLoop
from tidemill.stream.position.commit_policy import Policy
from tidemill.stream.position.ledger import Ledger
from tidemill.stream.report import BatchReport
from tidemill.stream.spark.session import register_source

TRIGGER = Trigger.model_validate({"mode": os.environ.get("TIDEMILL_TEST_TRIGGER", "real_time")})
"""The mode of loops in these tests: `TIDEMILL_TEST_TRIGGER=micro_batch` runs each batch as a job of Spark."""
MICRO_BATCHES = Trigger(mode="micro_batch")


def install_scribe(spark: Any, directory: Path) -> None:
    """Puts the package where workers find it, with its metadata."""
    archive = directory / "scribe.zip"
    with zipfile.ZipFile(archive, "w") as package:
        package.write(scribe.__file__, "scribe.py")
        package.writestr("pens.py", scribe.PENS)
        package.writestr("scribe-1.0.dist-info/METADATA", scribe.METADATA)
        package.writestr("scribe-1.0.dist-info/entry_points.txt", scribe.ENTRY_POINTS)
    spark.sparkContext.addPyFile(str(archive))
    register_source(spark)  # a source keeps the files that were there when it was registered


@pytest.fixture(scope="session")
def scribes_spark(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The session, its workers knowing the sink `scribe`."""
    install_scribe(spark, tmp_path_factory.mktemp("scribe"))
    return spark


@dataclass
class Mill:
    """One pipeline's files, and what is needed to run and to examine it."""

    directory: Path
    spark: Any
    reports: list[BatchReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = LogWriter.open(self.log_uri, LogConfig.model_validate({"fsync": False}))
        self.store = FileCheckpoints(FileConfig(), state_dir=self.directory)
        self.state = open_store(str(self.directory / "state.sqlite"))

    @property
    def log_uri(self) -> str:
        return str(self.directory / "log")

    @property
    def spark_dir(self) -> Path:
        return self.directory / "spark"

    def sink(self, name: str = "s", **settings: Any) -> tuple[str, dict[str, Any]]:
        return "scribe", {"id": name, "directory": str(self.directory), **settings}

    def loop(self, *sinks: tuple[str, dict[str, Any]], **settings: Any) -> StreamLoop:
        """One group of all sinks."""
        given: dict[str, Any] = {
            "retry": RetryPolicy(seconds=60.0),
            "lane_retry_seconds": 0.0,
            "on_batch": self.reports.append,
            "trigger": TRIGGER,
        }
        given |= settings
        sinks = sinks or (self.sink(),)
        policy = Policy.of("mill", CommitPolicy(mode="all"), {config["id"]: True for _, config in sinks})
        return StreamLoop(
            policy.groups[0], Ledger(policy, self.store, self.log_uri, state=self.state), "source", self.log_uri, sinks,
            spark=self.spark, spark_dir=self.spark_dir, **given,
        )  # fmt: skip

    def wait(self, loop: StreamLoop, done: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if not loop.running:
                loop.await_end(5)
            assert time.monotonic() < deadline, f"nothing after {seconds} s; checkpoint {loop.checkpoint}"
            time.sleep(0.01)

    def run(self, *sinks: tuple[str, dict[str, Any]], seconds: float = 60, **settings: Any) -> None:
        """Delivers all that is in the log, then stops."""
        loop = self.loop(*sinks, **settings)
        loop.start()
        try:
            self.wait(loop, lambda: loop.checkpoint.offset >= self.log.tail.offset, seconds)
        finally:
            loop.stop()

    def fail(self, sink: str, lane: int, how: str = "retry") -> Path:
        file = self.directory / f"{sink}-{lane}.fail"
        file.write_text(how)
        return file

    def poison(self, sink: str, *offsets: int) -> None:
        (self.directory / f"{sink}.poison").write_bytes(orjson.dumps(offsets))

    def notes(self, sink: str = "s") -> list[dict[str, Any]]:
        file = self.directory / f"{sink}.jsonl"
        whole = file.read_bytes().rpartition(b"\n")[0] if file.exists() else b""
        return [orjson.loads(line) for line in whole.splitlines()]

    def offsets(self, sink: str = "s") -> list[int]:
        return sorted(row[2] for note in self.notes(sink) for row in note["rows"])


@pytest.fixture
def mill(tmp_path: Path, scribes_spark: Any) -> Iterator[Mill]:
    mill = Mill(tmp_path, scribes_spark)
    yield mill
    mill.log.close()
    mill.store.close()
