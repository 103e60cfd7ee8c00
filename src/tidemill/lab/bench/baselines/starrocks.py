from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tidemill.lab.bench.baselines.baseline import Baseline
from tidemill.lab.servers.starrocks_standin import StarRocks
from tidemill.sinks.starrocks import StreamLoads


class StarRocksBaseline(Baseline):
    """The stand-in, for both. What the sink sent to its first table is sent again, as it was."""

    loop = "Stream Load of ready bodies (the sink's own)"

    def start(self) -> None:
        self._server = self.stack.enter_context(StarRocks(self.scratch / "starrocks"))
        self._ready: list[tuple[Mapping[str, str], bytes]] = []
        load = StreamLoads.load

        def recorded(
            loads: StreamLoads, database: str, table: str, label: str, headers: Mapping[str, str], body: bytes
        ) -> bool:
            if table == "warm":
                self._ready.append((headers, body))
            return load(loads, database, table, label, headers, body)

        StreamLoads.load = recorded  # type: ignore[method-assign, assignment]
        self.stack.callback(setattr, StreamLoads, "load", load)

    def config(self, target: str) -> dict[str, Any]:
        return {
            "url": f"http://127.0.0.1:{self._server.http_port}", "mysql_port": self._server.mysql_port,
            "database": "bench", "table": target,
        }  # fmt: skip

    def plain(self, target: str) -> float:
        url = f"http://127.0.0.1:{self._server.http_port}"
        loads = StreamLoads(url, self._server.user, self._server.password, "bench", 10, 60)
        ready = list(self._ready)
        began = time.perf_counter()
        for number, (headers, body) in enumerate(ready):
            loads.load("bench", "warm", f"{target}-{number}", headers, body)
        self._ready[:] = ready
        return time.perf_counter() - began
