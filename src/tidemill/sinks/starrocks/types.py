"""What a source's column becomes in StarRocks, and how its values are written in JSON for Stream Load. Pure.

The reference page is made of `RULES`.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import Refused
from tidemill.model.table import Column, Table
from tidemill.model.types import JsonForm
from tidemill.sinks._shared.images import FRAGMENT, Mask, Verdicts, digits

#: (PostgreSQL, MySQL, StarRocks, remark), in Markdown.
RULES: tuple[tuple[str, str, str, str], ...] = (
    ("`boolean`", "`bit(1)`", "`BOOLEAN`", ""),
    ("`smallint`, `integer`, `bigint`", "signed integers", "`TINYINT` … `BIGINT`", ""),
    ("`oid`, `xid`, `cid`", "`unsigned` integers, `year`, `bit(n)`", "the next wider type; `LARGEINT` for 64 bits", ""),
    ("`real`, `double precision`", "`float`, `double`", "`FLOAT`, `DOUBLE`",
     "NaN and infinities: dead letter; not in the key"),
    ("`numeric(p,s)`, p up to 38", "`decimal(p,s)`, p up to 38", "`DECIMAL(p,s)`", "NaN: dead letter; text in the key"),
    ("`numeric`, larger p, `money`", "`decimal(p,s)`, larger p", "`VARCHAR`", "the exact text"),
    ("`text`, `varchar`, an enum, …", "`char`, `varchar`, `text`, `enum`, `set`", "`VARCHAR(1048576)`",
     "in the key `VARCHAR(65533)`; longer values: dead letter"),
    ("`bytea`", "`binary`, `blob`, geometries", "`VARCHAR`", "base64: a Stream Load of JSON carries no bytes"),
    ("`uuid`, `time`", "`uuid` of MariaDB, `time`", "`VARCHAR`", "the text"),
    ("`json`, `jsonb`", "`json`", "`JSON`",
     "not in the key; where the binlog has only a change of the document: dead letter"),
    ("`date`", "`date`", "`DATE`", "years 0 to 9999; outside, infinity, zero dates: dead letter"),
    ("`timestamp`", "`datetime`, `timestamp`", "`DATETIME`", "microseconds, with time zone in UTC; likewise"),
    ("`element[]`", "`vector(n)` of MariaDB", "`ARRAY<element>`",
     "several dimensions: dead letter; not in the key"),
    ("every other type", "every other type", "`VARCHAR`", "the text the source prints"),
)  # fmt: skip

_MIN_DAY, _MAX_DAY = -719_528, 2_932_896  # 0000-01-01, 9999-12-31
_DAY_US = 86_400_000_000
_SIGNED = {8: "TINYINT", 16: "SMALLINT", 32: "INT", 64: "BIGINT"}
_UNSIGNED = {8: "SMALLINT", 16: "INT", 32: "BIGINT", 64: "LARGEINT"}
_WIDTH = {"TINYINT": 1, "SMALLINT": 2, "INT": 3, "BIGINT": 4, "LARGEINT": 5}
_DECIMAL = re.compile(r"^DECIMAL(?:32|64|128)?\((\d+),\s*(\d+)\)$")
TEXT, KEY_TEXT = "VARCHAR(1048576)", "VARCHAR(65533)"


def kind_of(column: Column, *, key: bool) -> str:
    text = KEY_TEXT if key else TEXT
    arrow = column.type.arrow
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        kind = f"ARRAY<{_scalar(arrow.value_type, TEXT)}>"
    elif column.type.json is JsonForm.RAW:
        kind = "JSON"
    else:
        kind = _scalar(arrow, text)
    if key and kind.startswith("DECIMAL"):
        return text  # a primary key cannot be of a decimal type
    if key and kind.startswith(("ARRAY", "JSON", "FLOAT", "DOUBLE")):
        raise Refused(
            f'the key column "{column.name}" is {column.type.native}, which a primary key of StarRocks cannot be',
            fix="Use another key at the source (REPLICA IDENTITY USING INDEX), or leave the table out.",
        )
    return kind


def kinds_of(table: Table) -> dict[str, str]:
    """Key columns first, as StarRocks wants them."""
    rest = [c for c in table.columns if c.name not in table.key]
    key = {c.name: kind_of(c, key=True) for c in table.key_columns()}
    return key | {c.name: kind_of(c, key=False) for c in rest}


def _scalar(arrow: pa.DataType, text: str) -> str:
    types = pa.types
    if types.is_boolean(arrow):
        return "BOOLEAN"
    if types.is_integer(arrow):
        return (_UNSIGNED if types.is_unsigned_integer(arrow) else _SIGNED)[arrow.bit_width]
    if types.is_floating(arrow):
        return "DOUBLE" if arrow.bit_width == 64 else "FLOAT"
    if types.is_decimal(arrow) and arrow.precision <= 38:
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    if types.is_date(arrow):
        return "DATE"
    if types.is_timestamp(arrow):
        return "DATETIME"
    return text


def plain(kind: str) -> str:
    """A type of `information_schema` in our words: `bigint(20)` is BIGINT, `decimal(12, 2)` DECIMAL(12,2)."""
    kind = kind.upper().replace(" ", "")
    if kind in ("TINYINT(1)", "BOOLEAN"):
        return "BOOLEAN"
    kind = re.sub(r"\b(TINYINT|SMALLINT|INT|BIGINT|LARGEINT)\(\d+\)", r"\1", kind)
    return re.sub(r"DECIMAL(32|64|128|V3)\(", "DECIMAL(", kind)


def holds(there: str, wanted: str) -> bool:
    """Whether a column takes every value. How long a text is, only the server can say, and it does."""
    there, wanted = plain(there), plain(wanted)
    if there == wanted or there.startswith(("VARCHAR", "STRING", "CHAR")):
        return True
    if there in _WIDTH and wanted in _WIDTH:
        return _WIDTH[there] >= _WIDTH[wanted]
    mine, theirs = _DECIMAL.match(there), _DECIMAL.match(wanted)
    if mine and theirs:
        fits = int(mine[1]) - int(mine[2]) >= int(theirs[1]) - int(theirs[2])
        return fits and int(mine[2]) >= int(theirs[2])
    return (there, wanted) == ("DOUBLE", "FLOAT")


def form_of(values: pa.Array, kind: str) -> JsonForm:
    if kind == "JSON":
        return JsonForm.RAW
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return JsonForm.BASE64
    return JsonForm.STRING


def default(column: Column, kind: str) -> tuple[bool, str | None]:
    """What rows that are there have in a new column, as its DEFAULT; None for NULL. First, whether there can be one."""
    assert column.initial is not None
    assert column.initial.value is not None
    if not column.initial.value.is_valid:
        return True, None
    if kind == "JSON" or kind.startswith("ARRAY"):
        return False, None
    verdicts = Verdicts()
    given = pa.repeat(column.initial.value, 1)
    value = fit(given, None, column, kind, np.zeros(1, np.uint64), np.ones(1, bool), verdicts)[0].as_py()
    if verdicts.reasons:
        return False, None
    if isinstance(value, bool):
        return True, str(int(value))
    return True, base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def fit(
    values: pa.Array, odd: pa.Array | None, column: Column, kind: str, offsets: np.ndarray[Any, Any], live: Mask,
    verdicts: Verdicts,
) -> pa.Array:  # fmt: skip
    """`values` as they are written in JSON; rows of `live` that the column cannot hold are condemned."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    is_text = kind.startswith(("VARCHAR", "STRING", "CHAR"))
    label = f'column "{column.name}" ({column.type.native}) has a value that {kind} cannot hold'
    if odd is not None:
        document = column.type.json is JsonForm.RAW
        if is_text and not document:
            return pc.coalesce(odd, _text(values).cast(odd.type))
        strange = odd.is_valid().to_numpy(zero_copy_only=False) & live
        verdicts.condemn(offsets, strange, f'column "{column.name}": {FRAGMENT}' if document else label)
        live = live & ~strange
    if pa.types.is_list(values.type):
        children = values.flatten()
        wrong = _wrong(children)
        if wrong is not None:
            rows = np.zeros(len(values), bool)
            rows[pc.list_parent_indices(values).to_numpy()[wrong]] = True
            verdicts.condemn(offsets, rows & live, label)
        return _lists(values, children)
    wrong = _wrong(values)
    if wrong is not None:
        verdicts.condemn(offsets, wrong & live, label)
    return _text(values) if is_text and not _is_bytes(values) else _write(values)


