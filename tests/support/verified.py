"""A source and a sink of any kind, for `tidemill verify`; rows are brought over without a running pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from tidemill import config
from tidemill.contracts import SnapshotSource
from tidemill.errors import Poisoned
from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.servers.seaweedfs import SeaweedFS
from tidemill.lab.servers.starrocks_standin import StarRocks
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.model.snapshot import Chunk
from tidemill.model.unlogged import with_place
from tidemill.service.redelivery.event_chain import EventChain

SINKS = ("postgres", "clickhouse", "starrocks", "files", "s3", "kafka")
_names = itertools.count(1)


@dataclass
class VerifiedPair:
    """`copy` brings what the source has now; `refused` are the keys that the sink did not take."""

    pipeline: config.Pipeline
    refused: set[tuple[str, str]] = field(default_factory=set)
    _offset: int = 0

    def copy(self) -> None:
        """As a snapshot of one batch per table, later than all before it."""
        source = self.pipeline.build_source()
        assert isinstance(source, SnapshotSource)
        blocks: list[Block] = []
        with closing(source.snapshot_reader()) as reader:
            for table in reader.tables():
                with reader.read(Chunk(table.name, 0), table, []) as reading:
                    blocks += [with_place(block) for block in reading.blocks()]
        (spec,) = self.pipeline.spec.sinks
        with closing(self.pipeline.build_sink(spec)) as sink:
            for block in blocks:
                self._write(sink, self._shifted(block))

    def _shifted(self, block: Block) -> Block:
        offsets = np.arange(self._offset, self._offset + block.rows, dtype=np.uint64)
        self._offset += block.rows
        return Block(block.table, block.batch.set_column(0, block.batch.schema.field(0), offsets))

    def _write(self, sink: Any, block: Block) -> None:
        while block.rows:
            offsets = block.offsets()
            blocks = partial(iter, [block])
            delivery = Delivery("orders", "shop", int(offsets[0]), self._offset, 0, 1, blocks, redelivered=True)
            try:
                with closing(EventChain(self.pipeline)) as chain, chain.processed(delivery) as processed:
                    sink.write(processed)
                return
            except Poisoned as error:
                bad = np.isin(offsets, np.array(list(error.reasons), np.uint64))
                keys = (block.struct("after") or {})["id"].to_pylist()
                self.refused |= {(block.table.full_name, str(keys[row])) for row in np.flatnonzero(bad)}
                block = block.take(np.flatnonzero(~bad))


@contextmanager
def verified_pair(
    source: str, dsn: str, tables: list[str], sink: dict[str, Any], folder: Path, processors: str = "[]"
) -> Iterator[VerifiedPair]:
    """`sink`: its type and config."""
    path = folder / "orders.yaml"
    listed = orjson.dumps(tables).decode()
    path.write_text(
        "metadata: {name: orders}\nspec:\n"
        f"  source: {{type: {source}, config: {{id: shop, dsn: '{dsn}', tables: {listed}}}}}\n"
        f"  processors: {processors}\n"
        f"  sinks: [{orjson.dumps(sink).decode()}]\n"
        f"  state_dir: {folder}/state\n"
    )
    (pipeline,) = config.load(path)
    pipeline.state_path.mkdir(parents=True, exist_ok=True)
    yield VerifiedPair(pipeline)


class SinkServers:
    """Servers of sinks, started when they are first asked for."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request, self._stack = request, ExitStack()
        self._started: dict[str, Any] = {}

    def sink(self, kind: str, folder: Path) -> dict[str, Any]:
        """A place of its own at each call."""
        name = f"verified{next(_names)}"
        return {"type": kind, "config": {"id": "copy", **getattr(self, f"_{kind}")(name, folder)}}

    def close(self) -> None:
        self._stack.close()

    def _server(self, kind: type[Any]) -> Any:
        if kind.__name__ not in self._started:
            self._started[kind.__name__] = self._stack.enter_context(kind())
        return self._started[kind.__name__]

    def _postgres(self, name: str, folder: Path) -> dict[str, Any]:
        server: Postgres = self._request.getfixturevalue("postgres18")
        return {"dsn": self._stack.enter_context(server.database(name))}

    def _clickhouse(self, name: str, folder: Path) -> dict[str, Any]:
        return {"url": self._server(ClickHouse).url, "database": name}

    def _starrocks(self, name: str, folder: Path) -> dict[str, Any]:
        server: StarRocks = self._server(StarRocks)
        return {
            "url": f"http://127.0.0.1:{server.http_port}", "mysql_port": server.mysql_port,
            "backend": f"127.0.0.1:{server.backend_port}", "database": name,
        }  # fmt: skip

    def _files(self, name: str, folder: Path) -> dict[str, Any]:
        return {"path": str(folder / name)}

    def _s3(self, name: str, folder: Path) -> dict[str, Any]:
        server: SeaweedFS = self._server(SeaweedFS)
        server.bucket(name)
        return {
            "bucket": name, "endpoint": server.endpoint, "access_key_id": server.access_key,
            "secret_access_key": server.secret_key, "compression": "gzip",
        }  # fmt: skip

    def _kafka(self, name: str, folder: Path) -> dict[str, Any]:
        return {"brokers": self._request.getfixturevalue("kafka").bootstrap, "topic": f"{name}-${{source.table}}"}
