"""A table of the catalog as the rest of the project knows tables. The stream's tables and a snapshot's are made here:
the same table is the same structure whichever way it was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tidemill.decoders._shared.mysql.fill import initial
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders._shared.mysql.types import data_type
from tidemill.decoders.mysql_schema.catalog import CatalogTable
from tidemill.model.table import Column, Table


def structure(
    state: CatalogTable, flavor: Flavor, identity: str, nullable: Sequence[bool] | None = None, *,
    null_zero_dates: bool = False,
) -> Table:  # fmt: skip
    """Not numbered yet. `nullable`, by column, where an event says it. With `null_zero_dates` a date that is NOT NULL
    at the server is null in events where it is zero."""
    columns = []
    for j, column in enumerate(state.columns):
        kind = data_type(column.type, column.charset, flavor)
        may_be_null = column.nullable if nullable is None else nullable[j]
        if null_zero_dates and (pa.types.is_date(kind.arrow) or pa.types.is_timestamp(kind.arrow)):
            may_be_null = may_be_null or column.name not in state.key
        made_of = Column(column.name, kind, nullable=may_be_null, generated=column.generated)
        columns.append(replace(made_of, initial=initial(made_of, column.initial)))
    return Table(state.database, state.database, state.name, tuple(columns), state.key, identity, renamed=state.renamed)
