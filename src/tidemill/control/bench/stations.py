"""For each sink a server to write to, and the plainest loop of that system's client over bytes made beforehand."""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pyarrow as pa

from tidemill.control.bench.material import Material
from tidemill.control.servers.clickhouse import ClickHouse
from tidemill.control.servers.http import Sponge
from tidemill.control.servers.kafka import local_kafka
from tidemill.control.servers.nats import Nats
from tidemill.control.servers.postgres import Postgres
from tidemill.control.servers.seaweedfs import SeaweedFS
from tidemill.control.servers.starrocks import StarRocks
from tidemill.control.servers.valkey import Valkey
from tidemill.formats.json import JsonFormat
from tidemill.model.block import Block
from tidemill.sinks._starrocks_http import StreamLoads
from tidemill.sinks.http import HttpConfig
from tidemill.sinks.pgstream import Client

PULLED = 1000
"""Messages of one pull, and of the ack after it."""


class Station(ABC):
    """Starts on entry, is gone on exit. `loop` says what `plain` does, `pull_loop` what the plain consumer does."""

    loop: str
    pull_loop: str = ""

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

    def pulls(self, ours: str, plain: str) -> tuple[float, float] | None:
        """Seconds to take everything out again, by our consumer and by the plainest one; None if we have none."""
        return None

    def values(self) -> list[bytes]:
        """Every event as a sink would send it."""
        return [v for block in self.material.blocks() for v in JsonFormat().encode(block, "bench").to_pylist()]

    def keys(self) -> list[bytes]:
        return [v for block in self.material.blocks() for v in JsonFormat().encode_key(block).to_pylist()]


class FilesStation(Station):
    loop = "write() and fsync() of ready lines to one file"

    def start(self) -> None:
        self._pieces = [JsonFormat().batch(block, "bench") for block in self.material.blocks()]

    def config(self, target: str) -> dict[str, Any]:
        return {"path": str(self.scratch / target)}

    def plain(self, target: str) -> float:
        began = time.perf_counter()
        with (self.scratch / target).open("wb") as file:
            for piece in self._pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
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


class RedisStation(Station):
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


class HttpStation(Station):
    """The receiver answers at once and keeps nothing, for both. Bodies are the same bytes, over one connection each."""

    loop = "urllib3 POST of ready bodies of 500 events"
    events = 500
    options: ClassVar[Mapping[str, Any]] = {"mode": "batch", "max_events": events, "concurrency": 1}

    def start(self) -> None:
        self._server = self.stack.enter_context(Sponge())
        lines = [JsonFormat().stacked(block, "bench").to_pylist() for block in self.material.blocks()]
        self._bodies = [b"".join(ls[at : at + self.events]) for ls in lines for at in range(0, len(ls), self.events)]
        self._type = {"Content-Type": "application/x-ndjson"}

    def config(self, target: str) -> dict[str, Any]:
        return {"url": f"{self._server.url}/{target}", **self.options}

    def plain(self, target: str) -> float:
        import urllib3

        url = f"{self._server.url}/{target}"
        with urllib3.PoolManager() as pool:
            pool.request("POST", url, body=b"", headers=self._type)
            began = time.perf_counter()
            for body in self._bodies:
                pool.request("POST", url, body=body, headers=self._type)
            return time.perf_counter() - began


class HttpEventStation(HttpStation):
    """One event in a request."""

    loop = "urllib3 POST of ready events, one by one"
    options: ClassVar[Mapping[str, Any]] = {"concurrency": 1}

    def start(self) -> None:
        self._server = self.stack.enter_context(Sponge())
        self._bodies = self.values()
        self._type = {"Content-Type": "application/json"}


class HttpThreadsStation(HttpStation):
    """As many connections as the sink has by default; the plain loop keeps no order between them."""

    loop = "urllib3 POST of ready bodies of 500 events from 8 threads"
    options: ClassVar[Mapping[str, Any]] = {"mode": "batch", "max_events": HttpStation.events}

    def plain(self, target: str) -> float:
        import urllib3

        url, threads = f"{self._server.url}/{target}", HttpConfig.model_fields["concurrency"].default

        def post(body: bytes) -> None:
            pool.request("POST", url, body=body, headers=self._type)

        with urllib3.PoolManager(maxsize=threads, block=True) as pool, ThreadPoolExecutor(threads) as crew:
            list(crew.map(post, [b""] * threads))
            began = time.perf_counter()
            list(crew.map(post, self._bodies))
            return time.perf_counter() - began


class PostgresStation(Station):
    """The sink keeps the newest row of each key; the plain loop only appends all of them."""

    loop = "COPY of ready text into a table with the same key"

    def start(self) -> None:
        self._server = self.stack.enter_context(Postgres(durable=False, shared_buffers="256MB", autovacuum=False))
        self._text = b"".join(self._copy_text(block) for block in self.material.blocks())

    def config(self, target: str) -> dict[str, Any]:
        return {"dsn": self._server.dsn(), "table": target}

    def plain(self, target: str) -> float:
        self._server.query(
            f"CREATE TABLE {target} (number bigint PRIMARY KEY, id bigint, customer_id int, amount numeric(12,2), "
            "status varchar(20), note text, created_at timestamptz, flag boolean, score double precision)"
        )
        return copy(self._server, target, self._text)

    @staticmethod
    def _copy_text(block: Block) -> bytes:
        columns = [block.column("offset"), *(block.struct("after") or {}).values()]
        rows = zip(*(column.to_pylist() for column in columns if column is not None), strict=True)
        return b"".join("\t".join(map(str, row)).encode() + b"\n" for row in rows)


