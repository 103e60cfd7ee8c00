from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from tidemill.lab.bench.baselines.baseline import Baseline
from tidemill.lab.servers.clickhouse_standin import ClickHouse


class ClickHouseBaseline(Baseline):
    """The engine behind our HTTP front, for the sink and for the plain loop alike."""

    loop = "clickhouse-connect insert_arrow() of a ready table"

    def start(self) -> None:
        self._server = self.stack.enter_context(ClickHouse(self.scratch / "clickhouse"))
        after = [pa.RecordBatch.from_struct_array(block.column("after")) for block in self.material.blocks()]
        self._rows = pa.Table.from_batches(after)

    def config(self, target: str) -> dict[str, Any]:
        return {"url": self._server.url, "database": "default", "table": target}

    def plain(self, target: str) -> float:
        import clickhouse_connect

        client = clickhouse_connect.get_client(port=self._server.port, compress=False)
        client.command(
            f"CREATE TABLE {target} (id Int64, customer_id Nullable(Int32), amount Nullable(Decimal(12, 2)), "
            "status Nullable(String), note Nullable(String), created_at Nullable(DateTime64(6, 'UTC')), "
            "flag Nullable(Bool), score Nullable(Float64)) ENGINE = ReplacingMergeTree ORDER BY id"
        )
        began = time.perf_counter()
        for at in range(0, len(self._rows), 131_072):
            client.insert_arrow(target, self._rows.slice(at, 131_072))
        spent = time.perf_counter() - began
        client.close()
        return spent
