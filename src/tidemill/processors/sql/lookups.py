"""Small tables that a query joins events with: a file, or a PostgreSQL query. They are loaded again by interval."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
import pyarrow as pa
from pydantic import Field, model_validator

from tidemill.errors import ConfigError, EnvironmentProblem
from tidemill.model.config import Config
from tidemill.net.pgsession import PgSession
from tidemill.telemetry.events import warn

_MAX_BYTES = 256 << 20
_ROWS = 10_000  # asked for at a time
_NUMERIC = 1700
#: By the type's number in PostgreSQL's catalog (pg_type.dat). What is not here has no one type in DuckDB.
_TYPES = {
    16: pa.bool_(), 21: pa.int16(), 23: pa.int32(), 20: pa.int64(), 700: pa.float32(), 701: pa.float64(),
    25: pa.string(), 1043: pa.string(), 1042: pa.string(), 19: pa.string(), 17: pa.binary(), 1082: pa.date32(),
    1114: pa.timestamp("us"), 1184: pa.timestamp("us", "UTC"),
}  # fmt: skip


class LookupConfig(Config):
    file: Path | None = Field(default=None, description="A .csv, .jsonl or .parquet file that the workers can read.")
    dsn: str | None = Field(
        default=None, description="A PostgreSQL database to ask, instead of a file.", json_schema_extra={"secret": True}
    )
    query: str | None = Field(default=None, description="What to ask it.")
    reload_seconds: float = Field(default=60, gt=0, description="How old it may get before it is loaded again.")

    @model_validator(mode="after")
    def _one(self) -> LookupConfig:
        if (self.file is None) == (self.dsn is None) or (self.dsn is None) != (self.query is None):
            raise ValueError("a lookup is either a file, or a dsn with a query")
        if self.file is not None and self.file.suffix not in (".csv", ".jsonl", ".parquet"):
            raise ValueError(f"a lookup's file is .csv, .jsonl or .parquet, not {self.file.suffix or 'without suffix'}")
        return self


class Lookup:
    def __init__(self, name: str, config: LookupConfig) -> None:
        self._name, self._config = name, config
        self._table: pa.Table | None = None
        self._loaded = 0.0

    def table(self) -> tuple[pa.Table, bool]:
        """The rows, and whether they were loaded just now. What cannot be loaded again stays as it was, and is said."""
        fresh = self._table is not None and time.monotonic() - self._loaded < self._config.reload_seconds
        if not fresh:
            try:
                found = self._load()
            except Exception as error:
                if self._table is None:
                    said = str(error).strip().split("\n", 1)[0]
                    raise EnvironmentProblem(
                        f'lookup "{self._name}" cannot be loaded: {type(error).__name__}: {said}',
                        fix="Make it readable for the machines that run workers.",
                    ) from error
                warn("processor.lookup_not_reloaded", lookup=self._name, error=type(error).__name__)
                self._loaded = time.monotonic()
                return self._table, False
            if self._table is not None and found.schema != self._table.schema:
                raise ConfigError(
                    f'lookup "{self._name}" has other columns or types than before',
                    fix="Restart the pipeline if that is meant: derived columns may change with it.",
                )
            self._table, self._loaded = found, time.monotonic()
        assert self._table is not None
        return self._table, not fresh

    def _load(self) -> pa.Table:
        table = _from_file(self._config.file) if self._config.file is not None else self._from_database()
        if table.nbytes > _MAX_BYTES:
            raise ValueError(f"it has {table.nbytes >> 20} MB; a lookup may have {_MAX_BYTES >> 20}")
        return table

    def _from_database(self) -> pa.Table:
        """Through a cursor of the server's, so that a table which is not small ends the load and not the worker."""
        assert self._config.dsn is not None
        assert self._config.query is not None
        with _Session.connect(self._config.dsn, connect_timeout=10) as connection:
            connection.read_only = True
            with connection.cursor(name="tidemill_lookup") as cursor:
                cursor.execute(self._config.query.encode())
                schema = pa.schema([(column.name, _type_of(column)) for column in cursor.description or ()])
                batches: list[pa.RecordBatch] = []
                while rows := cursor.fetchmany(_ROWS):
                    columns = [pa.array(c, kind) for c, kind in zip(zip(*rows, strict=True), schema.types, strict=True)]
                    batches.append(pa.record_batch(columns, schema=schema))
                    if sum(batch.nbytes for batch in batches) > _MAX_BYTES:
                        break  # `_load` says it
        return pa.Table.from_batches(batches, schema)


class _Session(PgSession):
    silence_seconds = 30.0


def _type_of(column: psycopg.Column) -> pa.DataType:
    """By what the database declares, not by values: a table that is empty today has the same types tomorrow."""
    if column.type_code == _NUMERIC:
        if column.precision is None:
            return pa.decimal128(38, 10)  # any number; one that does not fit is an error
        return pa.decimal128(column.precision, column.scale or 0)
    kind = _TYPES.get(column.type_code)
    if kind is None:
        raise ValueError(
            f'column "{column.name}" is of type {column.type_display}: cast it in the query, to text or so'
        )
    return kind


def _from_file(path: Path) -> pa.Table:
    match path.suffix:
        case ".csv":
            from pyarrow import csv

            return csv.read_csv(path)
        case ".jsonl":
            from pyarrow import json

            return json.read_json(path)
        case _:
            from pyarrow import parquet

            return parquet.read_table(path)