class ClickHouseStation(Station):
    """The engine behind our HTTP front, for the sink and for the plain loop alike."""

    loop = "clickhouse-connect insert_arrow() of a ready table"

    def start(self) -> None:
        self._server = self.stack.enter_context(ClickHouse(self.scratch / "clickhouse"))
        after = [pa.RecordBatch.from_struct_array(block.column("after")) for block in self.material.blocks()]
        self._rows = pa.Table.from_batches(after)

    def config(self, target: str) -> dict[str, Any]:
        return {"url": self._server.url, "database": "default", "table": target}

    def plain(self, target: str) -> float:
        import clickhouse_connect

        client = clickhouse_connect.get_client(port=self._server.port, compress=False)
        client.command(
            f"CREATE TABLE {target} (id Int64, customer_id Nullable(Int32), amount Nullable(Decimal(12, 2)), "
            "status Nullable(String), note Nullable(String), created_at Nullable(DateTime64(6, 'UTC')), "
            "flag Nullable(Bool), score Nullable(Float64)) ENGINE = ReplacingMergeTree ORDER BY id"
        )
        began = time.perf_counter()
        for at in range(0, len(self._rows), 131_072):
            client.insert_arrow(target, self._rows.slice(at, 131_072))
        spent = time.perf_counter() - began
        client.close()
        return spent


class StarRocksStation(Station):
    """The stand-in, for both. What the sink sent to its first table is sent again, as it was."""

    loop = "Stream Load of ready bodies (the sink's own)"

    def start(self) -> None:
        self._server = self.stack.enter_context(StarRocks(self.scratch / "starrocks"))
        self._ready: list[tuple[Mapping[str, str], bytes]] = []
        load = StreamLoads.load

        def recorded(
            loads: StreamLoads, database: str, table: str, label: str, headers: Mapping[str, str], body: bytes
        ) -> bool:
            if table == "warm":
                self._ready.append((headers, body))
            return load(loads, database, table, label, headers, body)

        StreamLoads.load = recorded  # type: ignore[method-assign, assignment]
        self.stack.callback(setattr, StreamLoads, "load", load)

    def config(self, target: str) -> dict[str, Any]:
        return {
            "url": f"http://127.0.0.1:{self._server.http_port}", "mysql_port": self._server.mysql_port,
            "database": "bench", "table": target,
        }  # fmt: skip

    def plain(self, target: str) -> float:
        url = f"http://127.0.0.1:{self._server.http_port}"
        loads = StreamLoads(url, self._server.user, self._server.password, "bench", 10, 60)
        ready = list(self._ready)
        began = time.perf_counter()
        for number, (headers, body) in enumerate(ready):
            loads.load("bench", "warm", f"{target}-{number}", headers, body)
        self._ready[:] = ready
        return time.perf_counter() - began


class NatsStation(Station):
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


class S3Station(Station):
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


class PgstreamStation(Station):
    """The plain consumer has no groups, no visibility timeout and no order to keep; what it takes is gone at once."""

    loop = "COPY of ready text into a table with offset, key and payload"
    pull_loop = f"DELETE of the first {PULLED:,} rows of that table FOR UPDATE SKIP LOCKED, RETURNING them"

    def start(self) -> None:
        self._server = self.stack.enter_context(Postgres(durable=False, shared_buffers="256MB", autovacuum=False))
        pairs = enumerate(zip(self.keys(), self.values(), strict=True))
        self._text = b"".join(
            b"%d\t%s\t%s\n" % (number, _escaped(key), _escaped(value)) for number, (key, value) in pairs
        )

    def config(self, target: str) -> dict[str, Any]:
        return {"dsn": self._server.dsn(), "stream": target}

    def plain(self, target: str) -> float:
        self._server.query(f"CREATE TABLE {target} (number bigint PRIMARY KEY, key text, payload text)")
        return copy(self._server, target, self._text)

    def pulls(self, ours: str, plain: str) -> tuple[float, float]:
        statement = (
            f"DELETE FROM {plain} WHERE number IN "
            f"(SELECT number FROM {plain} ORDER BY number LIMIT {PULLED} FOR UPDATE SKIP LOCKED) RETURNING *"
        )
        with self._server.connect() as connection:
            taken, began = 0, time.perf_counter()
            while rows := connection.execute(statement.encode()).fetchall():
                taken += len(rows)
            without = time.perf_counter() - began
        with Client(self._server.dsn()) as client:
            group = client.group(ours, "bench")
            began = time.perf_counter()
            while messages := group.pull(PULLED):
                taken -= len(group.ack(*messages).done)
            spent = time.perf_counter() - began
        assert not taken, "both consumers are given every message once"
        return spent, without


def copy(server: Postgres, table: str, text: bytes) -> float:
    """Seconds of one COPY in one transaction."""
    began = time.perf_counter()
    with server.connect() as connection:
        with connection.cursor().copy(f"COPY {table} FROM STDIN") as rows:
            for at in range(0, len(text), 1 << 20):
                rows.write(text[at : at + (1 << 20)])
        connection.commit()
    return time.perf_counter() - began


def _escaped(text: bytes) -> bytes:
    return text.replace(b"\\", b"\\\\")


# What has a colon is another way to use the sink before it, and is measured only if it is named.
STATIONS: dict[str, type[Station]] = {
    "clickhouse": ClickHouseStation,
    "files": FilesStation,
    "http": HttpStation,
    "http:event": HttpEventStation,
    "http:threads": HttpThreadsStation,
    "kafka": KafkaStation,
    "nats": NatsStation,
    "pgstream": PgstreamStation,
    "postgres": PostgresStation,
    "redis": RedisStation,
    "s3": S3Station,
    "starrocks": StarRocksStation,
}
