"""Batches that come again, cut otherwise or not; logs that begin anew."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.benches import ID, INSERT, NAME, NOTE, TRUNCATE, UPDATE, T, row
from tests.sinks.clickhouse.support import Bench
from tests.support.changes import changes, column, delivery, structure
from tests.support.deliveries import by_table, make_deliveries, make_events
from tidemill.errors import DeliveryError, Poisoned, Refused


def test_a_replay_in_the_same_worker_and_in_a_new_one_changes_nothing(bench: Bench) -> None:
    batch = make_deliveries(make_events(100), 0, 100)
    sink = bench.sink()
    for each in batch:
        sink.write(each)
    count = "SELECT count() AS n, sum(_version) AS v FROM {}.{}"
    before = [bench.server.query(count.format(bench.database, t)) for t in ("orders", "customers")]
    assert before[0] == [{"n": 50, "v": sum(range(0, 100, 2))}]
    for again in (sink, bench.sink()):
        for each in batch:
            assert again.write(each).ok
    assert [bench.server.query(count.format(bench.database, t)) for t in ("orders", "customers")] == before


def test_a_batch_that_is_cut_and_dealt_anew_leaves_the_same_current_rows(bench: Bench) -> None:
    events = make_events(100)
    bench.write(*make_deliveries(events, 0, 60))
    bench.write(*make_deliveries(events, 0, 30, lanes=3), *make_deliveries(events, 30, 100, deal=by_table))
    (found,) = bench.rows("count() AS n, uniqExact(id) AS ids", "orders", "FINAL")
    assert found == {"n": 50, "ids": 50}


def test_a_lost_answer_is_met_by_the_token_of_the_piece(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from clickhouse_connect.driver.exceptions import OperationalError

    sink, batch = bench.sink(mode="changelog"), delivery(changes(T, (INSERT, None, row(1)), (INSERT, None, row(2))))
    client = sink._open().client
    insert = client.raw_insert

    def lose(*args: Any, **options: Any) -> None:
        insert(*args, **options)
        raise OperationalError("the answer got lost")

    monkeypatch.setattr(client, "raw_insert", lose)
    with pytest.raises(DeliveryError) as caught:
        sink.write(batch)
    assert not isinstance(caught.value, Refused)
    monkeypatch.setattr(client, "raw_insert", insert)
    sink.write(batch)
    assert len(bench.rows("_offset", tail="")) == 2


def test_after_kill_9_of_the_server_the_batch_is_written_again(bench: Bench) -> None:
    batch = delivery(changes(T, (INSERT, None, row(1)), (INSERT, None, row(2))))
    sink = bench.sink()
    sink.write(batch)
    bench.server.kill()
    with pytest.raises(DeliveryError) as caught:
        sink.write(delivery(changes(T, (INSERT, None, row(3)), first=2), start=2))
    assert not isinstance(caught.value, Refused)
    assert "secret" not in str(caught.value)
    bench.server.start()
    bench.write(batch, delivery(changes(T, (INSERT, None, row(3)), first=2), start=2))
    assert bench.rows() == [row(1), row(2), row(3)]


def test_large_deliveries_are_inserted_in_pieces_that_a_replay_repeats(bench: Bench) -> None:
    batch = make_deliveries(make_events(1000), 0, 1000, lanes=1)
    bench.write(*batch, max_insert_rows=64)
    parts = f"SELECT count() AS n FROM {bench.database}.orders"
    assert bench.server.query(parts) == [{"n": 500}]
    bench.write(*batch, max_insert_rows=64)
    assert bench.server.query(parts) == [{"n": 500}]


def test_a_batch_without_other_dead_letters_is_another_piece(bench: Bench) -> None:
    batch = delivery(changes(T, *((INSERT, None, row(i)) for i in range(6))))
    bench.write(batch.without([2]))
    bench.write(batch.without([3]))
    assert [r["id"] for r in bench.rows("id")] == [0, 1, 2, 3, 4, 5]


def test_a_batch_that_brings_other_values_is_another_piece(bench: Bench) -> None:
    """As after a processor was changed and the checkpoint moved back."""
    bench.write(delivery(changes(T, (INSERT, None, row(1, "clear")))))
    bench.write(delivery(changes(T, (INSERT, None, row(1, "masked")))))
    assert bench.rows() == [row(1, "masked")]


@pytest.mark.parametrize("mode", ["upsert", "changelog"])
def test_rows_removed_by_hand_come_back_once_the_table_has_forgotten_the_tokens(bench: Bench, mode: str) -> None:
    batch = delivery(changes(T, (INSERT, None, row(1)), (INSERT, None, row(2))))
    bench.write(batch, mode=mode)
    table = f"{bench.database}.t"
    bench.server.query(f"ALTER TABLE {table} DELETE WHERE 1 SETTINGS mutations_sync = 2")
    bench.write(batch, mode=mode)
    count = f"SELECT count() AS n FROM {table}"
    assert bench.server.query(count) == [{"n": 0}], "the page says so"
    bench.server.query(f"ALTER TABLE {table} MODIFY SETTING non_replicated_deduplication_window = 0")
    for _ in range(2):
        bench.write(batch, mode=mode)
    if mode == "upsert":
        assert bench.rows() == [row(1), row(2)]
    else:
        assert bench.server.query(count) == [{"n": 2}], "offsets are looked up while tokens are not heeded"
    bench.server.query(f"ALTER TABLE {table} MODIFY SETTING non_replicated_deduplication_window = 10000")
    before = bench.server.query(count)
    for _ in range(2):
        bench.write(batch, mode=mode)
    assert mode == "upsert" or bench.server.query(count) == before


def test_a_new_log_over_old_versions_is_refused_and_offset_base_is_the_way_out(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)), (UPDATE, None, row(1, "old")))))
    anew = delivery(changes(T, (UPDATE, None, row(1, "new")), position="9/"))
    with pytest.raises(Refused, match="another history"):
        bench.write(anew)
    assert bench.rows() == [row(1, "old")]
    bench.write(anew, offset_base=2)
    assert bench.rows() == [row(1, "new")]
    with pytest.raises(Refused, match="versions up to 2"):
        bench.write(anew, offset_base=1)


def test_the_same_log_from_its_beginning_is_taken(bench: Bench) -> None:
    first = delivery(changes(T, (INSERT, None, row(1)), (UPDATE, None, row(1, "b"))))
    bench.write(first, delivery(changes(T, (UPDATE, None, row(1, "c")), first=2), start=2))
    bench.write(first)
    assert bench.rows() == [row(1, "c")]


def test_events_from_before_the_first_one_are_refused(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)), first=50), start=50))
    with pytest.raises(Refused, match="before the first one"):
        bench.write(delivery(changes(T, (INSERT, None, row(2)), first=3), start=0, end=10))


def test_a_table_that_has_versions_of_nobody_known_is_refused(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)), first=7), start=7))
    bench.server.query(f"TRUNCATE TABLE {bench.database}._tidemill_history")
    with pytest.raises(Refused, match="versions up to 7 that this log did not write"):
        bench.write(delivery(changes(T, (INSERT, None, row(1)))))


@pytest.mark.parametrize(("offset", "expected"), [(0, "a"), (1, "new"), (2, "new")])
def test_a_dead_letter_that_comes_again_never_replaces_a_newer_row(bench: Bench, offset: int, expected: str) -> None:
    events: list[Any] = [(INSERT, None, row(1)), (INSERT, None, row(2)), (UPDATE, None, row(2, "b"))]
    bench.write(delivery(changes(T, *events, (UPDATE, None, row(2, "new")))).without([offset]))
    dead_letter = dataclasses.replace(
        delivery(changes(T, events[offset], first=offset), start=offset), redelivered=True
    )
    for _ in range(2):  # also when the first answer got lost
        assert bench.sink().write(dead_letter).ok
    assert bench.rows() == [row(1), row(2, "new")]
    assert expected in [found["name"] for found in bench.rows()]


def test_two_tables_or_pipelines_share_a_destination_only_when_told(bench: Bench) -> None:
    other = structure("u", ID, NAME, NOTE)
    bench.write(delivery(changes(T, (INSERT, None, row(1)))), table="t")
    with pytest.raises(Refused, match=r"already written from public\.t"):
        bench.write(delivery(changes(other, (INSERT, None, row(2)), first=1), start=1), table="t")
    with pytest.raises(Refused, match="already written from"):
        bench.write(delivery(changes(T, (INSERT, None, row(2)), first=1), start=1, pipeline="other"))
    bench.write(delivery(changes(other, (INSERT, None, row(2)), first=1), start=1), table="t", shared_tables=True)
    assert bench.rows() == [row(1), row(2)]


def test_tables_of_other_columns_may_share_a_destination_and_neither_empties_it(bench: Bench) -> None:
    other = structure("u", ID, NAME, column("more", "text", pa.string()), version=2)
    options = {"table": "t", "shared_tables": True, "allow_destructive_ddl": True}
    sink = bench.sink(**options)
    for start in (0, 4):  # in turns, within a delivery and from one to the next
        ids = range(start, start + 4)
        sink.write(
            delivery(
                *(
                    changes(T, (INSERT, None, row(i)), first=i)
                    if i % 2 == 0
                    else changes(other, (INSERT, None, {"id": i, "name": "b", "more": "m"}), first=i)
                    for i in ids
                ),
                start=start,
            )
        )
    found = bench.rows("id, name, note, more")
    assert [(r["name"], r["note"], r["more"]) for r in found] == [("a", "n", None), ("b", None, "m")] * 4
    with pytest.raises(Poisoned) as caught:
        sink.write(delivery(changes(T, (TRUNCATE, None, None), first=8), start=8))
    assert "others share" in caught.value.reasons[8]
    assert len(bench.rows("id")) == 8
