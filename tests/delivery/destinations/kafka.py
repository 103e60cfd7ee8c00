from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.crash.delivered import from_kafka
from tests.delivery.destination import Event
from tests.delivery.workload import Row
from tests.servers.kafka import CACHE, create_topic
from tidemill.lab.servers.kafka import Broker, Mock, local_kafka


class Kafka:
    """Exactly once: one transaction per lane and batch. A broker tells clients its own address, so no proxy stands
    before it; lost answers are what killing it makes."""

    state = False
    port = None

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "kafka"
        self._broker: Broker | Mock | None = None

    def start(self) -> None:
        self._broker = local_kafka(self._directory, CACHE)
        create_topic(self._broker.bootstrap, "proof", 3)

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()

    def restart(self) -> None:
        if isinstance(self._broker, Broker):  # the mock keeps nothing: it has only the kills of the worker
            self._broker.stop(kill=True)
            self._broker.start()

    def config(self, port: int | None) -> dict[str, Any]:
        assert self._broker is not None
        return {"brokers": self._broker.bootstrap, "topic": "proof", "exactly_once": True}

    def events(self) -> Iterable[Event]:
        assert self._broker is not None
        events, unordered = from_kafka(self._broker.bootstrap, "proof")
        assert not unordered, unordered[:5]
        return events

    def rows(self, table: str) -> Iterable[Row]:
        raise NotImplementedError("a topic holds events")


destination = Kafka
