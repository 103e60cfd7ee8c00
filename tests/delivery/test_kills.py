"""Every sink, killed around every step of a delivery, its server killed and its answers lost: nothing is missing, and
what came twice agrees with the tier it claims. docs/delivery.md names these tests as the proof.

The worker is LOOP TWO without Spark (worker.py); the loop itself is killed in tests/crash.
"""

from __future__ import annotations

import datetime
import decimal
import importlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from tests.crash.replay import Replay
from tests.delivery.destination import Destination
from tests.delivery.proxy import Proxy
from tests.delivery.workload import Row, Workload
from tests.support.seed import WHOLE, run_seed, sample
from tidemill import registry
from tidemill.contracts import Sink
from tidemill.model.delivery import Tier

FAILPOINTS = {
    "before the write": "worker.writing",
    "after the write, before its receipt": "worker.written",
    "after the receipts, before the checkpoint": "stream.delivered",
    "after the checkpoint": "stream.checkpointed",
}
#: Sinks that keep nothing which could be compared, each with its reason.
WITHOUT = {"blackhole": "keeps nothing"}
SINKS = [name for name in registry.names("sinks") if name not in WITHOUT]
#: Where the worker of each sink is killed: at two of the points, or in turn at all of them.
KILLS = [
    (sink, points) for sink in SINKS for points in itertools.combinations(FAILPOINTS, len(FAILPOINTS) if WHOLE else 2)
]
KEYS = {"orders": ("id",), "customers": ("id",)}


class Proof:
    """One sink, one log, one server."""

    def __init__(self, name: str, directory: Path, *, truncate: bool = True) -> None:
        self.name = name
        self.directory = directory
        self.destination: Destination = importlib.import_module(f"tests.delivery.destinations.{name}").destination(
            directory
        )
        self.seed = run_seed()
        self.workload = Workload(self.seed, truncate=truncate)
        self.workload.write(str(directory / "log"))
        self.runs = 0
        self.processors: list[tuple[str, dict[str, Any]]] = []

    @property
    def kind(self) -> Any:
        return registry.load("sinks", self.name)

    def sink(self) -> Sink:
        built: Sink = self.kind(
            self.kind.Config.model_validate({"id": "s", **self.destination.config(self.destination.port)})
        )
        return built

    def work(self, port: int | None, crash: str = "") -> subprocess.Popen[str]:
        self.runs += 1
        job = {
            "log": str(self.directory / "log"), "state": str(self.directory / "state"), "run": f"run {self.runs}",
            "kind": self.name, "config": {"id": "s", **self.destination.config(port)},
            "lanes": 1 if self.kind.capabilities.single_lane else 2, "max_events": 40,
            "processors": self.processors,
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-m", "tests.delivery.worker", orjson.dumps(job).decode()],
            env={**os.environ, "TIDEMILL_CRASH_AT": crash}, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def finish(self, port: int | None) -> None:
        ended, complaint = _end(self.work(port))
        assert ended == 0, complaint

    def checkpoint(self) -> bool:
        return any(p.is_file() for p in (self.directory / "state").rglob("*"))

    def compare(self) -> int:
        """Nothing is missing, nothing is out of order, no value differs. Answers how many events came twice."""
        if self.destination.state:
            for table, rows in self.workload.tables.items():
                found = {row["id"]: row for row in self.destination.rows(table)}
                assert _normal(found, rows) == _normal(rows, rows), f"{table}, seed {self.seed}"
            return 0
        replay = Replay(KEYS)
        replay.take(self.destination.events())
        assert replay.complaints == []
        assert replay.events == self.workload.events
        for table, rows in self.workload.tables.items():
            found = {row["id"]: row for row in replay.tables[table].values()}
            assert _normal(found, rows) == _normal(rows, rows), f"{table}, seed {self.seed}"
        return replay.duplicates


@pytest.fixture(params=SINKS)
def proof(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Proof]:
    made = Proof(request.param, tmp_path)
    made.destination.start()
    yield made
    made.destination.stop()


def _named(value: Any) -> str:
    return value if isinstance(value, str) else " and ".join(value)


def test_every_sink_has_a_destination_or_a_reason() -> None:
    there = {p.stem for p in (Path(__file__).parent / "destinations").glob("[!_]*.py")}
    assert there == set(SINKS)


@pytest.mark.parametrize(("proof", "places"), sample(KILLS), indirect=["proof"], ids=_named)
def test_a_worker_killed_around_every_step_loses_nothing(proof: Proof, places: tuple[str, ...]) -> None:
    port = proof.destination.port
    dice = Random(proof.seed)
    for place in places:
        ended, complaint = _end(proof.work(port, f"{FAILPOINTS[place]}:{dice.randint(1, 4)}"))
        assert ended == -signal.SIGKILL, f"not killed {place}: {complaint}"
    proof.finish(port)
    again = proof.compare()
    if proof.sink().tier is Tier.EFFECTIVELY_ONCE:
        assert again == 0
    proof.finish(port)
    assert proof.compare() == again, "a start with nothing to do delivered something"


def test_a_server_killed_and_answers_lost_lose_nothing(proof: Proof) -> None:
    with _reached(proof) as (proxy, port):
        working = proof.work(port)
        _until(lambda: proof.checkpoint() or working.poll() is not None)
        proof.destination.restart()
        ended, complaint = _end(working)
        assert ended == 0, complaint
        if proxy is not None:
            assert proxy.lost > 0, "no answer was lost: the proof proves nothing"
    again = proof.compare()
    if proof.sink().tier is Tier.EFFECTIVELY_ONCE:
        assert again == 0


@contextmanager
def _reached(proof: Proof) -> Iterator[tuple[Proxy | None, int | None]]:
    """Through a proxy that loses the answer to some requests after they were carried out, where there is a port."""
    port = proof.destination.port
    if port is None:
        yield None, None
        return
    with Proxy(port) as proxy:
        proxy.lose_answers(3, after_bytes=4000)
        yield proxy, proxy.port


def _end(process: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str]:
    try:
        _, complaint = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode, complaint[-2000:]


def _until(done: Any, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _normal(rows: dict[int, Row], like: dict[int, Row]) -> dict[int, Row]:
    """Values as Python has them, whatever text a destination wrote; a column nobody wrote yet is NULL."""
    columns = sorted({column for row in like.values() for column in row})
    return {key: {column: _value(column, row.get(column)) for column in columns} for key, row in sorted(rows.items())}


def _value(column: str, value: Any) -> Any:
    if value is None:
        return None
    if column == "price":
        return decimal.Decimal(str(value)).quantize(decimal.Decimal("0.01"))
    if column == "placed_at":
        moment = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return bool(value) if column == "paid" else value
