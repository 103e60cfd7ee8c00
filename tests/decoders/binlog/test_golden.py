"""Bytes that real servers sent become the events of the SQL that made them, whatever servers do later."""

from __future__ import annotations

import pytest

from tests.decoders.binlog import goldens as mygoldens
from tests.decoders.binlog.cases import CASES
from tests.decoders.binlog.goldens import Golden, Stream
from tests.decoders.pgoutput import goldens
from tests.support.binlogstream import decode
from tests.support.decoded import rows
from tidemill.decoders._shared.mysql.gtid import Flavor, MysqlGtids
from tidemill.decoders._shared.mysql.place import BinlogPlace
from tidemill.decoders.binlog import rows as noted_rows
from tidemill.model.change import Change, Committed, SpillAborted, SpillCommitted, Spilled

STREAMS = mygoldens.load()


@pytest.mark.parametrize(("golden", "stream"), STREAMS, ids=map(mygoldens.label, STREAMS))
def test_bytes_of_a_server_become_the_events_of_its_sql(golden: Golden, stream: Stream) -> None:
    mygoldens.check(golden, stream)


def test_every_case_was_recorded_as_it_stands() -> None:
    recorded = {golden.name: golden for golden, _ in STREAMS}
    assert set(recorded) == {case.name for case in CASES}
    for case in CASES:
        golden = recorded[case.name]
        again = f"{case.name} changed: python -m tests.decoders.binlog.record {case.name}"
        assert (golden.setup, golden.sql) == (list(case.setup), list(case.sql)), again
        assert golden.expected == goldens.numbered(case.expected), again
        assert [stream.server for stream in golden.streams] == list(case.servers)


@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_a_prepared_transaction_becomes_visible_with_its_commit_and_vanishes_with_its_rollback(server: str) -> None:
    changes = _changes("two_phases", server)
    kinds = [type(change) for change in changes if not (isinstance(change, Committed) and not change.events)]
    assert kinds[:6] == [Spilled, Committed, SpillCommitted, Spilled, Committed, SpillAborted]


def test_a_prepared_transaction_counts_as_received_only_when_it_is_committed() -> None:
    changes = _changes("two_phases", "mysql")
    between = next(change for change in changes if isinstance(change, Committed) and change.events)
    commit = next(change for change in changes if isinstance(change, SpillCommitted))
    before, after = (MysqlGtids.parse(text) for text in (between.through, commit.through))
    # The prepared one has the number before the transaction that committed while it waited.
    ((_, _, last, _),) = list(before)
    assert len(list(after)) == 1
    ((_, _, first, past),) = list(after)
    assert (first, past) == (last - 1, last + 2)


def test_positions_are_gtids_and_marks_are_sets_of_them() -> None:
    golden, stream = _pair("tagged_gtids", "mysql")
    changes = decode(stream.data, golden.tables(stream.flavor), stream.flavor, began="empty")
    found = [row["position"] for row in rows(changes)]
    assert [position.count(":") for position in found] == [2, 1, 2]
    assert found[2] == "9e2f1a3c-8000-11ee-a506-0242ac120002:tag_2:77"
    through = MysqlGtids.parse(_last(changes).through)
    for position in found:
        assert MysqlGtids.parse(position).is_subset(through)


def test_positions_of_mariadb_have_domain_server_and_number() -> None:
    golden, stream = _pair("gtid_domains", "mariadb")
    changes = decode(stream.data, golden.tables(stream.flavor), stream.flavor, began="empty")
    names = [row["position"].rsplit("-", 1)[0] for row in rows(changes)]
    assert names == ["7-1", "7-12", "0-12"]
    assert [part.rsplit("-", 1)[0] for part in _last(changes).through.split(",")] == ["0-12", "7-12"]


def test_without_gtids_positions_are_places_in_files() -> None:
    golden, stream = _pair("without_gtids", "mysql")
    changes = decode(stream.data, golden.tables(stream.flavor), stream.flavor, began=stream.began)
    found = [row["position"] for row in rows(changes)]
    assert len(set(found)) == 3
    for position, change in zip(found, [c for c in changes if isinstance(c, Committed)], strict=False):
        assert BinlogPlace.parse(position, Flavor.MYSQL).file.startswith("binlog.")
        assert change.events


def test_a_stream_resumed_by_file_names_the_file_its_transactions_end_in() -> None:
    golden, stream = _pair("rotation", "mysql")
    changes = decode(stream.data, golden.tables(stream.flavor), stream.flavor, began="binlog.000001:4")
    files = [BinlogPlace.parse(c.through, Flavor.MYSQL).file for c in changes if isinstance(c, Committed) and c.events]
    assert files == sorted(files)
    assert len(set(files)) == 3


def test_zero_dates_can_be_null() -> None:
    golden, stream = _pair("zero_dates", "mysql")
    changes = decode(stream.data, golden.tables(stream.flavor), stream.flavor, began="empty", zero_dates="null")
    assert all("odd" not in row for row in rows(changes))


def test_statements_reach_the_schema_history_with_their_database_and_in_their_alphabet() -> None:
    golden, stream = _pair("names_and_statements_in_other_alphabets", "mysql")
    tables = golden.tables(stream.flavor)
    decode(stream.data, tables, stream.flavor, began="empty")
    assert ("golden", "CREATE TABLE `é` (id int)") in tables.statements


def _pair(name: str, server: str) -> tuple[Golden, Stream]:
    return next(pair for pair in STREAMS if pair[0].name == name and pair[1].server == server)


def _changes(name: str, server: str) -> list[Change]:
    golden, stream = _pair(name, server)
    return decode(stream.data, golden.tables(stream.flavor), stream.flavor, began="empty")


def _last(changes: list[Change]) -> Committed:
    return [change for change in changes if isinstance(change, Committed)][-1]


@pytest.mark.parametrize(("golden", "stream"), STREAMS, ids=map(mygoldens.label, STREAMS))
def test_tables_may_be_forgotten_between_transactions(
    golden: Golden, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noted_rows, "_MOST_NUMBERS", 0)
    mygoldens.check(golden, stream)
