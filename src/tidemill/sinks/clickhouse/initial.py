"""What rows that are there have in a new column, as an expression of ClickHouse's SQL: the column's DEFAULT.

ClickHouse reads it for rows of parts from before the column, without writing them anew; rows that come later bring
their own value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.model.table import Column
from tidemill.net.clickhouse import code_of, explain, literal, quote
from tidemill.sinks._shared.images import Verdicts
from tidemill.sinks._shared.unfollowed import is_known
from tidemill.sinks.clickhouse.types import ClickHouseType
from tidemill.sinks.clickhouse.values import fit


def expression(column: Column, kind: ClickHouseType) -> str | None:
    """Empty for NULL; None where a column of this kind cannot hold the value."""
    assert column.initial is not None
    assert column.initial.value is not None
    verdicts = Verdicts()
    given = pa.repeat(column.initial.value, 1)
    sent = fit(given, None, column, kind, np.zeros(1, np.uint64), np.ones(1, bool), verdicts)
    if verdicts.reasons:
        return None
    value = sent[0]
    if not column.initial.value.is_valid:
        return "" if kind.nullable else None
    return f"CAST({_of(value, kind)}, {literal(str(kind))})"


def find_differing(
    client: Any, name: str, columns: Mapping[str, tuple[ClickHouseType, Column]], where: str
) -> Iterator[str]:
    """Those of the columns in which some row has another value than rows of the source got there."""
    from clickhouse_connect.driver.exceptions import ClickHouseError

    for column, (kind, source) in columns.items():
        value = expression(source, kind) if is_known(source) else None
        at = quote(column)
        other = f"ifNull({at} != {value}, 1)" if value else f"isNotNull({at})"
        try:
            if value is None or client.query(f"SELECT 1 FROM {name} FINAL WHERE {other} LIMIT 1").result_rows:
                yield column
        except ClickHouseError as error:
            if not code_of(error):
                raise explain(error, where) from error
            yield column  # not every type can be compared


def _of(value: pa.Scalar, kind: ClickHouseType) -> str:
    arrow, element = value.type, kind.element
    if not value.is_valid:
        return "NULL"
    if element is not None and pa.types.is_list(arrow):
        items = ", ".join(f"CAST({_of(item, element)}, {literal(str(element))})" for item in value.values)
        return f"[{items}]"
    if pa.types.is_timestamp(arrow):
        return f"fromUnixTimestamp64Micro(toInt64({value.cast(pa.timestamp('us', arrow.tz)).value}), 'UTC')"
    if pa.types.is_boolean(arrow):
        return "true" if value.as_py() else "false"
    if pa.types.is_integer(arrow):
        return str(value.as_py())
    if pa.types.is_floating(arrow):
        return repr(float(value.as_py()))  # nan and inf are literals too
    if pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow):
        return f"unhex('{value.as_py().hex()}')"
    return literal(str(value.as_py()))
