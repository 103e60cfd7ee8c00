"""What the tests of sinks with tables of current rows share: a small table, its rows, and a sink for each worker."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import pyarrow as pa

from tests.support.changes import column, structure
from tidemill.contracts import Sink
from tidemill.model.block import Op
from tidemill.model.delivery import Delivery

INSERT, UPDATE, DELETE, TRUNCATE = Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE

ID = column("id", "bigint", pa.int64(), nullable=False)
NAME, NOTE = (column(name, "text", pa.string()) for name in ("name", "note"))
T = structure("t", ID, NAME, NOTE)

AnySink = TypeVar("AnySink", bound=Sink)


def row(id: int, name: str | None = "a", note: str | None = "n") -> dict[str, Any]:
    return {"id": id, "name": name, "note": note}


class SinkBench(Generic[AnySink]):
    """Each `sink` is new, as after a restart; `close` closes all of them."""

    def __init__(self) -> None:
        self._open: list[AnySink] = []

    def sink(self, **options: Any) -> AnySink:
        self._open.append(self._make(**options))
        return self._open[-1]

    def write(self, *deliveries: Delivery, **options: Any) -> None:
        sink = self.sink(**options)
        for each in deliveries:
            sink.write(each)

    def close(self) -> None:
        for sink in self._open:
            sink.close()

    def _make(self, **options: Any) -> AnySink:
        raise NotImplementedError
