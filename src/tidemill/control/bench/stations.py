"""For each sink a server to write to, and the plainest loop of that system's client over bytes made beforehand."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidemill.control.bench.material import Material
from tidemill.control.servers.kafka import local_kafka
from tidemill.formats.json import JsonFormat


class Station(ABC):
    """Starts on entry, is gone on exit. `loop` says what `plain` does."""

    loop: str

    def __init__(self, scratch: Path, material: Material) -> None:
        self.scratch = scratch
        self.material = material
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        self.scratch.mkdir(parents=True, exist_ok=True)
        try:
            self.start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stack.close()

    @abstractmethod
    def start(self) -> None:
        """The server, and what `plain` needs ready."""

    @abstractmethod
    def config(self, target: str) -> dict[str, Any]:
        """The sink's settings; every target is a place of its own."""

    @abstractmethod
    def plain(self, target: str) -> float:
        """Seconds of the plain loop."""

    def values(self) -> list[bytes]:
        """Every event as a sink would send it."""
        return [v for block in self.material.blocks() for v in JsonFormat().encode(block, "bench").to_pylist()]

    def keys(self) -> list[bytes]:
        return [v for block in self.material.blocks() for v in JsonFormat().encode_key(block).to_pylist()]


class FilesStation(Station):
    loop = "write() of ready lines to one file"

    def start(self) -> None:
        self._pieces = [JsonFormat().batch(block, "bench") for block in self.material.blocks()]

    def config(self, target: str) -> dict[str, Any]:
        return {"path": str(self.scratch / target)}

    def plain(self, target: str) -> float:
        began = time.perf_counter()
        with (self.scratch / target).open("wb") as file:
            for piece in self._pieces:
                file.write(piece)
        return time.perf_counter() - began


class KafkaStation(Station):
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


STATIONS: dict[str, type[Station]] = {"files": FilesStation, "kafka": KafkaStation}
