"""Capture of a SQLite file, beside a plain SELECT of its change table thrown away; and what triggers cost the writer.

The same statements are run on two files, one with triggers and one without: `writer_ratio` is the speed with them over
the speed without. Runs take turns; medians are compared.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tidemill import config
from tidemill.lab.bench.drain import capture_alone
from tidemill.sources.sqlite import SqliteFileConfig, SqliteSource
from tidemill.telemetry import events

_TABLE = (
    "CREATE TABLE bench (id INTEGER PRIMARY KEY, customer_id INT, amount DECIMAL(12,2), status VARCHAR(20), note TEXT,"
    " created_at DATETIME, flag BOOLEAN, score DOUBLE)"
)
_FETCH = 10_000


class SqliteBench:
    def __init__(self, *, rows: int, rounds: int, say: Callable[[str], None]) -> None:
        self.rows, self.rounds, self._say = rows - rows % 1000, rounds, say

    def run(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder, contextlib.ExitStack() as stack:
            self._folder = Path(folder)
            events.configure(stream=stack.enter_context((self._folder / "events.log").open("w")))
            return self._run()

    def _run(self) -> dict[str, Any]:
        plain, recorded = self._folder / "plain.db", self._folder / "recorded.db"
        writing: dict[Path, list[float]] = {plain: [], recorded: []}
        for number in range(self.rounds):
            for path, spent in writing.items():
                spent.append(self._write(path, triggers=path == recorded))
                self._say(f"  round {number + 1} writer {path.stem:<9} {self.rows / spent[-1]:>10,.0f} rows/s")
        capturing, selecting = [], []
        facts: list[dict[str, Any]] = []
        for number in range(self.rounds + 1):  # the first one warms up
            selecting.append(self._select(recorded))
            took, fact = self._capture(recorded, number)
            capturing.append(took)
            facts.append(fact)
            self._say(f"  round {number} capture {self.rows / took:>10,.0f} rows/s")
        read, select = median(capturing[1:]), median(selecting[1:])
        return {
            "sqlite": sqlite3.sqlite_version,
            "rows": self.rows,
            "rounds": self.rounds,
            "rows_per_s": round(self.rows / read),
            "select_rows_per_s": round(self.rows / select),
            "ratio_read": round(select / read, 3),
            "writer_rows_per_s": round(self.rows / median(writing[recorded])),
            "plain_writer_rows_per_s": round(self.rows / median(writing[plain])),
            "writer_ratio": round(median(writing[plain]) / median(writing[recorded]), 3),
            "capture_us_per_row": round(median(f["cpu"]["capture"] for f in facts[1:]) / self.rows * 1e6, 3),
            "capture_peak_rss_mb": round(max(f["capture_hwm"] for f in facts)),
        }

    def _write(self, path: Path, *, triggers: bool) -> float:
        """Of every 1,000 changes 800 are inserts, 150 updates and 50 deletes, one transaction each thousand."""
        for old in path.parent.glob(f"{path.name}*"):
            old.unlink()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = wal")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(_TABLE)
            if triggers:
                SqliteSource(SqliteFileConfig(id="bench", path=path)).setup()
            began = time.monotonic()
            for base in range(0, self.rows // 1000 * 800, 800):
                db.execute("BEGIN")
                db.executemany("INSERT INTO bench VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _rows(base))
                changed = (base, base + 149)
                db.execute("UPDATE bench SET amount = amount + 1, status = 'changed' WHERE id BETWEEN ? AND ?", changed)
                db.execute("DELETE FROM bench WHERE id BETWEEN ? AND ?", (base + 750, base + 799))
                db.execute("COMMIT")
            return time.monotonic() - began

    def _select(self, path: Path) -> float:
        with contextlib.closing(sqlite3.connect(path)) as db:
            began = time.monotonic()
            cursor = db.execute("SELECT * FROM _tidemill_changes ORDER BY change_id")
            while cursor.fetchmany(_FETCH):
                pass
            return time.monotonic() - began

    def _capture(self, path: Path, number: int) -> tuple[float, dict[str, Any]]:
        document = self._folder / "bench.yaml"
        document.write_text(f"""
metadata: {{name: bench-{number}}}
spec:
  source: {{type: sqlite, config: {{id: bench, path: {path}}}}}
  sinks: [{{type: blackhole, config: {{id: nowhere}}}}]
  state_dir: {self._folder / "state"}
""")
        pipeline = config.load(document)[0]
        try:
            return capture_alone(pipeline, self.rows)
        finally:
            shutil.rmtree(pipeline.state_path)


def _rows(base: int) -> list[tuple[Any, ...]]:
    return [
        (i, i % 1000, i % 100_000 / 100, f"status {i % 5}", f"note number {i}{'x' * (i % 30)}", "2024-01-01 00:00:00",
         i % 2, i * 1.1)
        for i in range(base, base + 800)
    ]  # fmt: skip
