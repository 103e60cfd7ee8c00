"""Values of SQLite and Turso as columns: storage classes, records, declared types. No I/O.

`sources/sqlite` fills cells from a change table, `sources/turso` from records; both make blocks here.
"""

from tidemill.decoders._shared.sides import table_runs
from tidemill.decoders.sqlite.blocks import RowChanges, SchemaStatement, block_of, ddl_block, truncate_block
from tidemill.decoders.sqlite.cells import (
    ABSENT,
    BLOB,
    INTEGER,
    NULL,
    REAL,
    TEXT,
    SqliteCells,
    TextBytes,
    cells_of,
    differs,
)
from tidemill.decoders.sqlite.columns import shows_number, to_arrow
from tidemill.decoders.sqlite.records import JoinedRecords, read_records, write_record
from tidemill.decoders.sqlite.structure import SCHEMA, SqliteColumn, SqliteTable, column_changes
from tidemill.decoders.sqlite.types import BUILT_IN, RULES, SqliteKind, data_type, kind_of

__all__ = [
    "ABSENT",
    "BLOB",
    "BUILT_IN",
    "INTEGER",
    "NULL",
    "REAL",
    "RULES",
    "SCHEMA",
    "TEXT",
    "JoinedRecords",
    "RowChanges",
    "SchemaStatement",
    "SqliteCells",
    "SqliteColumn",
    "SqliteKind",
    "SqliteTable",
    "TextBytes",
    "block_of",
    "cells_of",
    "column_changes",
    "data_type",
    "ddl_block",
    "differs",
    "kind_of",
    "read_records",
    "shows_number",
    "table_runs",
    "to_arrow",
    "truncate_block",
    "write_record",
]
