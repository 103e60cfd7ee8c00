"""MySQL or MariaDB to blackhole and to Kafka, and capture alone, over one binlog; beside two others that read the same.

The limit is the server's own client, `mysqlbinlog --read-from-remote-server --raw`, which copies the binlog to a file
without looking at a row. The peer is `mysql-replication`, the Python library most tools stand on; it reads only the
first part of the binlog, since it would take minutes for all of it. Runs take turns; medians are compared.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Literal

from tidemill import config
from tidemill.errors import EnvironmentProblem
from tidemill.lab.bench.drain import LIMIT_SECONDS, capture_alone, drain
from tidemill.lab.bench.scratch import ScratchBench
from tidemill.lab.servers import mariadb, mysql
from tidemill.lab.servers.kafka import Broker, Mock, local_kafka
from tidemill.lab.servers.mysql_family import Server
from tidemill.service.run.spark_session import slots
from tidemill.stream.spark.session import create_session, warm_up

_SERVICES = Path(".services")
_BLACKHOLE = "{type: blackhole, config: {id: nowhere}}"
_TABLE = """
CREATE TABLE bench (
    id bigint PRIMARY KEY, customer_id int, amount decimal(12,2), status varchar(20),
    note text, created_at datetime(6), flag tinyint(1), score double
) CHARACTER SET utf8mb4
"""
# Of every 1,000 changes 800 are inserts, 150 updates and 50 deletes, one transaction each thousand.
_CHANGES = """
CREATE PROCEDURE changes(transactions int)
BEGIN
    DECLARE t int DEFAULT 0;
    DECLARE base bigint;
    WHILE t < transactions DO
        SET base = 1 + t * 800;
        START TRANSACTION;
        INSERT INTO bench
        SELECT base + n, (base + n) % 1000, ((base + n) % 100000) / 100, CONCAT('status ', (base + n) % 5),
               CONCAT('note number ', base + n, REPEAT('x', (base + n) % 30)),
               TIMESTAMPADD(SECOND, base + n, '2024-01-01 00:00:00'), (base + n) % 2, (base + n) * 1.1
        FROM numbers;
        UPDATE bench SET amount = amount + 1, status = 'changed' WHERE id BETWEEN base AND base + 149;
        DELETE FROM bench WHERE id BETWEEN base + 750 AND base + 799;
        COMMIT;
        SET t = t + 1;
    END WHILE;
