"""Sinks that are closed afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tidemill.lab.servers.kafka import Broker, Mock
from tidemill.sinks.kafka import KafkaConfig, KafkaSink


@pytest.fixture
def sinks() -> Iterator[Any]:
    """Makes sinks and closes them."""
    made: list[KafkaSink] = []

    def make(server: Broker | Mock, topic: str, **fields: Any) -> KafkaSink:
        made.append(KafkaSink(KafkaConfig(id="k", brokers=server.bootstrap, topic=topic, **fields)))
        return made[-1]

    yield make
    for sink in made:
        sink.close()
