"""The function of postgres-python.yaml: statuses of orders in capitals (docs/processors/python.md)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.processors.python import get, put


def process(batch: pa.RecordBatch) -> pa.RecordBatch:
    return put(batch, "after.status", pc.utf8_upper(get(batch, "after.status")))
