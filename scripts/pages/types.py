"""Pages of types: of sources, of sinks that create tables, and of the wire formats."""

from __future__ import annotations

import orjson
import pyarrow as pa

from pages import NOTE
from tidemill.decoders._shared.mysql import types as mysql_types
from tidemill.decoders.sqlite import BUILT_IN as SQLITE_TYPES
from tidemill.decoders.sqlite import RULES as SQLITE_TEXTS
from tidemill.decoders.sqlite import data_type as sqlite_type
from tidemill.formats.avro import schema as avro_schema
from tidemill.formats.protobuf import schema as protobuf_schema
from tidemill.model import postgres_types
from tidemill.sinks.clickhouse import types as clickhouse_types
from tidemill.sinks.postgres import types as postgres_sink_types
from tidemill.sinks.starrocks import types as starrocks_types


def type_page() -> str:
    rows = [
        f"| `{name}` | `{arrow}` | {form} | {remark} |"
        for name, arrow, form, remark in postgres_types.BUILT_IN.values()
    ]
    rules = [f"| {what} | {arrow} | {form} | {remark} |" for what, arrow, form, remark in postgres_types.RULES]
    head = [
        "# PostgreSQL types\n",
        NOTE,
        "Nothing is lost. What a JSON number cannot carry is a string. Where this page says *as text*, the Arrow type",
        "has no such value: it is null in its column, and its exact text is beside it in the block's `odd` column;",
        "JSON shows that text. `tests/decoders/pgoutput/test_types.py` lets the database be the judge of every type.\n",
        "| PostgreSQL | Arrow | JSON | |",
        "|---|---|---|---|",
        *rows,
        "\n## Types with parameters or parts\n",
        "| PostgreSQL | Arrow | JSON | |",
        "|---|---|---|---|",
        *rules,
    ]
    return "\n".join([*head, ""])


def clickhouse_page() -> str:
    rows = [f"| {postgres} | {mysql} | {made} | {remark} |" for postgres, mysql, made, remark in clickhouse_types.RULES]
    head = [
        "# ClickHouse types\n",
        NOTE,
        "What a column becomes in a table that the [clickhouse](../sinks/clickhouse.md) sink creates. It is `Nullable`",
        "where the source's column is, and never in the key. *Dead letter* means that the event is not written: it",
        "goes to the [dead letters](../dead-letters.md) if they are on, else it stops the pipeline. A value is never",
        "clamped, wrapped or turned into NULL.\n",
        "| PostgreSQL | MySQL, MariaDB | ClickHouse | |",
        "|---|---|---|---|",
        *rows,
    ]
    return "\n".join([*head, ""])


def starrocks_page() -> str:
    rows = [f"| {postgres} | {mysql} | {made} | {remark} |" for postgres, mysql, made, remark in starrocks_types.RULES]
    head = [
        "# StarRocks types\n",
        NOTE,
        "What a column becomes in a table that the [starrocks](../sinks/starrocks.md) sink creates. Columns outside",
        "the key can be NULL. *Dead letter* means that the event is not written: it goes to the",
        "[dead letters](../dead-letters.md) if they are on, else it stops the pipeline.\n",
        "| PostgreSQL | MySQL, MariaDB | StarRocks | |",
        "|---|---|---|---|",
        *rows,
    ]
    return "\n".join([*head, ""])


def postgres_sink_page() -> str:
    rows = [f"| {source} | {made} | {remark} |" for source, made, remark in postgres_sink_types.RULES]
    head = [
        "# Types of the postgres sink\n",
        NOTE,
        "What a column becomes in a table that the [postgres](../sinks/postgres.md) sink creates. A value that the",
        "type refuses is not written: its event goes to the [dead letters](../dead-letters.md) if they are on, else it",
        "stops the pipeline. Nothing is clamped or turned into NULL.\n",
        "| source | created | |",
        "|---|---|---|",
        *rows,
    ]
    return "\n".join([*head, ""])


