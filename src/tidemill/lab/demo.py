"""`tidemill demo`: a PostgreSQL of its own or a SQLite file, a shop under load, a pipeline to files, and its events.

The pipeline is an ordinary document, run by the same code as `tidemill run`. Afterwards the files are replayed
into tables and compared with the database.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.live import Live

from tidemill import config
from tidemill.cli import terminal
from tidemill.errors import DeliveryError, EnvironmentProblem
from tidemill.lab.arrivals import Arrivals, differences
from tidemill.lab.demo_view import View, summary
from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.shop import KEYS, Shop
from tidemill.lab.sqlite_shop import SqliteShop

PIPELINE = """\
# Written by `tidemill demo`. Point the dsn at your own database and it is yours.
metadata: {name: shop}
spec:
  source:
    type: postgres
    config:
      id: shop
      dsn: ${DEMO_DSN}
      tables: [shop.customers, shop.products, shop.orders, shop.order_items]
  sinks:
    - type: files
      config: {id: files, path: ${DEMO_FILES}}
  state_dir: ${DEMO_STATE}
"""
SQLITE_PIPELINE = """\
# Written by `tidemill demo --source sqlite`. Give the path of your own file and it is yours.
metadata: {name: shop}
spec:
  source:
    type: sqlite
    config: {id: shop, path: ${DEMO_DSN}}
  sinks:
    - type: files
      config: {id: files, path: ${DEMO_FILES}}
  state_dir: ${DEMO_STATE}
