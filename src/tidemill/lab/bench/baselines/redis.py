from __future__ import annotations

import time
from typing import Any

from tidemill.lab.bench.baselines.baseline import Baseline
from tidemill.lab.servers.valkey import Valkey


class RedisBaseline(Baseline):
    loop = "redis-py pipelines of 1,000 XADD of ready bytes"

    def start(self) -> None:
        self._server = self.stack.enter_context(Valkey({"appendonly": "no"}))
        self._keys, self._values = self.keys(), self.values()

    def config(self, target: str) -> dict[str, Any]:
        return {"uri": self._server.uri, "stream": target}

    def plain(self, target: str) -> float:
        import redis

        began = time.perf_counter()
        with redis.Redis(port=self._server.port) as client:
            for first in range(0, len(self._values), 1000):
                pipeline = client.pipeline(transaction=False)
                for number in range(first, min(first + 1000, len(self._values))):
                    pipeline.xadd(target, {"key": self._keys[number], "event": self._values[number]}, f"{number + 1}-0")
                pipeline.execute()
        return time.perf_counter() - began
