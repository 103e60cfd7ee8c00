"""The current rows of each key, and whose version counts."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import orjson
import pyarrow as pa
import pytest

from tests.sinks.benches import DELETE, ID, INSERT, TRUNCATE, UPDATE, T, row
from tests.sinks.starrocks.support import Bench
from tests.support.changes import changes, column, delivery, structure
from tidemill.errors import Poisoned, Refused
from tidemill.model.block import Op
from tidemill.model.delivery import Delivery
from tidemill.sinks.starrocks import tables
from tidemill.sinks.starrocks.rows import LoadPiece


def test_inserts_updates_and_deletes_give_the_current_rows_with_their_audit_columns(bench: Bench) -> None:
    block = changes(
        T, (INSERT, None, row(1)), (INSERT, None, row(2)), (UPDATE, None, row(1, "b")), (DELETE, {"id": 2}, None),
        (INSERT, None, row(3, None)), (Op.READ, None, row(4)), (Op.MESSAGE, None, None), (Op.DDL, None, None),
    )  # fmt: skip
    receipt = bench.sink().write(delivery(block))
    assert (receipt.events, receipt.ok) == (8, True)
    assert receipt.bytes > 0
    assert bench.rows() == [row(1, "b"), row(3, None), row(4)]
    audit = bench.rows("id, tidemill_op_type, tidemill_is_deleted, tidemill_synced_at, tidemill_cdc_version")
    assert list(audit[0].values()) == [1, "update", "0", "2026-01-01 00:00:00.000002", "2"]
    assert [r["tidemill_op_type"] for r in audit] == ["update", "insert", "read"]


def test_names_with_any_characters_are_taken_as_they_are(bench: Bench) -> None:
    odd = structure("t ü", ID, column("sp ace 'ü", "text", pa.string()))
    bench.write(delivery(changes(odd, (INSERT, None, {"id": 1, "sp ace 'ü": "x"}))))
    assert bench.rows("*", "t ü")[0]["sp ace 'ü"] == "x"


def test_a_key_that_is_deleted_and_comes_back_is_there(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    again = changes(T, (DELETE, {"id": 1}, None), (INSERT, None, row(1, "new")), (INSERT, None, row(2)), first=1)
    bench.write(delivery(again, start=1))
    assert bench.rows() == [row(1, "new"), row(2)]


def test_an_update_that_moves_a_row_leaves_nothing_under_the_old_key(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)), (INSERT, None, row(2)))))
    moves = changes(
        T, (UPDATE, {"id": 1}, row(9)), (UPDATE, {"id": 2}, row(8)), (UPDATE, {"id": 8}, row(2, "back")), first=2
    )
    bench.write(delivery(moves, start=2))
    assert bench.rows() == [row(2, "back"), row(9)]


def test_deleted_rows_stay_marked_when_told(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)), (INSERT, None, row(2)))), deletes="mark")
    bench.write(delivery(changes(T, (DELETE, {"id": 1}, None), first=2), start=2), deletes="mark")
    found = bench.rows("id, name, tidemill_is_deleted, tidemill_op_type")
    assert [tuple(r.values()) for r in found] == [(1, "a", "1", "delete"), (2, "a", "0", "insert")]


def test_a_truncate_removes_what_came_before_it_also_in_a_replay(bench: Bench) -> None:
    block = changes(T, (INSERT, None, row(1)), (TRUNCATE, None, None), (INSERT, None, row(3)))
    for _ in range(2):
        bench.write(delivery(block))
        assert bench.rows() == [row(3)]


def test_a_truncate_that_cannot_tell_old_from_new_is_refused(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    bench.write(delivery(changes(T, (INSERT, None, row(1)), first=50), start=50))
    with pytest.raises(Refused, match="versions beyond this batch"):
        bench.write(delivery(changes(T, (TRUNCATE, None, None), first=10), start=10))


def test_unchanged_columns_keep_their_value_for_each_set_of_them(bench: Bench) -> None:
    bench.write(delivery(changes(T, *((INSERT, None, row(i, f"name {i}", f"note {i}")) for i in range(5)))))
    later = changes(
        T,
        (UPDATE, None, row(0, "x", None)),
        (UPDATE, None, row(1, None, "y")),
        (UPDATE, None, row(2, "z", "z")),
        (UPDATE, None, row(3, "first", None)),
        (UPDATE, None, row(3, None, "second")),
        (UPDATE, None, row(4, None, None)),
        first=5,
        unchanged={0: ["note"], 1: ["name"], 3: ["note"], 4: ["name"], 5: ["name", "note"]},
    )
    expected = [row(0, "x", "note 0"), row(1, "name 1", "y"), row(2, "z", "z"), row(3, "first", "second"),
                row(4, "name 4", "note 4")]  # fmt: skip
    for _ in range(2):
        bench.write(delivery(later, start=5))
        assert bench.rows() == expected


def test_an_unchanged_column_of_a_row_that_nobody_has_is_poisoned_never_null(bench: Bench) -> None:
    block = changes(
        T, (INSERT, None, row(1)), (UPDATE, None, row(7, "x", None)), first=0, unchanged={1: ["note"]}
    )  # fmt: skip
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(block))
    assert caught.value.reasons.keys() == {1}
    bench.write(delivery(block).without([1]))
    assert bench.rows() == [row(1)]


@pytest.mark.parametrize("first", [(DELETE, {"id": 1}, None), (UPDATE, {"id": 0}, row(1, "m", None))])
def test_a_row_whose_unchanged_columns_are_gone_or_under_another_key_is_poisoned(bench: Bench, first: Any) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(0)))))
    block = changes(T, first, (UPDATE, None, row(1, "y", None)), first=1, unchanged={0: ["note"], 1: ["note"]})
    with pytest.raises(Poisoned, match="did not send the unchanged columns"):
        bench.write(delivery(block, start=1))


def late(batch: Delivery) -> Delivery:
    """The same events from a worker of another plan: other labels, the same rows."""
    return dataclasses.replace(batch, lane=3, lanes=4)


@pytest.mark.parametrize("deletes", ["remove", "mark"])
def test_a_load_that_comes_late_replaces_nothing_newer(bench: Bench, deletes: str) -> None:
    whole = delivery(changes(T, (INSERT, None, row(1, "old")), (INSERT, None, row(2)), (DELETE, {"id": 2}, None)))
    partly = delivery(changes(T, (UPDATE, None, row(1, "older", None)), first=3, unchanged={0: ["note"]}), start=3)
    newest = changes(T, (UPDATE, None, row(1, "new", "new")), (INSERT, None, row(2, "back")), first=4)
    bench.write(whole, partly, delivery(newest, start=4), deletes=deletes)
    for _ in range(2):
        bench.write(late(whole), late(partly), deletes=deletes)
        assert bench.rows() == [row(1, "new", "new"), row(2, "back")]


def test_a_row_that_was_marked_as_deleted_is_not_brought_back_by_a_late_load(bench: Bench) -> None:
    first, second = changes(T, (INSERT, None, row(1))), changes(T, (DELETE, {"id": 1}, None), first=1)
    bench.write(delivery(first), delivery(second, start=1), late(delivery(first)), deletes="mark")
    assert bench.rows("id, tidemill_is_deleted") == [{"id": 1, "tidemill_is_deleted": "1"}]


def test_rows_without_a_version_are_older_than_all(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    bench.server.query(f"INSERT INTO `{bench.database}`.`t` (`id`, `name`, `note`) VALUES (2, 'copied by hand', NULL)")
    bench.write(delivery(changes(T, (UPDATE, None, row(2, "new")), (DELETE, {"id": 1}, None), first=1), start=1))
    assert bench.rows() == [row(2, "new")]


def test_many_deletes_are_removed_by_their_versions(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_KEYS_PER_PURGE", 3)
    monkeypatch.delattr(LoadPiece, "key_values")  # an object per row, which nobody needs then
    bench.write(delivery(changes(T, *((INSERT, None, row(i)) for i in range(9)))))
    bench.write(delivery(changes(T, *((DELETE, {"id": i}, None) for i in range(8)), first=9), start=9))
    assert bench.rows() == [row(8)]


def test_a_delete_that_was_marked_and_not_removed_is_removed_by_the_replay(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    gone = delivery(changes(T, (DELETE, {"id": 1}, None), first=1), start=1)
    with monkeypatch.context() as killed:
        killed.setattr(tables.StarRocksTables, "purge", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            bench.write(gone)
    bench.write(gone)
    assert bench.rows() == []


def test_a_new_log_under_old_versions_is_refused_and_offset_base_is_the_way_out(bench: Bench) -> None:
    """The server would keep the old rows, and nobody would hear of the new ones."""
    events = [(INSERT, None, row(1, "old")), (UPDATE, None, row(1, "older")), (UPDATE, None, row(1, "oldest"))]
    bench.write(delivery(changes(T, *events)))
    anew = delivery(changes(T, (UPDATE, None, row(1, "new")), position="9/"))
    with pytest.raises(Refused, match="holds another history") as caught:
        bench.write(anew)
    assert "offset_base" in caught.value.fix
    bench.write(anew, offset_base=100)
    assert bench.rows() == [row(1, "new")]


def test_a_table_with_versions_of_nobody_known_is_refused(bench: Bench) -> None:
    bench.write(delivery(changes(T, *((INSERT, None, row(i)) for i in range(9)))))
    bench.server.query(f"DELETE FROM `{bench.database}`.`_tidemill_history` WHERE `base` = 0")
    with pytest.raises(Refused, match="versions up to 8"):
        bench.write(delivery(changes(T, (UPDATE, None, row(1, "new")))))


def test_the_stand_in_knows_what_a_condition_may_be(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    loads = bench.sink()._open().loads
    body = b'[{"id": 1, "tidemill_cdc_version": 7, "__op": 1}]'
    for condition, columns, complaint in (
        ("id", ("id", "tidemill_cdc_version"), "besides the primary key"),
        ("nothing", ("id", "tidemill_cdc_version"), "besides the primary key"),
        ("name", ("id", "tidemill_cdc_version"), "is not loaded"),
        ("tidemill_cdc_version", ("id", "tidemill_cdc_version", "__op"), "delete with condition column"),
    ):
        headers = {
            "columns": ",".join(columns), "jsonpaths": orjson.dumps([f"$.{c}" for c in columns]).decode(),
            "partial_update": "true", "merge_condition": condition, "label": uuid.uuid4().hex, "format": "json",
            "strip_outer_array": "true", "strict_mode": "true", "Expect": "100-continue",
            "Content-Length": str(len(body)),
        }  # fmt: skip
        url = f"http://127.0.0.1:{bench.server.http_port}/api/{bench.database}/t/_stream_load"
        result = orjson.loads(loads._follow("PUT", url, headers, body).body)
        assert (result["Status"], complaint in result["Message"]) == ("Fail", True), result
    assert bench.rows() == [row(1)]
