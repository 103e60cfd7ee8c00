"""What `tidemill verify` reads of the source's rows and of the table's before it compares them."""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa
import pytest

from tests.sinks.benches import ID, INSERT
from tests.sinks.starrocks.support import Bench
from tests.support.changes import changes, column, delivery, structure
from tidemill.contracts import RowDifference, RowFault

DOCUMENT = column("doc", "jsonb", pa.string(), raw=True)
DOCUMENTS = structure("t", ID, DOCUMENT)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "-" + "9" * 5000, "1e400", '{"a": [1e400]}'])
def test_a_number_that_no_double_holds_differs_from_what_is_there_and_is_shown(bench: Bench, number: str) -> None:
    sink = bench.sink()
    sink.write(delivery(changes(DOCUMENTS, (INSERT, None, {"id": 1, "doc": "5"}))))
    unlike = changes(DOCUMENTS, (INSERT, None, {"id": 1, "doc": number}), (INSERT, None, {"id": 2, "doc": number}))
    with closing(sink.audit(DOCUMENTS, "source", values=True)) as audit:
        changed, missing = audit.compare(unlike, note=False)
    assert (changed.fault, changed.columns, missing) == (
        RowFault.DIFFERENT, ("doc",), RowDifference(1, RowFault.MISSING),
    )  # fmt: skip
    ((shown, there),) = changed.values
    assert there == "5"
    assert shown is not None
    assert "null" not in shown


@pytest.mark.parametrize("number", [str(1 << 64), "-" + str((1 << 63) + 1), "123456789012345678901", "1e300"])
def test_a_number_that_becomes_a_double_is_equal_to_it(bench: Bench, number: str) -> None:
    rows = changes(DOCUMENTS, (INSERT, None, {"id": 1, "doc": number}))
    sink = bench.sink()
    sink.write(delivery(rows))
    with closing(sink.audit(DOCUMENTS, "source")) as audit:
        assert audit.compare(rows, note=False) == []
