"""Bytes of real servers become the events that their SQL means."""

from __future__ import annotations

import pytest

from tests.decoders.pgoutput import goldens
from tests.decoders.pgoutput.cases import CASES
from tests.decoders.pgoutput.goldens import Golden, Stream
from tests.support.pgstream import decode, tables_of
from tidemill.model.change import Committed, SpillAborted, SpillCommitted, Spilled

STREAMS = goldens.load()


@pytest.mark.parametrize(("golden", "stream"), STREAMS, ids=map(goldens.label, STREAMS))
def test_bytes_of_a_server_become_the_events_of_its_sql(golden: Golden, stream: Stream) -> None:
    goldens.check(golden, stream)


def test_every_case_was_recorded_as_it_stands() -> None:
    recorded = {golden.name: golden for golden, _ in STREAMS}
    assert set(recorded) == {case.name for case in CASES}
    for case in CASES:
        golden = recorded[case.name]
        again = f"{case.name} changed: python -m tests.decoders.pgoutput.record {case.name}"
        assert (golden.setup, golden.sql) == (list(case.setup), list(case.sql)), again
        assert golden.expected == goldens.numbered(case.expected), again
        assert [(int(s.server.split(".")[0]), s.protocol, s.streaming) for s in golden.streams] == list(case.streams)


def test_transactions_that_the_server_streams_leave_before_their_commit() -> None:
    kinds = _kinds("two_streamed_at_once")
    assert kinds.count(Spilled) > 3
    assert kinds.count(SpillCommitted) == 2
    assert kinds.index(SpillCommitted) > kinds.index(Spilled)


def test_a_streamed_transaction_that_is_rolled_back_is_taken_back() -> None:
    kinds = _kinds("streamed_and_rolled_back")
    assert kinds.index(SpillAborted) > kinds.index(Spilled)
    assert SpillCommitted not in kinds


def test_rolled_back_savepoints_are_named_at_the_commit() -> None:
    golden, stream = next(pair for pair in STREAMS if pair[0].name == "streamed_with_savepoints_rolled_back")
    changes = decode(stream.data, tables_of(golden.keys))
    (commit,) = [change for change in changes if isinstance(change, SpillCommitted)]
    assert len(commit.aborted) == 2  # two savepoints, one inside the other
    sent = sum(change.events for change in changes if isinstance(change, Spilled))
    assert sent > len(golden.expected), "rolled-back rows were sent, or the test proves nothing"


def test_what_ended_before_a_table_changed_is_an_append_of_its_own() -> None:
    """Rows that were committed before must not wait with those of the new structure."""
    golden, stream = next(pair for pair in STREAMS if pair[0].name == "identity_changed_between_transactions")
    appends = [c for c in decode(stream.data, tables_of(golden.keys)) if isinstance(c, Committed) and c.events]
    assert [change.events for change in appends] == [1, 1, 1]
    assert [bool(change.barrier) for change in appends] == [False, True, True]


def test_marks_are_where_transactions_end() -> None:
    golden, stream = next(pair for pair in STREAMS if pair[0].name == "every_protocol_version")
    (change,) = (c for c in decode(stream.data, tables_of(golden.keys)) if isinstance(c, Committed) and c.events)
    assert [events for events, _ in change.marks] == [5]
    assert change.through == change.marks[-1][1]


def _kinds(name: str) -> list[type]:
    golden, stream = next(pair for pair in STREAMS if pair[0].name == name)
    return [type(change) for change in decode(stream.data, tables_of(golden.keys))]