END
"""
_NUMBERS = """
INSERT INTO numbers
WITH RECURSIVE counted AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM counted WHERE n < 799) SELECT n FROM counted
"""

ServerKind = Literal["mysql", "mariadb"]


class MysqlBench(ScratchBench):
    """One server with its binlog, many readers of it. Everything it started is gone when it is closed."""

    def __init__(
        self, kind: ServerKind, *, rows: int, rounds: int, kafka: bool, mode: str, say: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.kind, self.rows, self.rounds, self.kafka, self._say = kind, rows - rows % 1000, rounds, kafka, say
        self.mode = mode

    def run(self, peer_rows: int) -> dict[str, Any]:
        self._load()
        self._say("warming up")
        self._read("blackhole", 0)
        seconds: dict[str, list[float]] = {"raw dump": [], "capture": [], "blackhole": []}
        if self._broker is not None:
            seconds["kafka"] = []
        facts: dict[str, list[dict[str, Any]]] = {"capture": [], "blackhole": [], "kafka": []}
        for number in range(self.rounds):
            for kind, spent in seconds.items():
                if kind == "raw dump":
                    spent.append(self._raw_dump(number))
                else:
                    took, fact = self._read(kind, number)
                    spent.append(took)
                    facts[kind].append(fact)
                self._say(f"  round {number + 1} {kind:<10} {self.rows / spent[-1]:>10,.0f} rows/s")
        peer = self._peer(min(peer_rows, self.rows))
        self._say(f"  mysql-replication  {peer:>10,.0f} rows/s")
        speed = {kind: self.rows / median(spent) for kind, spent in seconds.items()}
        captures = facts["capture"]
        return {
            "mode": self.mode,
            "server": f"{self._server.name} {self._server.version}",
            "rows": self.rows,
            "rounds": self.rounds,
            "capture_rows_per_s": round(speed["capture"]),
            "blackhole_rows_per_s": round(speed["blackhole"]),
            "kafka_rows_per_s": round(speed["kafka"]) if "kafka" in speed else None,
            "raw_dump_rows_per_s": round(speed["raw dump"]),
            "mysql_replication_rows_per_s": round(peer),
            "ratio_raw_dump": round(speed["capture"] / speed["raw dump"], 3),
            "ratio_mysql_replication": round(speed["capture"] / peer, 1),
            "ratio_mysql_replication_end_to_end": round(speed["blackhole"] / peer, 1),
            "capture_us_per_row": round(median(f["cpu"]["capture"] for f in captures) / self.rows * 1e6, 3),
            "capture_peak_rss_mb": round(max(f["capture_hwm"] for f in captures)),
            "us_per_row": {kind: self._micros(facts[kind]) for kind in ("blackhole", "kafka") if facts[kind]},
            "kafka": {Broker: "broker", Mock: "mock"}.get(type(self._broker)),
            "seconds": {kind: [round(s, 2) for s in spent] for kind, spent in seconds.items()},
        }

    def _micros(self, facts: list[dict[str, Any]]) -> dict[str, float]:
        """CPU a row by part."""
        parts = facts[0]["cpu"].keys()
        return {part: round(median(f["cpu"].get(part, 0.0) for f in facts) / self.rows * 1e6, 3) for part in parts}

    def _start(self) -> None:
        settings: dict[str, Any] = {"innodb_buffer_pool_size": "512M", "max_binlog_size": "1G"}
        self._server: Server = self._stack.enter_context(
            mysql.Mysql(mysql.fetch(_SERVICES / "mysql"), **settings)
            if self.kind == "mysql"
            else mariadb.Mariadb(**settings)
        )
        self._broker: Broker | Mock | None = None
        if self.kafka:
            self._broker = local_kafka(self._scratch / "kafka", (_SERVICES / "kafka").absolute())
            self._stack.callback(self._broker.stop)
        master, conf = slots("local[*]", ample=True)
        self._spark = create_session("tidemill bench", master=master, conf=conf)
        self._stack.callback(self._spark.stop)
        warm_up(self._spark)

    def _load(self) -> None:
        self._say(f"making {self.rows:,} row changes")
        self._server.execute(
            "CREATE DATABASE shop", "USE shop", _TABLE, "CREATE TABLE numbers (n int PRIMARY KEY)", _NUMBERS, _CHANGES,
            "FLUSH BINARY LOGS",
        )  # fmt: skip
        status = "SHOW BINARY LOG STATUS" if self.kind == "mysql" else "SHOW MASTER STATUS"
        # What comes before the changes is not read by anyone: runs start at this file.
        self._file = str(self._server.query(status)[0][0])
        self._server.query(f"CALL changes({self.rows // 1000})", database="shop")

    def _read(self, kind: str, number: int) -> tuple[float, dict[str, Any]]:
        sink = _BLACKHOLE
        if kind == "kafka":
            assert self._broker is not None
            settings = f"id: kafka, brokers: '{self._broker.bootstrap}', topic: bench_{number}"
            sink = f"{{type: kafka, config: {{{settings}}}}}"
        pipeline = self._pipeline(sink)
        try:
            if kind == "capture":
                return capture_alone(pipeline, self.rows)
            return drain(pipeline, self._spark, self.rows)
        finally:  # the next run writes over its pages, as a log does that is trimmed
            shutil.rmtree(pipeline.state_path)

    def _pipeline(self, sink: str) -> config.Pipeline:
        self._counter += 1
        document = self._scratch / "bench.yaml"
        document.write_text(f"""
metadata: {{name: bench-{self._counter}}}
spec:
  source:
    type: {self.kind}
    config:
      id: bench-{self._counter}
      dsn: "{self._server.dsn("shop")}"
      tables: [shop.bench]
      start_position: "{self._file}:4"
  sinks: [{sink}]
  trigger: {{mode: {self.mode}}}
  state_dir: {self._scratch / "state"}
""")
        return config.load(document)[0]

    def _raw_dump(self, number: int) -> float:
        target = self._scratch / f"raw-{number}-"
        dump: list[str | Path] = (
            mysql.tool(mysql.fetch(_SERVICES / "mysql"), "usr/bin/mysqlbinlog")
            if self.kind == "mysql"
            else [mariadb.find("mariadb-binlog")]
        )
        command = [
            *dump, "--no-defaults", "--read-from-remote-server", "--raw", "--to-last-log",
            "--host=127.0.0.1", f"--port={self._server.port}", "--user=root", f"--result-file={target}", self._file,
        ]  # fmt: skip
        began = time.monotonic()
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LIMIT_SECONDS)
        spent = time.monotonic() - began
        if done.returncode:
            raise EnvironmentProblem(f"mysqlbinlog ended with code {done.returncode}", fix=done.stderr[-400:])
        for file in self._scratch.glob("raw-*"):
            file.unlink()
        return spent

    def _peer(self, rows: int) -> float:
        """Rows a second over the first `rows` of the same binlog."""
        from pymysqlreplication import BinLogStreamReader
        from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

        stream = BinLogStreamReader(
            connection_settings={"host": "127.0.0.1", "port": self._server.port, "user": "root", "passwd": ""},
            server_id=987_654, log_file=self._file, log_pos=4, resume_stream=True, is_mariadb=self.kind == "mariadb",
            only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        )  # fmt: skip
        try:
            seen, began = 0, time.monotonic()
            for event in stream:
                seen += len(event.rows)
                if seen >= rows:
                    break
            return seen / (time.monotonic() - began)
        finally:
            stream.close()
