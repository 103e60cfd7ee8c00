"""The `route` column of a block: where sinks with topics send each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import ProcessingError, Refused
from tidemill.model.block import ROUTE, Block
from tidemill.model.route import header_entries
from tidemill.model.table import Table
from tidemill.model.template import Template
from tidemill.processors._shared.columns import find_unmatched, near


def route(block: Block, topic: pa.Array | None, key: pa.Array | None, headers: Mapping[str, pa.Array]) -> pa.Array:
    """What an earlier processor said stays where this one says nothing; headers of one name are replaced, others
    stay."""
    before = block.column("route")
    given = {"topic": topic, "key": key, "headers": _map(headers, block.rows) if headers else None}
    parts = []
    for name in ("topic", "key"):
        old = None if before is None else pc.struct_field(before, name)
        new = given[name]
        parts.append(pc.coalesce(*(each for each in (new, old) if each is not None)) if new is not None else old)
    old_headers = None if before is None else pc.struct_field(before, "headers")
    parts.append(_both(old_headers, given["headers"]))
    filled = [part if part is not None else pa.nulls(block.rows, f.type) for part, f in zip(parts, ROUTE, strict=True)]
    return pa.StructArray.from_arrays(filled, fields=list(ROUTE))


def check_templates(templates: Iterable[Template], table: Table) -> None:
    """`ConfigError` names a column that the table does not have, and that the template has no default for."""
    names = {column.name for column in table.columns}
    for template in templates:
        for name in template.columns(with_default=False):
            if name not in names:
                raise near(name, table)


def unmatched_defaults(templates: Iterable[Template], tables: Sequence[Table]) -> list[str]:
    """Columns that none of the tables has, so that only their defaults are ever written."""
    return find_unmatched([name for each in templates for name in each.columns(with_default=True)], tables)


def render(template: Template, block: Block, source: str) -> pa.Array:
    """`ProcessingError` says which rows have no value for a part of it."""
    try:
        return template.render(block, source)
    except Refused as error:
        reasons = template.find_missing(block, source)
        if not reasons:
            raise
        raise ProcessingError(reasons, fix=error.fix) from error


def _map(headers: Mapping[str, pa.Array], rows: int) -> pa.MapArray:
    """The same names in every row."""
    width = len(headers)
    names = pa.array(list(headers), pa.string()).take(pa.array(np.tile(np.arange(width), rows)))
    order = np.arange(width * rows).reshape(width, rows).T.ravel()
    values = pa.concat_arrays([each.cast(pa.string()) for each in headers.values()]).take(pa.array(order))
    return pa.MapArray.from_arrays(pa.array(np.arange(0, width * rows + 1, width), pa.int32()), names, values)


def _both(old: pa.Array | None, new: pa.Array | None) -> pa.Array | None:
    if old is None or new is None or old.null_count == len(old):
        return new if new is not None else old
    rows = len(new)
    both = [header_entries(each) for each in (old, new)]
    keys, items = (pa.concat_arrays([each[part] for each in both]) for part in (1, 2))
    row = np.concatenate([each[0] for each in both])
    late = np.repeat([0, 1], [len(each[0]) for each in both])
    codes = pc.dictionary_encode(keys).indices.to_numpy()
    order = np.lexsort((late, codes, row))
    last = np.ones(len(order), bool)
    last[:-1] = (row[order][1:] != row[order][:-1]) | (codes[order][1:] != codes[order][:-1])
    kept = order[last]
    ends = np.concatenate([[0], np.cumsum(np.bincount(row[kept], minlength=rows))]).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(ends), keys.take(pa.array(kept)), items.take(pa.array(kept)))
