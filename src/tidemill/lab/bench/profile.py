"""Where the time goes between the socket and the encoded event: each stage alone, over the same recorded stream.

The stream is recorded once from a real server; then every stage runs over it in this process, on one core, and is
timed by its CPU. The sum is what capture and one worker spend; the server's own cost is not in it.
"""

from __future__ import annotations

import cProfile
import pstats
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidemill.decoders.pgoutput import DescribedBy, PgOutputDecoder
from tidemill.formats.json import JsonFormat
from tidemill.lab.bench import load
from tidemill.log.config import LogConfig
from tidemill.log.reader import LogReader
from tidemill.log.writer import LogWriter
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.postgres import PostgresConfig, PostgresSource

_READ_BYTES = 8 << 20

#: Functions of the decoder that are stages of their own in the report.
_STAGES = {"scan": "scan frames", "cut": "find cells", "copy": "copy text", "_meta": "meta columns"}


def profile_postgres(rows: int) -> dict[str, Any]:
    rows -= rows % 1000
    with load.server() as database, tempfile.TemporaryDirectory(prefix="tidemill-profile-") as scratch:
        load.prepare(database, ["profile"])
        load.change(database, rows)
        settings = PostgresConfig(
            id="bench", dsn=database.dsn(), tables=("public.bench",), slot="profile", publication=load.PUBLICATION
        )
        source = PostgresSource(settings)
        schemas = SchemaRegistry(Path(scratch) / "registry.sqlite")
        try:
            source.open(None, schemas)
            decoder = source.decoder
            recorded, reading = _record(source, decoder, rows)
            for _ in range(2):  # the first pass loads the kernels
                decoder = PgOutputDecoder(
                    DescribedBy(
                        lambda relation, names: schemas.register(
                            source.catalog.describe(relation, names), Position("0/0")
                        )
                    ),
                    source.server_message,
                )
                profiler = cProfile.Profile(time.process_time)
                began = time.process_time()
                profiler.enable()
                changes = list(_decode(decoder, recorded))
                profiler.disable()
                decoding = time.process_time() - began
        finally:
            source.close()
            schemas.close()
        stages = {"read socket": reading, **_split(profiler, decoding)}
        stages |= _log_and_encode(changes, Path(scratch) / "log")
    total = sum(stages.values())
    return {
        "rows": rows,
        "stages": [
            {"stage": name, "us_per_row": round(seconds / rows * 1e6, 4), "share": seconds / total}
            for name, seconds in stages.items()
        ],
        "total_us_per_row": round(total / rows * 1e6, 3),
    }


def _record(source: PostgresSource, decoder: PgOutputDecoder, rows: int) -> tuple[bytes, float]:
    """The stream's bytes, and the CPU it took to read them (decoding, needed to know the end, is not counted)."""
    recorded, reading, seen = bytearray(), 0.0, 0
    while seen < rows:
        began = time.process_time()
        view = source.read()
        reading += time.process_time() - began
        seen += sum(change.events for change in decoder.feed(view) if isinstance(change, Committed))
        recorded += view[: decoder.consumed]
        source.consumed(decoder.consumed)
    return bytes(recorded), reading


def _decode(decoder: PgOutputDecoder, recorded: bytes) -> Iterator[Committed]:
    view, low, high = memoryview(recorded), 0, 0
    while high < len(view):
        high = min(len(view), high + _READ_BYTES)
        for change in decoder.feed(view[low:high]):
            if isinstance(change, Committed):
                yield change
        low += decoder.consumed


def _split(profiler: cProfile.Profile, total: float) -> dict[str, float]:
    spent: dict[str, float] = dict.fromkeys(_STAGES.values(), 0.0)
    for (_, _, name), (_, _, own, cumulative, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        if name in _STAGES:
            spent[_STAGES[name]] += cumulative if name == "_meta" else own
    return {**spent, "parse values": max(0.0, total - sum(spent.values()))}


def _log_and_encode(changes: list[Committed], directory: Path) -> dict[str, float]:
    log = LogWriter.open(str(directory), LogConfig.model_validate({}))
    began = time.process_time()
    for change in changes:
        log.append(change)
    appending = time.process_time() - began
    log.close()
    reader, form = LogReader(str(directory)), JsonFormat()
    began = time.process_time()
    blocks = [reader.read(ref) for ref in reader.refs(0, reader.tail().offset)]
    reading = time.process_time() - began
    form.encode(blocks[0], "bench")
    began = time.process_time()
    for block in blocks:
        form.encode(block, "bench")
    return {"append to the log": appending, "read from the log": reading, "encode JSON": time.process_time() - began}
