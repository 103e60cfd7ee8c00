from __future__ import annotations

import time
from typing import Any

from tidemill.formats.json import JsonFormat
from tidemill.lab.bench.baselines.baseline import Baseline
from tidemill.lab.servers.seaweedfs import SeaweedFS


class S3Baseline(Baseline):
    loop = "obstore put() of ready objects, one per batch"

    def start(self) -> None:
        self._server = self.stack.enter_context(SeaweedFS())
        self._server.bucket("bench")
        self._objects = [
            b"".join(JsonFormat().batch(block, "bench") for block in delivery)
            for delivery in self.material.deliveries(200_000, pipeline="plain")
        ]

    def config(self, target: str) -> dict[str, Any]:
        return {
            "bucket": "bench", "prefix": target, "endpoint": self._server.endpoint,
            "access_key_id": self._server.access_key, "secret_access_key": self._server.secret_key,
        }  # fmt: skip

    def plain(self, target: str) -> float:
        import obstore

        store: Any = self._server.store("bench")
        began = time.perf_counter()
        for number, content in enumerate(self._objects):
            obstore.put(store, f"{target}/{number}.jsonl", content)
        return time.perf_counter() - began
