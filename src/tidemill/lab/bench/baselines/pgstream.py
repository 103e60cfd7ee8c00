from __future__ import annotations

import time
from typing import Any

from tidemill.lab.bench.baselines.baseline import PULLED, Baseline
from tidemill.lab.bench.baselines.postgres import copy
from tidemill.lab.servers.postgres import Postgres
from tidemill.sinks.pgstream import Client


class PgstreamBaseline(Baseline):
    """The plain consumer has no groups, no visibility timeout and no order to keep; what it takes is gone at once.

    Every round begins with empty tables, for both."""

    loop = "COPY of ready text into a table with offset, key and payload"
    pull_loop = f"DELETE of the first {PULLED:,} rows of that table FOR UPDATE SKIP LOCKED, RETURNING them"

    def start(self) -> None:
        self._server = self.stack.enter_context(Postgres(durable=False, shared_buffers="256MB", autovacuum=False))
        pairs = enumerate(zip(self.keys(), self.values(), strict=True))
        self._text = b"".join(
            b"%d\t%s\t%s\n" % (number, _escape(key), _escape(value)) for number, (key, value) in pairs
        )

    def config(self, target: str) -> dict[str, Any]:
        return {"dsn": self._server.dsn(), "stream": target}

    def plain(self, target: str) -> float:
        self._server.query("TRUNCATE pgstream.messages")
        self._server.query(f"CREATE TABLE {target} (number bigint PRIMARY KEY, key text, payload text)")
        return copy(self._server, target, self._text)

    def pulls(self, ours: str, plain: str) -> tuple[float, float]:
        statement = (
            f"DELETE FROM {plain} WHERE number IN "
            f"(SELECT number FROM {plain} ORDER BY number LIMIT {PULLED} FOR UPDATE SKIP LOCKED) RETURNING *"
        )
        with self._server.connect() as connection:
            taken, began = 0, time.perf_counter()
            while rows := connection.execute(statement.encode()).fetchall():
                taken += len(rows)
            without = time.perf_counter() - began
        with Client(self._server.dsn()) as client:
            group = client.group(ours, "bench")
            began = time.perf_counter()
            while messages := group.pull(PULLED):
                taken -= len(group.ack(*messages).done)
            spent = time.perf_counter() - began
        assert not taken, "both consumers are given every message once"
        self._server.query(f"DROP TABLE {plain}")
        return spent, without


def _escape(text: bytes) -> bytes:
    return text.replace(b"\\", b"\\\\")
