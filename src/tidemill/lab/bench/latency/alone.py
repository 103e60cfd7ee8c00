"""What the machine takes by itself at a rate: a durable write, and a plain producer to the same broker. A pipeline to
Kafka waits for three such writes and one such delivery, one after another: so a slow machine can be told from us."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_PAGE = 4096
_MESSAGE = (
    b'{"op":"insert","after":{"id":1,"customer_id":1,"amount":"1.50","status":"new","note":"latency",'
    b'"created_at":"2024-01-01T00:00:00Z","flag":true,"score":0.5}}'
)


def time_writes(directory: Path, per_second: float, seconds: float) -> list[float]:
    """Milliseconds of each `fdatasync` of a page that was written in place."""
    path = directory / "alone"
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, bytes(2 * _PAGE), 0)
        os.fsync(file)

        def write(number: int) -> None:
            os.pwrite(file, bytes([number % 256]) * _PAGE, number % 2 * _PAGE)
            os.fdatasync(file)

        return _time_each(write, per_second, seconds)
    finally:
        os.close(file)
        path.unlink()


def time_deliveries(bootstrap: str, topic: str, at_once: int, per_second: float, seconds: float) -> list[float]:
    """Milliseconds from the first `produce` of so many messages until the broker has acknowledged all of them."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0,
         "compression.type": "lz4"}
    )  # fmt: skip

    def deliver(number: int) -> None:
        for key in range(at_once):
            producer.produce(topic, _MESSAGE, b'{"id":%d}' % (number * at_once + key))
        while len(producer):
            producer.poll(0.1)

    deliver(0)  # connects
    return _time_each(deliver, per_second, seconds)


def _time_each(call: Callable[[int], None], per_second: float, seconds: float) -> list[float]:
    """As steadily as the machine allows."""
    taken, begin = [], time.monotonic()
    for number in range(max(1, round(per_second * seconds))):
        began = time.perf_counter()
        call(number)
        taken.append((time.perf_counter() - began) * 1000)
        early = begin + (number + 1) / per_second - time.monotonic()
        if early > 0:
            time.sleep(early)
    return taken
