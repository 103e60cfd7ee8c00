"""One server for all tests of the redis sink, a stream for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.sinks.redis.support import names
from tidemill.lab.servers.valkey import Valkey
from tidemill.sinks.redis import RedisConfig, RedisSink


@pytest.fixture(scope="package")
def valkey() -> Iterator[Valkey]:
    with Valkey({"appendonly": "yes", "appendfsync": "no"}) as server:
        yield server


@pytest.fixture
def client(valkey: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis(port=valkey.port) as connection:
        yield connection


@pytest.fixture
def stream() -> str:
    return f"stream-{next(names)}"


@pytest.fixture
def sinks(valkey: Valkey) -> Iterator[Any]:
    made: list[RedisSink] = []

    def make(stream: str, uri: str = valkey.uri, **options: Any) -> RedisSink:
        made.append(RedisSink(RedisConfig(id="r", uri=uri, stream=stream, **options)))
        return made[-1]

    yield make
    for sink in made:
        sink.close()
