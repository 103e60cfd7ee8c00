"""The starrocks sink against a strict stand-in (no server can be had; see its module for what it insists on)."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa
import pytest

from tests.support.changes import changes, column, delivery, structure
from tests.support.deliveries import by_table, make_deliveries, make_events
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Poisoned, Refused
from tidemill.lab.servers.starrocks_standin import StarRocks
from tidemill.model.block import Op, Side
from tidemill.model.delivery import Delivery
from tidemill.sinks.starrocks import StarRocksConfig, StarRocksSink, tables
from tidemill.sinks.starrocks.checks import knows_conditions
from tidemill.sinks.starrocks.rows import LoadPiece
from tidemill.sinks.starrocks.tables import text_of
from tidemill.sinks.starrocks.types import holds, plain, timestamps

D = decimal.Decimal
INSERT, UPDATE, DELETE, TRUNCATE = Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE
ID = column("id", "bigint", pa.int64(), nullable=False)
NAME = column("name", "text", pa.string())
NOTE = column("note", "text", pa.string())
T = structure("t", ID, NAME, NOTE)


@pytest.fixture(scope="module")
def server() -> Iterator[StarRocks]:
    with StarRocks(password="secret") as running:
        yield running


class Bench:
    def __init__(self, server: StarRocks) -> None:
        self.server = server
        self.database = f"test_{uuid.uuid4().hex[:8]}"
        self._open: list[StarRocksSink] = []

    def sink(self, **options: Any) -> StarRocksSink:
        settings = {
            "id": "sr", "url": f"http://127.0.0.1:{self.server.http_port}", "mysql_port": self.server.mysql_port,
            "password": "secret", "database": self.database, "request_timeout_seconds": 5, **options,
        }  # fmt: skip
        self._open.append(StarRocksSink(StarRocksConfig(**settings)))
        return self._open[-1]

    def write(self, *deliveries: Delivery, **options: Any) -> None:
        sink = self.sink(**options)
        for each in deliveries:
            sink.write(each)

    def rows(self, what: str = "id, name, note", table: str = "t") -> list[dict[str, Any]]:
        found = self.server.query(f"SELECT {what} FROM `{self.database}`.`{table}` ORDER BY 1")
        return [{k: int(v) if k == "id" else v for k, v in row.items()} for row in found]

    def close(self) -> None:
        for sink in self._open:
            sink.close()


@pytest.fixture
def bench(server: StarRocks) -> Iterator[Bench]:
    made = Bench(server)
    yield made
    made.close()
    server.start()


def row(id: int, name: str | None = "a", note: str | None = "n") -> dict[str, Any]:
    return {"id": id, "name": name, "note": note}


# Rows


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


# Columns that the source did not send


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


# Versions, compared at the server


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


# Replays and labels


def test_a_replay_is_met_by_its_labels_and_changes_nothing(bench: Bench) -> None:
    batch = make_deliveries(make_events(100), 0, 100)
    sink = bench.sink()
    for each in batch:
        sink.write(each)
    bench.server.query(f"DELETE FROM `{bench.database}`.`orders` WHERE `id` = 4")  # a second load would bring it back
    for again in (sink, bench.sink()):
        for each in batch:
            again.write(each)
    assert len(bench.rows("id", "orders")) == 49


def test_a_batch_that_is_cut_and_dealt_anew_gives_the_same_rows(bench: Bench) -> None:
    events = make_events(100)
    bench.write(*make_deliveries(events, 0, 60))
    bench.write(*make_deliveries(events, 0, 30, lanes=3), *make_deliveries(events, 30, 100, deal=by_table))
    assert len(bench.rows("id", "orders")) == 50


def test_a_dead_letter_that_comes_again_is_loaded_once(bench: Bench) -> None:
    events: list[Any] = [(INSERT, None, row(1)), (INSERT, None, row(2)), (INSERT, None, row(3))]
    bench.write(delivery(changes(T, *events)).without([1]))
    dead_letter = dataclasses.replace(delivery(changes(T, events[1], first=1), start=1), redelivered=True)
    for _ in range(2):  # also when the first answer got lost
        assert bench.sink().write(dead_letter).events == 1
    assert bench.rows() == [row(1), row(2), row(3)]


def test_another_log_with_the_same_batch_numbers_is_loaded(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1, "old")))))
    bench.write(delivery(changes(T, (INSERT, None, row(1, "new")))))
    assert bench.rows() == [row(1, "new")]


def test_a_load_whose_answer_got_lost_is_found_by_its_label(bench: Bench) -> None:
    batch = delivery(changes(T, (INSERT, None, row(1))))
    bench.server.script(drop=True)
    with pytest.raises(DeliveryError) as caught:
        bench.write(batch)
    assert not isinstance(caught.value, Refused)
    bench.write(batch)
    assert bench.rows() == [row(1)]


def test_an_existing_label_is_success_only_when_its_load_is_visible(bench: Bench) -> None:
    batch = delivery(changes(T, (INSERT, None, row(1))))
    bench.server.script(hold=3.0)  # the connection breaks, the load goes on
    with pytest.raises(DeliveryError):
        bench.write(batch)
    with pytest.raises(DeliveryError, match="is prepare"):
        bench.write(batch, request_timeout_seconds=1)
    assert bench.rows() == []
    bench.write(batch)  # waits for the load that is under way
    assert bench.rows() == [row(1)]


def test_a_load_that_is_committed_but_not_yet_visible_is_waited_for(bench: Bench) -> None:
    bench.server.script(answer="Publish Timeout")
    bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    assert bench.rows() == [row(1)]


def test_a_load_that_fails_for_reasons_of_the_cluster_is_tried_again(bench: Bench) -> None:
    bench.server.script(fail="too many tablet versions, secret value 4711")
    with pytest.raises(DeliveryError) as caught:
        bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    assert not isinstance(caught.value, Refused)
    assert "4711" not in str(caught.value)


def test_after_kill_9_of_the_server_the_batch_is_loaded(bench: Bench) -> None:
    sink = bench.sink()
    sink.write(delivery(changes(T, (INSERT, None, row(1)))))
    bench.server.kill()
    later = delivery(changes(T, (INSERT, None, row(2)), first=1), start=1)
    with pytest.raises(DeliveryError) as caught:
        sink.write(later)
    assert not isinstance(caught.value, Refused)
    bench.server.start()
    bench.write(later)
    assert bench.rows() == [row(1), row(2)]


# Values


def test_every_type_of_the_sources_is_exact_and_nullable(bench: Bench) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC)
    cases: list[tuple[str, pa.DataType, str, Any, Any]] = [
        ("boolean", pa.bool_(), "boolean", True, "1"),
        ("tinyint unsigned", pa.uint8(), "smallint", 255, "255"),
        ("int unsigned", pa.uint32(), "bigint", 2**32 - 1, str(2**32 - 1)),
        ("bigint unsigned", pa.uint64(), "largeint", 2**64 - 1, str(2**64 - 1)),
        ("double precision", pa.float64(), "double", 0.1, "0.1"),
        ("numeric(38,4)", pa.decimal128(38, 4), "decimal(38,4)", D("9" * 34 + ".9999"), "9" * 34 + ".9999"),
        ("numeric(60,4)", pa.decimal256(60, 4), "varchar(1048576)", D("9" * 50 + ".5000"), "9" * 50 + ".5000"),
        ("date", pa.date32(), "date", datetime.date(9999, 12, 31), "9999-12-31"),
        ("timestamp with time zone", pa.timestamp("us", "UTC"), "datetime", moment, "2026-01-02 03:04:05.678901"),
        ("time", pa.time64("us"), "varchar(1048576)", datetime.time(1, 2, 3), "01:02:03.000000"),
        ("bytea", pa.binary(), "varchar(1048576)", b"\x00\xff", "AP8="),
        ("text[]", pa.list_(pa.string()), "array<varchar(1048576)>", ["a", None, 'q"'], '["a",null,"q\\""]'),
        ("text", pa.string(), "varchar(1048576)", "tab\t'quote' \"x\" \\ ü\n", "tab\t'quote' \"x\" \\ ü\n"),
    ]
    columns = [column(f"c{i}", native, arrow) for i, (native, arrow, *_) in enumerate(cases)]
    table = structure("t", ID, *columns, column("doc", "jsonb", pa.string(), raw=True))
    full = {"id": 1, "doc": '{"a": [1, {"b": null}]}', **{f"c{i}": case[3] for i, case in enumerate(cases)}}
    bench.write(delivery(changes(table, (INSERT, None, full), (INSERT, None, {"id": 2}))))
    there = bench.server.query(
        "SELECT column_name, column_type FROM information_schema.columns "
        f"WHERE table_schema = '{bench.database}' AND table_name = 't'"
    )
    types = {r["column_name"]: r["column_type"] for r in there}
    found, empty = bench.rows("*")
    for i, (native, _, made, _, shown) in enumerate(cases):
        assert types[f"c{i}"] == made, native
        assert found[f"c{i}"] == shown, native
        assert empty[f"c{i}"] is None, native
    assert found["doc"] == '{"a":[1,{"b":null}]}'


def test_values_that_no_column_can_hold_are_poisoned_all_at_once(bench: Bench) -> None:
    table = structure(
        "t", ID, column("f", "double precision", pa.float64()), column("p", "numeric(5,2)", pa.decimal128(5, 2)),
        column("d", "date", pa.date32()), column("n", "numeric", pa.string()),
    )  # fmt: skip
    block = changes(
        table, (INSERT, None, {"id": 0}), (INSERT, None, {"id": 1, "f": float("nan")}), (INSERT, None, {"id": 2}),
        (INSERT, None, {"id": 3}), odd={2: [(Side.AFTER, "p", "NaN")], 3: [(Side.AFTER, "n", "NaN")]},
    )  # fmt: skip
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(block))
    assert caught.value.reasons.keys() == {1, 2}
    bench.write(delivery(block).without([1, 2]))
    assert bench.rows("id, n") == [{"id": 0, "n": None}, {"id": 3, "n": "NaN"}]


@pytest.mark.parametrize("bad", [{7}, {3, 60, 99}, set(range(0, 100, 2))], ids=["one", "some", "more than reported"])
def test_rows_that_the_server_filters_are_named_and_their_values_are_not(bench: Bench, bad: set[int]) -> None:
    bench.server.query(
        f"CREATE TABLE IF NOT EXISTS `{bench.database}`.`t` (\n  `id` BIGINT NOT NULL,\n  `name` VARCHAR(5) NULL\n)\n"
        "PRIMARY KEY (`id`)\nDISTRIBUTED BY HASH(`id`)"
    )
    table = structure("t", ID, NAME)
    block = changes(
        table, *((INSERT, None, {"id": i, "name": "hidden word" if i in bad else "ok"}) for i in range(100))
    )
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(block))
    assert caught.value.reasons.keys() == bad
    assert "hidden" not in str(caught.value)
    bench.write(delivery(block).without(bad))
    assert len(bench.rows("id")) == 100 - len(bad)


# Tables


def test_columns_that_come_and_are_renamed_are_followed_and_others_stay(bench: Bench) -> None:
    second = structure(
        "t", ID, column("label", "text", pa.string()), column("added", "integer", pa.int32()), version=2,
        renamed=[("name", "label")],
    )  # fmt: skip
    bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    later = changes(
        second, (INSERT, None, {"id": 2, "label": "b", "added": 5}), (UPDATE, None, {"id": 1, "label": "c"}), first=1
    )
    bench.write(delivery(later, start=1))
    found = bench.rows("id, label, note, added")
    assert [tuple(r.values()) for r in found] == [(1, "c", "n", None), (2, "b", None, "5")]


def test_a_table_made_by_hand_is_validated_and_given_the_audit_columns(bench: Bench) -> None:
    create = (
        "CREATE TABLE IF NOT EXISTS `{}`.`{}` (\n  `id` BIGINT NOT NULL,\n  `name` VARCHAR(65533) NULL,\n"
        "  `mine` INT NULL\n)\nPRIMARY KEY (`id`)\nDISTRIBUTED BY HASH(`id`)"
    )
    bench.server.query(create.format(bench.database, "t"))
    bench.write(
        delivery(changes(structure("t", ID, NAME), (INSERT, None, {"id": 1, "name": "a"}))), create_tables=False
    )
    assert bench.rows("id, name, tidemill_cdc_version")[0]["tidemill_cdc_version"] == "0"
    bench.server.query(create.format(bench.database, "u"))
    with pytest.raises(Refused, match="has the key"):
        bench.write(delivery(changes(structure("u", ID, NAME, key=("name",)), (INSERT, None, row(1)))))
    with pytest.raises(Refused, match="does not fit the source"):
        bench.write(delivery(changes(structure("u", ID, column("mine", "bigint", pa.int64())), (INSERT, None, row(1)))))
    with pytest.raises(Refused, match="does not exist") as caught:
        bench.write(delivery(changes(structure("v", ID), (INSERT, None, {"id": 1}))), create_tables=False)
    assert "PRIMARY KEY (`id`)" in caught.value.fix


def test_keys_of_several_columns_and_kinds(bench: Bench) -> None:
    table = structure(
        "t", NOTE, column("d", "date", pa.date32(), nullable=False), column("p", "numeric(5,2)", pa.decimal128(5, 2)),
        ID, key=("d", "p"),
    )  # fmt: skip
    day = datetime.date(2026, 1, 1)
    base = [(INSERT, None, {"id": i, "d": day, "p": D(i), "note": "n"}) for i in range(3)]
    bench.write(delivery(changes(table, *base)))
    later = changes(
        table, (UPDATE, None, {"id": 9, "d": day, "p": D(1)}), (DELETE, {"d": day, "p": D(2)}, None), first=3,
        unchanged={0: ["note"]},
    )  # fmt: skip
    bench.write(delivery(later, start=3))
    assert [(r["p"], r["id"], r["note"]) for r in bench.rows("p, id, note")] == [("0.00", 0, "n"), ("1.00", 9, "n")]


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (structure("t", ID, key=()), "has no key"),
        (structure("t", ID, column("__op", "text", pa.string())), "uses itself"),
        (structure("t", column("id", "double precision", pa.float64())), "cannot be"),
    ],
)
def test_tables_that_cannot_be_are_refused(bench: Bench, table: Any, complaint: str) -> None:
    with pytest.raises(Refused, match=complaint):
        bench.write(delivery(changes(table, (INSERT, None, {"id": 1}))))


@pytest.mark.parametrize("name", ["a`b", 'a"b', "a\r\nlabel: x", "a\\b"])
def test_a_name_that_no_load_can_give_is_refused_and_not_sent(bench: Bench, name: str) -> None:
    table = structure("t", ID, column(name, "text", pa.string()))
    with pytest.raises(Refused, match="names no load can give"):
        bench.write(delivery(changes(table, (INSERT, None, {"id": 1, name: "x"}))))


def test_a_row_that_is_marked_as_deleted_lends_its_values_to_none(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1, "a", "old")))), deletes="mark")
    bench.write(delivery(changes(T, (DELETE, {"id": 1}, None), first=1), start=1), deletes="mark")
    partial = changes(T, (INSERT, None, {"id": 1, "name": "b"}), first=2, unchanged={0: ["note"]})
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(partial, start=2), deletes="mark")
    assert set(caught.value.reasons) == {2}


def test_moments_of_a_key_are_compared_as_they_are_loaded() -> None:
    whole, part = datetime.datetime(2026, 1, 2, 3, 4, 5), datetime.datetime(2026, 1, 2, 3, 4, 5, 60)
    assert [text_of(v) for v in (whole, part)] == ["2026-01-02 03:04:05.000000", "2026-01-02 03:04:05.000060"]
    ours = timestamps(pa.array([whole, part], pa.timestamp("us"))).to_pylist()
    assert ours == [text_of(v) for v in (whole, part)]
    assert [text_of(v) for v in (True, 2**64 - 1, datetime.date(2026, 1, 2))] == ["1", str(2**64 - 1), "2026-01-02"]


def test_types_as_the_server_prints_them_are_understood() -> None:
    assert plain("bigint(20)") == "BIGINT"
    assert plain("decimal(12, 2)") == "DECIMAL(12,2)"
    assert plain("tinyint(1)") == "BOOLEAN"
    assert holds("bigint(20)", "INT")
    assert not holds("int(11)", "BIGINT")
    assert holds("decimal(14, 4)", "DECIMAL(12,4)")
    assert not holds("decimal(12, 2)", "DECIMAL(12,4)")


# Around it


def test_doctor_says_what_it_found(bench: Bench) -> None:
    assert [c.outcome for c in bench.sink(table="t").doctor()] == [Outcome.PASS] * 3
    (check,) = bench.sink(password="wrong").doctor()
    assert check.outcome is Outcome.FAIL
    (check,) = bench.sink(mysql_port=9).doctor()
    assert check.outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("version", "fits"), [("3.1.2-abc", False), ("3.0.9", False), ("3.1.3 4f7a", True), ("4.0.1", True), ("main", True)]
)
def test_versions_that_know_no_conditional_partial_update_are_told(version: str, fits: bool) -> None:
    assert knows_conditions(version) is fits


def test_the_stand_in_is_strict_about_how_a_load_is_sent(server: StarRocks) -> None:
    with socket.create_connection(("127.0.0.1", server.http_port), 5) as connection:
        connection.sendall(b"PUT /api/d/t/_stream_load HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]")
        assert b"There is no 100-continue header" in _all(connection)
    with socket.create_connection(("127.0.0.1", server.backend_port), 5) as connection:
        connection.sendall(b"PUT /api/d/t/_stream_load HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n")
        assert b" 401 " in _all(connection)


def _all(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        return stream.read()


def test_secrets_do_not_belong_into_the_url() -> None:
    with pytest.raises(ValueError, match="fields of their own"):
        StarRocksConfig(id="x", url="http://root:pw@host:8030", database="d")
