"""Pieces on their way to ClickHouse: one is with the server while the next one is made, never two.

A client is for one statement at a time, so whoever asks the server for anything else calls `settle` first. That is also
when a piece that was refused is looked at.
"""

from __future__ import annotations

import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.delivery import Delivery
from tidemill.net.clickhouse import DATA_ERRORS, code_of, explain, name_of, quote
from tidemill.sinks._shared.images import Verdicts
from tidemill.sinks.clickhouse.server_table import ClickHouseTableName
from tidemill.telemetry.failpoints import failpoint

if TYPE_CHECKING:
    from tidemill.sinks.clickhouse import ClickHouseConfig

_SEARCHES = 400
"""Inserts that a search for refused rows may take. What it has found by then is reported, the next attempt goes on."""


class Sender:
    """Of one delivery. `version` is the column that tells rows apart, `waited` the seconds without anything to do."""

    def __init__(
        self, config: ClickHouseConfig, client: Any, delivery: Delivery, version: str, verdicts: Verdicts, where: str
    ) -> None:
        self.bytes = 0
        self.waited = 0.0
        self._config = config
        self._client = client
        self._delivery = delivery
        self._version = version
        self._verdicts = verdicts
        self._where = where
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="clickhouse")
        self._under_way: tuple[ClickHouseTableName, pa.Table, Future[None]] | None = None

    def send(self, name: ClickHouseTableName, rows: pa.Table) -> None:
        """Returns when the piece before this one is written; nothing is sent if some of that was refused."""
        body = encode(rows, self._config.compression)
        self.settle()
        if not self._verdicts.reasons:
            self._under_way = name, rows, self._thread.submit(self._insert, name, rows, body)

    def settle(self) -> None:
        """Until the piece that is under way is written, or its refused rows are known."""
        if self._under_way is None:
            return
        from clickhouse_connect.driver.exceptions import ClickHouseError

        (name, rows, sending), self._under_way = self._under_way, None
        began = time.perf_counter()
        try:
            sending.result()
        except ClickHouseError as error:
            if code_of(error) not in DATA_ERRORS:
                raise explain(error, self._where) from error
            self._search(name, rows)
        finally:
            self.waited += time.perf_counter() - began

    def close(self) -> None:
        """Waits for the piece that is under way; what became of it matters to nobody any more."""
        self._thread.shutdown()

    def _insert(self, name: ClickHouseTableName, rows: pa.Table, body: pa.Buffer) -> None:
        failpoint("clickhouse.inserting")
        self._client.raw_insert(
            str(name), column_names=[quote(n) for n in rows.column_names], insert_block=body, fmt="ArrowStream",
            settings={
                "async_insert": 0,  # the answer means: written
                "input_format_null_as_default": 1,  # of deleted rows only; NULLs of others are looked for before
                "max_insert_block_size": max(rows.num_rows, 1_048_576),
                **self._config.settings,
                "insert_deduplication_token": self._token(name, rows, body),
            },
        )  # fmt: skip
        failpoint("clickhouse.inserted")
        self.bytes += body.size

    def _token(self, name: ClickHouseTableName, rows: pa.Table, body: pa.Buffer) -> str:
        """What the piece brings is part of it: with other rows left out as dead letters, or after a processor has
        changed, the same bounds stand for other rows, which must not pass as written."""
        delivery, versions = self._delivery, rows.column(self._version)
        batch = f"{delivery.start}-{delivery.end}/{delivery.lane}of{delivery.lanes}"
        bounds = pc.min_max(versions)
        piece = f"{bounds['min'].as_py()}-{bounds['max'].as_py()}x{rows.num_rows}/{zlib.crc32(body):08x}"
        return f"{delivery.pipeline}/{self._config.id}/{batch}/{name.plain}/{piece}"

    def _search(self, name: ClickHouseTableName, rows: pa.Table) -> None:
        """Halves a refused piece until the refused rows stand alone. Halves that are taken are no harm: their rows come
        again with the same versions, or are left out as known offsets."""
        from clickhouse_connect.driver.exceptions import ClickHouseError

        reasons = self._verdicts.reasons
        parts, inserts = [rows], 0
        while parts and (inserts < _SEARCHES or not reasons):
            part = parts.pop()
            try:
                inserts += 1
                self._insert(name, part, encode(part, self._config.compression))
            except ClickHouseError as error:
                if code_of(error) not in DATA_ERRORS:
                    raise explain(error, self._where) from error
                if part.num_rows == 1:
                    offset = part.column(self._version)[0].as_py() - self._config.offset_base
                    reasons.setdefault(offset, f"ClickHouse refused the row: {name_of(error)}")
                else:
                    half = part.num_rows // 2
                    parts += [part.slice(half), part.slice(0, half)]


def encode(rows: pa.Table, compression: str) -> pa.Buffer:
    """An Arrow stream of one batch."""
    stream = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    with pa.ipc.new_stream(stream, rows.schema, options=options) as writer:
        writer.write_table(rows.combine_chunks())
    return stream.getvalue()