def _lists(values: pa.Array, children: pa.Array) -> pa.Array:
    lengths = pc.list_value_length(values).fill_null(0).to_numpy()
    starts = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    mask = values.is_null() if values.null_count else None
    return pa.ListArray.from_arrays(starts, _write(children), mask=mask)


def _wrong(values: pa.Array) -> Mask | None:
    arrow = values.type
    if pa.types.is_floating(arrow):
        wrong = pc.invert(pc.is_finite(values)).fill_null(False)
    elif pa.types.is_date(arrow):
        days = values.cast(pa.date32()).cast(pa.int32())
        wrong = pc.or_(pc.less(days, _MIN_DAY), pc.greater(days, _MAX_DAY)).fill_null(False)
    elif pa.types.is_timestamp(arrow):
        micros = values.cast(pa.timestamp("us", arrow.tz)).cast(pa.int64())
        last = (_MAX_DAY + 1) * _DAY_US
        wrong = pc.or_(pc.less(micros, _MIN_DAY * _DAY_US), pc.greater_equal(micros, last)).fill_null(False)
    else:
        return None
    return wrong.to_numpy(zero_copy_only=False) if pc.any(wrong).as_py() else None


def _write(values: pa.Array) -> pa.Array:
    """Numbers that JSON readers make inexact, and timestamps in the loader's own format, become text."""
    arrow = values.type
    if pa.types.is_timestamp(arrow):
        return timestamps(values)
    if pa.types.is_uint64(arrow) or pa.types.is_time(arrow) or pa.types.is_duration(arrow):
        return _text(values)
    return values


def timestamps(values: pa.Array) -> pa.Array:
    return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.timestamp("us")).cast(pa.string())


def _is_bytes(values: pa.Array) -> bool:
    return bool(pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type))


def _text(values: pa.Array) -> pa.Array:
    arrow = values.type
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or _is_bytes(values):
        return values
    if pa.types.is_timestamp(arrow):
        return timestamps(values)
    if pa.types.is_duration(arrow):
        return values.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
    return digits(values) if pa.types.is_decimal(arrow) else values.cast(pa.string())
