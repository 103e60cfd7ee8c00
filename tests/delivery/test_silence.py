"""Every sink, before a server that stops answering and does not hang up: a write ends with an error that is tried
again, and goes through when the server is back. A task that waits for ever would hold up its pipeline for ever, and no
retry could mend it.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.delivery.proxy import Proxy
from tests.support.blocks import make_block, make_table
from tidemill import registry
from tidemill.contracts import Sink
from tidemill.errors import DeliveryError, is_retryable
from tidemill.lab.servers.kafka import Broker
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery

#: How long each is to be waited for. The rest is what the sink makes of it.
IMPATIENT: dict[str, dict[str, Any]] = {
    "clickhouse": {"request_timeout_seconds": 2, "connect_timeout_seconds": 2},
    "http": {"timeout_seconds": 2, "connect_timeout_seconds": 2, "deadline_seconds": 2},
    "kafka": {"delivery_timeout_seconds": 3},
    "nats": {"timeout_seconds": 2, "connect_timeout_seconds": 2},
    "pgstream": {"statement_timeout_seconds": 2, "connect_timeout_seconds": 2},
    "postgres": {"statement_timeout_seconds": 2, "connect_timeout_seconds": 2},
    "redis": {"timeout_seconds": 2, "connect_timeout_seconds": 2},
    "s3": {"timeout_seconds": 2, "connect_timeout_seconds": 2},
    "starrocks": {"request_timeout_seconds": 2, "connect_timeout_seconds": 2},
}
#: Sinks that wait for nobody.
WITHOUT = {"blackhole", "files", "stdout"}
_FOR_EVER = 90.0  # seconds, far more than any of the settings above explains


class Scene:
    """One sink before its server, and a way to make that fall silent."""

    def __init__(self, name: str, at: Any, hold: Callable[[], None], release: Callable[[], None], port: Any) -> None:
        self.hold, self.release = hold, release
        self._name, self._at, self._port = name, at, port

    def sink(self) -> Sink:
        kind = registry.load("sinks", self._name)
        made: Sink = kind(
            kind.Config.model_validate({"id": "s", **self._at.config(self._port), **IMPATIENT[self._name]})
        )
        return made


@contextmanager
def _server(name: str, directory: Path) -> Iterator[Scene]:
    at = importlib.import_module(f"tests.delivery.destinations.{name}").destination(directory)
    at.start()
    try:
        if at.port is None:
            broker = at._broker
            if not isinstance(broker, Broker):
                pytest.skip("the mock lives in this process")
            yield Scene(
                name, at, lambda: os.kill(broker.pid, signal.SIGSTOP), lambda: os.kill(broker.pid, signal.SIGCONT), None
            )
        else:
            with Proxy(at.port) as proxy:
                yield Scene(name, at, proxy.hold, proxy.release, proxy.port)
    finally:
        at.stop()


@pytest.fixture(params=[name for name in registry.names("sinks") if name not in WITHOUT])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with _server(request.param, tmp_path) as made:
        yield made
        made.release()


def test_a_server_that_stops_answering_is_an_error_to_try_again_and_goes_on_when_it_is_back(scene: Scene) -> None:
    before, sending = scene.sink(), scene.sink()
    for sink in (before, sending):
        sink.write(_delivery(0, 10))
    scene.hold()
    attempts = [
        Attempt(before, _delivery(10, 20)),  # on a connection that was made before
        Attempt(scene.sink(), _delivery(10, 20)),  # on one that is made now
        # Here it is the sending that gets stuck: it is more than all buffers on the way hold.
        Attempt(sending, _delivery(10, 330, "x" * 100_000)),
    ]
    for attempt in attempts:
        attempt.fails()
    scene.release()
    _gets_through(scene, _delivery(10, 20))


def _gets_through(scene: Scene, delivery: Delivery) -> None:
    """At once, or after what was held up on the way has arrived and is met there."""
    for _ in range(20):
        sink = scene.sink()
        try:
            assert sink.write(delivery).ok
            return
        except DeliveryError as error:
            if not is_retryable(error):
                raise
            time.sleep(0.5)
        finally:
            sink.close()
    pytest.fail("it never gets through again")


class Attempt:
    """A write in a thread. As in stream/lane/deliver.py: the sink is closed after the error, and that must end too."""

    def __init__(self, sink: Sink, delivery: Delivery) -> None:
        self._met: list[BaseException] = []
        self._thread = threading.Thread(target=self._write, args=(sink, delivery), daemon=True)
        self._thread.start()

    def fails(self) -> None:
        self._thread.join(_FOR_EVER)
        assert not self._thread.is_alive(), "it waits for ever"
        assert self._met, "it says that it was written"
        assert isinstance(self._met[0], DeliveryError), repr(self._met[0])
        assert is_retryable(self._met[0])
        assert self._met[0].where

    def _write(self, sink: Sink, delivery: Delivery) -> None:
        try:
            sink.write(delivery)
        except BaseException as error:  # noqa: BLE001  judged by the test's thread
            self._met.append(error)
        sink.close()


def _delivery(start: int, end: int, note: str = "") -> Delivery:
    table = make_table("orders")
    offsets = range(start, end)
    block = make_block(end - start, table=table, offsets=offsets, ordinals=offsets, first_id=start)
    if note:
        after = block.batch.column("after")
        fields = list(after.type)
        arrays = [pa.array([note] * len(after)) if f.name == "note" else after.field(f.name) for f in fields]
        at = block.batch.schema.get_field_index("after")
        batch = block.batch.set_column(at, "after", pa.StructArray.from_arrays(arrays, fields=fields))
        block = Block(table, batch)
    return Delivery("shop", "orders", start, end, 0, 1, lambda: iter([block]))