def mysql_type_page() -> str:
    known = mysql_types.BUILT_IN.items()
    rows = [f"| `{name}` | `{arrow}` | {form} | {remark} |" for name, (arrow, form, remark) in known]
    rules = [f"| {what} | {arrow} | {form} | {remark} |" for what, arrow, form, remark in mysql_types.RULES]
    head = [
        "# MySQL and MariaDB types\n",
        NOTE,
        "Nothing is lost. What a JSON number cannot carry is a string. Where this page says *as text*, the Arrow type",
        "has no such value: it is null in its column, and its exact text is beside it in the block's `odd` column;",
        "JSON shows that text. `tests/decoders/binlog/test_types.py` lets both servers be the judge of every type.\n",
        "| MySQL, MariaDB | Arrow | JSON | |",
        "|---|---|---|---|",
        *rows,
        "\n## Types with parameters, and exceptions\n",
        "| MySQL, MariaDB | Arrow | JSON | |",
        "|---|---|---|---|",
        *rules,
        "\n## Row images\n",
        "With `binlog_row_image=FULL` an UPDATE and a DELETE bring the whole old row (`before`). With `MINIMAL` and",
        "`NOBLOB` they bring less, of which only the key is kept (`key`): of the other columns nobody could tell what",
        "was NULL from what was not sent. Columns that are missing from a new row are taken from the old one where it",
        "has them; the others are `unchanged`. Of an INSERT they are the columns that got their default value.",
    ]
    return "\n".join([*head, ""])


def sqlite_type_page() -> str:
    rows = []
    for names, affinity, _, remark in SQLITE_TYPES:
        made = sqlite_type("" if names.startswith("none") else names.partition(",")[0])
        rows.append(f"| {names} | {affinity} | `{made.arrow}` | {made.json} | {remark} |")
    head = [
        "# SQLite and Turso types\n",
        NOTE,
        "Nothing is lost. A declared type says what a column is expected to hold; any value may stand in any column of",
        "a table that is not STRICT. One of another storage class is null in its column, and its exact text is beside",
        "it in the block's `odd` column; JSON shows that text, which outside of keys may be that of a value of another",
        "class: `1` and `'1'` are told apart in the block and not in JSON. In a key no two values have one text, so",
        "destinations keep apart what SQLite keeps apart. A type's name is written in capitals.",
        "`tests/decoders/sqlite/test_values.py` lets SQLite be the judge of every type.\n",
        "| declared | affinity | Arrow | JSON | |",
        "|---|---|---|---|---|",
        *rows,
        "\n## Values of another class, as text\n",
        "| class | text |",
        "|---|---|",
        *(f"| {kind} | {text} |" for kind, text in SQLITE_TEXTS),
        "\nIn a column of the primary key a text that looks like one of these forms is in quotes, too, where the",
        "column may hold both: without a declared type, `1` is the integer and `'1'` the text. A key declared `BLOB`,",
        "whose blobs JSON shows in base64, has every text in quotes, and numbers as `CAST(42 AS INTEGER)` and",
        "`CAST(0.5 AS REAL)`.",
    ]
    return "\n".join([*head, ""])


def format_page() -> str:
    rows = []
    for kind, shown in _FORMAT_TYPES:
        proto, remark = protobuf_schema.type_of(kind)
        avro = orjson.dumps(avro_schema.type_of(kind)).decode().strip('"')
        rows.append(f"| `{kind}` | {shown} | `{avro}` | `{proto}`{', ' if remark else ''}{remark} |")
    head = [
        "# Types and field numbers of the wire formats\n",
        NOTE,
        "What a column's Arrow type becomes. Which Arrow type a column has is on the type page of its database.",
        "Arrow and Parquet have the Arrow type itself. In Avro a column is a union with null, in Protobuf it is",
        "`optional`.\n",
        "| Arrow | JSON | Avro | Protobuf |",
        "|---|---|---|---|",
        *rows,
        "",
        "`ListOf…` is a message that says which elements are null:",
        "`message ListOfString { message Item { optional string value = 1; } repeated Item items = 1; }`.",
        "",
        "## Field numbers of the envelopes in Protobuf",
        "",
        "A number, once given, is never given to another field. Columns are numbered as [formats](../formats.md) says.",
    ]
    tables = {
        "Event": protobuf_schema.NATIVE, "Envelope (Debezium)": protobuf_schema.DEBEZIUM,
        "Source (Debezium)": protobuf_schema.SOURCE,
    }  # fmt: skip
    for name, numbers in tables.items():
        head += [f"\n| {name} | |", "|---|---|", *(f"| {number} | `{field}` |" for field, number in numbers.items())]
    return "\n".join([*head, ""])


_FORMAT_TYPES: tuple[tuple[pa.DataType, str], ...] = (
    *((kind, "number") for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *((kind, "number") for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    *((kind, "number, or NaN and infinities as text") for kind in (pa.float32(), pa.float64())),
    (pa.bool_(), "true, false"),
    *((kind, "string with every digit") for kind in (pa.decimal128(12, 2), pa.decimal256(65, 30))),
    (pa.string(), "string, or embedded if it is JSON"),
    (pa.binary(), "base64"),
    *((kind, "ISO 8601") for kind in (pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", tz="UTC"))),
    *((kind, "array") for kind in (pa.list_(pa.int32()), pa.list_(pa.string()))),
)
