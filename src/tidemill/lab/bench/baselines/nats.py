from __future__ import annotations

import asyncio
import time
from typing import Any

from tidemill.lab.bench.baselines.baseline import Baseline
from tidemill.lab.servers.nats import Nats


class NatsBaseline(Baseline):
    loop = "nats-py publish_async() of ready bytes, acknowledgements awaited"

    def start(self) -> None:
        self._server = self.stack.enter_context(Nats())
        self._values = self.values()

    def config(self, target: str) -> dict[str, Any]:
        return {"servers": [self._server.uri], "stream": target, "subject": f"{target}.events"}

    def plain(self, target: str) -> float:
        return asyncio.run(self._publish(target))

    async def _publish(self, target: str) -> float:
        import nats

        connection = await nats.connect(self._server.uri)
        try:
            stream = connection.jetstream(publish_async_max_pending=4000)
            await stream.add_stream(name=target, subjects=[f"{target}.events"])
            began = time.perf_counter()
            for number, value in enumerate(self._values):
                await stream.publish_async(
                    f"{target}.events", value, wait_stall=30, headers={"Nats-Msg-Id": str(number)}
                )
            await stream.publish_async_completed()
            return time.perf_counter() - began
        finally:
            await connection.close()
