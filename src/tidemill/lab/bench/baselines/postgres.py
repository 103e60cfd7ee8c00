from __future__ import annotations

import time
from typing import Any

from tidemill.lab.bench.baselines.baseline import Baseline
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.block import Block


class PostgresBaseline(Baseline):
    """The sink keeps the newest row of each key; the plain loop only appends all of them."""

    loop = "COPY of ready text into a table with the same key"

    def start(self) -> None:
        self._server = self.stack.enter_context(Postgres(durable=False, shared_buffers="256MB", autovacuum=False))
        self._text = b"".join(self._copy_text(block) for block in self.material.blocks())

    def config(self, target: str) -> dict[str, Any]:
        return {"dsn": self._server.dsn(), "table": target}

    def plain(self, target: str) -> float:
        self._server.query(
            f"CREATE TABLE {target} (number bigint PRIMARY KEY, id bigint, customer_id int, amount numeric(12,2), "
            "status varchar(20), note text, created_at timestamptz, flag boolean, score double precision)"
        )
        return copy(self._server, target, self._text)

    @staticmethod
    def _copy_text(block: Block) -> bytes:
        columns = [block.column("offset"), *(block.struct("after") or {}).values()]
        rows = zip(*(column.to_pylist() for column in columns if column is not None), strict=True)
        return b"".join("\t".join(map(str, row)).encode() + b"\n" for row in rows)


def copy(server: Postgres, table: str, text: bytes) -> float:
    """Seconds of one COPY in one transaction."""
    began = time.perf_counter()
    with server.connect() as connection:
        with connection.cursor().copy(f"COPY {table} FROM STDIN") as rows:
            for at in range(0, len(text), 1 << 20):
                rows.write(text[at : at + (1 << 20)])
        connection.commit()
    return time.perf_counter() - began
