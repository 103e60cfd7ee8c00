from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tidemill.lab.bench.baselines.baseline import Baseline
from tidemill.lab.servers.kafka import local_kafka


class KafkaBaseline(Baseline):
    loop = "confluent_kafka produce() of ready keys and values"

    def start(self) -> None:
        broker = local_kafka(self.scratch / "kafka", Path(".services/kafka").absolute())
        self.stack.callback(broker.stop)
        self._bootstrap = broker.bootstrap
        self._keys, self._values = self.keys(), self.values()

    def config(self, target: str) -> dict[str, Any]:
        return {"brokers": self._bootstrap, "topic": target}

    def plain(self, target: str) -> float:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 50,
                "compression.type": "lz4", "queue.buffering.max.messages": 500_000,
            }
        )  # fmt: skip
        headers = [("op", b"insert"), ("table", b"public.bench")]
        began = time.perf_counter()
        for key, value in zip(self._keys, self._values, strict=True):
            while True:
                try:
                    producer.produce(target, value, key, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()
        return time.perf_counter() - began