"""
_START_TIMEOUT = 300.0  # the first run compiles its kernels
_DRAIN_TIMEOUT = 120.0
_REFRESH = 0.2


def play(seconds: float, source: str, *, keep: bool, as_json: bool) -> None:
    """The whole of it, on the terminal; `demo_command.py` says what the options mean."""
    kept = Path("tidemill-demo").absolute()
    if keep and kept.exists():
        raise EnvironmentProblem(f"{kept} is there already", fix="Remove it, or run the demo without --keep.")
    stopped: list[int] = []

    def on_signal(number: int, frame: object) -> None:
        stopped.append(number)
        _leave(stopped)

    # A demo that is stopped still takes its servers with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    with contextlib.ExitStack() as cleaning:
        directory = kept if keep else Path(cleaning.enter_context(_scratch()))
        directory.mkdir(exist_ok=True)
        out = Console(quiet=as_json, highlight=False)
        stage: PostgresStage | SqliteStage
        if source == "sqlite":
            stage = SqliteStage(directory / "shop.db")
        else:
            stage = PostgresStage(cleaning.enter_context(Postgres(durable=False)))
        facts, view = _Play(stage, directory, seconds, out, stopped).perform()
        facts["directory"] = str(kept) if keep else None
    facts["next"] = _what_next(source, keep)
    out.print(summary(view, facts))
    if as_json:
        terminal.show_json(facts)
    if not facts["equal"]:
        raise typer.Exit(1)


class PostgresStage:
    """What the demo needs of a database."""

    pipeline = PIPELINE

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self.name = f"PostgreSQL {server.version}"
        self.ready = f"{self.name} is up"
        self.dsn = server.dsn()
        self.shop: Shop | SqliteShop = Shop(self.dsn)

    def captured(self) -> bool:
        return bool(self._server.query("SELECT 1 FROM pg_replication_slots WHERE active"))


class SqliteStage:
    pipeline = SQLITE_PIPELINE

    def __init__(self, path: Path) -> None:
        self.name = f"SQLite {sqlite3.sqlite_version}"
        self.ready = f"{path.name} is made"
        self.dsn = str(path)
        self.shop: Shop | SqliteShop = SqliteShop(path)

    def captured(self) -> bool:
        """Triggers are there: what is committed from now on is recorded."""
        with contextlib.closing(sqlite3.connect(self.dsn)) as db:
            return bool(db.execute("SELECT 1 FROM sqlite_schema WHERE type = 'trigger'").fetchone())


class _Play:
    """One performance. The pipeline and the shop's customers have a thread each; this one looks on."""

    def __init__(
        self,
        stage: PostgresStage | SqliteStage,
        directory: Path,
        seconds: float,
        out: Console,
        stopped: list[int],
    ) -> None:
        self._stage = stage
        self._stopped = stopped
        self._directory = directory
        self._seconds = seconds
        self._out = out
        self._shop = stage.shop
        self._arrivals = Arrivals(directory / "files", KEYS)
        self._view = View(self._shop, self._arrivals, f"{stage.name} and Spark on this machine")
        self._stop = threading.Event()
        self._failure: list[BaseException] = []

    def perform(self) -> tuple[dict[str, Any], View]:
        self._shop.create()
        self._view.done.append(f"{self._stage.ready}, the shop has four tables")
        runner = self._thread(self._run, self._pipelines())
        customers = self._thread(self._shop.serve, self._stop, self._seconds)
        with self._screen(), _stderr_to(self._directory / "run.log"):
            try:
                runner.start()
                # What is committed before the slot exists is not a change to be captured.
                self._watch("capture and Spark are starting (about ten seconds)", self._stage.captured, _START_TIMEOUT)
                self._shop.open()
                self._watch("the first events are on their way", self._caught_up, _START_TIMEOUT)
                first = self._view.begin()
                start = self._view.start
                customers.start()
                self._watch("the shop is open", lambda: not customers.is_alive(), self._seconds + _DRAIN_TIMEOUT)
                self._watch("the last events are on their way", self._caught_up, _DRAIN_TIMEOUT)
                elapsed = time.monotonic() - start
                peak, average = self._view.end()
            finally:
                self._stop.set()
                for thread in (customers, runner):
                    if thread.ident:
                        thread.join(_DRAIN_TIMEOUT)
        self._raise_failure()
        self._view.start = 0.0
        speed = {"first_events": first, "events_per_second": average, "peak_events_per_second": peak}
        return self._facts(elapsed) | speed, self._view

    def _pipelines(self) -> list[config.Pipeline]:
        document = self._directory / "pipeline.yaml"
        document.write_text(self._stage.pipeline)
        places = {
            "DEMO_DSN": self._stage.dsn,
            "DEMO_FILES": str(self._directory / "files"),
            "DEMO_STATE": str(self._directory / "state"),
        }
        return config.load(document, {**os.environ, **places})

    def _run(self, pipelines: list[config.Pipeline]) -> None:
        from tidemill.service.runtime import Runtime  # Spark is loaded here, while the screen already shows something

        with Runtime(said=pipelines[0].state_path / "events.log") as runtime:
            runtime.subscribe(on_error=lambda name, error: self._failure.append(error))
            names = [runtime.add(pipeline) for pipeline in pipelines]
            runtime.start(*names)
            self._stop.wait()
            runtime.drain(*names)

    def _thread(self, target: Callable[..., None], *arguments: Any) -> threading.Thread:
        def guard() -> None:
            try:
                target(*arguments)
            except BaseException as error:  # noqa: BLE001  raised again by the thread that looks on
                self._failure.append(error)

        return threading.Thread(target=guard, name=target.__name__, daemon=True)

    def _caught_up(self) -> bool:
        return self._arrivals.total >= self._shop.committed.total()

    def _watch(self, stage: str, over: Callable[[], bool], timeout: float) -> None:
        """Keeps the screen current until `over`; what goes wrong in a thread goes wrong here."""
        self._view.stage = stage
        if not self._out.is_terminal:
            self._out.print(stage)
        start = last_tick = time.monotonic()
        while not over():
            time.sleep(_REFRESH)
            _leave(self._stopped)
            self._arrivals.poll()
            self._raise_failure()
            now = time.monotonic()
            if now - start > timeout:
                missing = self._shop.committed.total() - self._arrivals.total
                raise DeliveryError(f"{missing:,} events did not arrive within {timeout:.0f} s", where=stage)
            if now - last_tick >= 1:
                last_tick += 1
                self._view.tick()
                if not self._out.is_terminal and self._arrivals.total:
                    self._out.print(self._view.line(), soft_wrap=True)

    def _raise_failure(self) -> None:
        if self._failure:
            raise self._failure[0]

    @contextlib.contextmanager
    def _screen(self) -> Iterator[None]:
        if not self._out.is_terminal or self._out.quiet:
            yield
            return
        with Live(get_renderable=self._view.frame, console=self._out, refresh_per_second=8, transient=True):
            yield

    def _facts(self, elapsed: float) -> dict[str, Any]:
        arrivals, shop = self._arrivals, self._shop
        wrong = sum(differences(arrivals.tables.get(name, {}), shop.rows(name), key) for name, key in KEYS.items())
        return {
            "events": arrivals.total,
            "committed": shop.committed.total(),
            "duplicates": max(0, arrivals.total - shop.committed.total()),
            "seconds": round(elapsed, 1),
            "delay_seconds": round(arrivals.delay() or 0, 3),
            "transactions": shop.transactions,
            "rolled_back": shop.rolled_back,
            "files": arrivals.files,
            "bytes": arrivals.bytes,
            "differences": wrong,
            "equal": wrong == 0 and arrivals.total == shop.committed.total(),
        }


def _what_next(source: str, kept: bool) -> list[str]:
    again = "tidemill demo" if source == "postgres" else f"tidemill demo --source {source}"
    look = (
        [
            "less -S $(find tidemill-demo/files -name '*.jsonl' | head -1)",
            "tidemill log stats tidemill-demo/state/shop/log",
        ]
        if kept
        else [f"{again} --keep    keep pipeline, events and log in ./tidemill-demo"]
    )
    return [*look, f"{'tidemill --help':<{len(again) + 7}}    everything else"]


def _leave(signals: list[int]) -> None:
    """Ends with the code that tells the first signal. Raised by the handler, and asked for again in every turn: what a
    handler raises may be lost in code that must not raise (a finalizer, an import that catches everything)."""
    if signals:
        sys.exit(128 + signals[0])


def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tidemill-demo-", ignore_cleanup_errors=True)


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """The JVM and capture inherit standard error; their warnings would tear the screen apart."""
    saved = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
