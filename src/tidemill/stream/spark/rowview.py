"""The change log as Spark rows: `format("tidemill")`, for SQL, notebooks and other streams. See docs/spark.md.

    register(spark)
    spark.readStream.format("tidemill").option("log", uri).option("table", "public.orders").load()

One row per change of one table, typed by the newest schema version in the log when the query begins: older changes
have null in columns that came later. It reads the log only; a pipeline that delivers the same log is not disturbed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from tidemill.errors import ConfigError, LogError
from tidemill.log import BlockRef, LogReader
from tidemill.log.requeued import requeued_for
from tidemill.model.block import Block, Op, Side
from tidemill.model.position import Offset
from tidemill.model.table import Table
from tidemill.stream.spark.rowtypes import convert, spark_type

NAME = "tidemill"

META = {
    "op": "string",
    "offset": "bigint",
    "position": "string",
    "tx_id": "bigint",
    "ordinal": "bigint",
    "commit_time": "timestamp",
    "unchanged": "array<string>",  # columns the source did not send: null here, but not NULL in the database
    "odd": "map<string,string>",  # exact text of values that have no place in their column's type (NaN, infinity)
}

_ROWS_PER_TASK = 200_000


class RowView(DataSource):
    """Options: `log` and `table`; `start` and `end` (offsets; by default all there is); `max_events` of a micro-batch;
    `prefix` of the columns about the change, by default an underscore."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        table = newest(LogReader(self._option("log")), self._option("table"))
        prefix = self.options.get("prefix", "_")
        clash = [c.name for c in table.columns if c.name.startswith(prefix) and c.name.removeprefix(prefix) in META]
        if clash:
            raise ConfigError(
                f"{table.full_name} has a column {clash[0]}, which the row view needs for itself",
                fix='Choose other names for the columns about the change: .option("prefix", "change_")',
            )
        about = [f"`{prefix}{name}` {kind}" for name, kind in META.items()]
        return ", ".join(about + [f"`{_quote(c.name)}` {spark_type(c.type.arrow)}" for c in table.columns])

    def reader(self, schema: Any) -> DataSourceReader:
        return _RowReader(self._range(), schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _RowStream(self._range(), schema)

    def _range(self) -> dict[str, Any]:
        end = self.options.get("end")
        return {
            "log": self._option("log"), "table": self._option("table"), "prefix": self.options.get("prefix", "_"),
            "start": self.options.get("start"), "end": None if end is None else int(end),
            "max_events": int(self.options.get("max_events", "1000000")),
        }  # fmt: skip

    def _option(self, name: str) -> str:
        if name not in self.options:
            raise ConfigError(f'format("{NAME}") needs the option "{name}"', fix=f'Add .option("{name}", ...).')
        return str(self.options[name])


def register(spark: Any) -> None:
    """Makes `format("tidemill")` known to a session."""
    from tidemill.stream.spark.session import register_source  # of no use to workers

    register_source(spark, RowView)


def newest(log: LogReader, name: str) -> Table:
    """The table as its last block in the log describes it."""
    last: dict[str, BlockRef] = {ref.table: ref for entry in log.entries() for ref in entry.blocks}
    if name not in last:
        near = difflib.get_close_matches(name, last, n=1)
        known = f"There are: {', '.join(sorted(last))}." if last else "It holds no changes yet."
        hint = f'Did you mean "{near[0]}"? ' if near else ""
        raise ConfigError(f'the log has no table "{name}"', fix=hint + known)
    return log.read(last[name]).table


class _View:
    """What batch and stream have in common: tasks of whole blocks, and blocks as rows."""

    def __init__(self, span: dict[str, Any], schema: Any) -> None:
        self._span = span
        self._schema = schema

    def tasks(self, start: Offset, end: Offset) -> list[InputPartition]:
        tasks: list[list[str]] = [[]]
        rows = 0
        for ref in LogReader(self._span["log"]).refs(start, end) if start < end else []:
            if ref.table != self._span["table"] or requeued_for(ref):  # those stand in the log before, too
                continue
            if rows and rows + ref.rows > _ROWS_PER_TASK:
                tasks.append([])
                rows = 0
            tasks[-1].append(ref.to_json())
            rows += ref.rows
        return [InputPartition(task) for task in tasks]

    def start(self, log: LogReader) -> Offset:
        given = self._span["start"]
        return log.head() if given is None else int(given)

    def rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        log = LogReader(self._span["log"])
        target = to_arrow_schema(self._schema, timezone="UTC")
        for text in partition.value:
            block = log.read(BlockRef.from_json(text))
            if block.rows:
                yield rows(block, target, self._span["prefix"])


class _RowReader(_View, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        log = LogReader(self._span["log"])
        tail = log.tail().offset
        return self.tasks(self.start(log), tail if self._span["end"] is None else min(self._span["end"], tail))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.rows(partition)


class _RowStream(_View, DataSourceStreamReader, SupportsTriggerAvailableNow):
    _until: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {"offset": self.start(LogReader(self._span["log"]))}

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = LogReader(self._span["log"]).tail().offset

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        log = LogReader(self._span["log"])
        begin = start["offset"]
        stops = [log.tail().offset, self._span["end"], self._until]
        last = min(stop for stop in stops if stop is not None)
        if last <= begin:
            return start
        return {"offset": min(log.plan(begin, max_events=self._span["max_events"], max_bytes=1 << 40), last)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self.tasks(start["offset"], end["offset"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.rows(partition)


def rows(block: Block, target: pa.Schema, prefix: str) -> pa.RecordBatch:
    """The new row, or what is known of the old one where the change is a DELETE."""
    about = _about(block)
    images = [image for image in (block.struct(side) for side in ("after", "before", "key")) if image is not None]
    after = block.column("after")
    alive = None if after is None else after.is_valid()
    columns = []
    for field in target:
        name = field.name.removeprefix(prefix)
        if field.name.startswith(prefix) and name in about:
            columns.append(convert(about[name], field.type))
            continue
        found = [image[field.name] for image in images if field.name in image]
        try:
            columns.append(convert(_pick(found, alive, block.rows), field.type))
        except pa.ArrowInvalid as error:
            raise LogError(
                f"column {field.name} of {block.table.full_name} changed its type: version {block.table.version} has "
                f"values that are not {field.type}",
                fix='Read from after the change: .option("start", <offset>). `tidemill log ls` shows versions.',
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _pick(found: list[pa.Array], alive: pa.Array | None, count: int) -> pa.Array:
    """`after` for rows that live on, whatever it holds; the old image only for rows that are gone."""
    if not found:
        return pa.nulls(count)
    if alive is None or len(found) == 1:
        return found[0] if len(found) == 1 else pc.coalesce(*found)
    return pc.if_else(alive, found[0], found[1] if len(found) == 2 else pc.coalesce(*found[1:]))


def _about(block: Block) -> dict[str, pa.Array]:
    labels = pa.array([None] + [Op(code).label for code in range(1, max(Op) + 1)], pa.string())
    columns = {name: block.column(name) for name in ("offset", "position", "tx_id", "ordinal", "commit_time")}
    return {
        **{name: pa.nulls(block.rows) if column is None else column for name, column in columns.items()},
        "op": labels.take(block.column("op")),
        "unchanged": _find_unchanged(block),
        "odd": _odd(block),
    }


def _find_unchanged(block: Block) -> pa.Array:
    numbers = block.column("unchanged")
    kind = pa.list_(pa.string())
    if numbers is None:
        return pa.nulls(block.rows, kind)
    names = pa.array([column.name for column in block.table.columns], pa.string())
    start = numbers.offsets[0].as_py()
    offsets = pc.subtract(numbers.offsets, pa.scalar(start, pa.int32()))
    return pa.ListArray.from_arrays(offsets, names.take(numbers.flatten()), type=kind, mask=numbers.is_null())


def _odd(block: Block) -> pa.Array:
    """Rare, so rows are built one by one, but only those that have some."""
    values = block.column("odd")
    kind = pa.map_(pa.string(), pa.string())
    if values is None or values.null_count == len(values):
        return pa.nulls(block.rows, kind)
    names = [column.name for column in block.table.columns]
    after = block.column("after")
    found: list[list[tuple[str, str]] | None] = [None] * block.rows
    for row in pc.indices_nonzero(values.is_valid()).to_pylist():
        side = Side.AFTER if after is not None and after[row].is_valid else None
        kept = [o for o in values[row].as_py() if (o["side"] == Side.AFTER) == (side is Side.AFTER)]
        found[row] = [(names[o["column"]], o["text"]) for o in kept] or None
    return pa.array(found, kind)


def _quote(name: str) -> str:
    return name.replace("`", "``")
