"""Events are found by table and op however far back they are, and followed as they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.blocks import make_block, make_change, make_table
from tidemill.errors import ConfigError
from tidemill.log import LogConfig, LogWriter, Tail, acknowledge
from tidemill.log.delivered import trim
from tidemill.log.reader import LogReader
from tidemill.model.block import Op
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.service.change_log import captured_events
from tidemill.service.change_log.captured_events import EventFilter, EventTail, print_events, recent_events

ORDERS, ITEMS = make_table("orders"), make_table("items")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LogWriter]:
    made = LogWriter.open(f"{tmp_path}/log", LogConfig.model_validate({"segment_bytes": 1}))
    yield made
    made.close()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"{tmp_path}/log"


def add(writer: LogWriter, count: int, number: int, table: object = ORDERS) -> None:
    writer.append(make_change(count, tables=(table,), number=number, first_id=number * 1000))  # type: ignore[arg-type]


def test_the_last_events_of_a_rare_table_are_found_far_back(
    writer: LogWriter, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured_events, "_FIRST_LOOK", 4)
    add(writer, 3, 1, ITEMS)
    for number in range(2, 40):
        add(writer, 5, number)
    found = recent_events(uri, "shop", EventFilter("*.items"), 2)
    assert [offset for offset, _ in found] == [1, 2]
    every = [*print_events(uri, "shop", 0, None, EventFilter(), 10_000)]
    assert len(every) == 3 + 38 * 5
    for limit in (1, 4, 5, 17, 193, 500):
        assert [line for _, line in recent_events(uri, "shop", EventFilter(), limit)] == every[-limit:]
    assert recent_events(uri, "shop", EventFilter("nothing"), 5) == []


def test_what_is_followed_comes_once_and_what_was_trimmed_is_counted(writer: LogWriter, uri: str) -> None:
    add(writer, 5, 1)
    tail = EventTail(uri, "shop", EventFilter("*.items"))
    assert tail.read(10).lines == []
    add(writer, 4, 2)
    add(writer, 4, 3, ITEMS)
    assert [offset for offset, _ in tail.read(3).lines] == [9, 10, 11]
    assert [offset for offset, _ in tail.read(3).lines] == [12]
    assert tail.read(3).lines == []
    again = EventTail(uri, "shop", EventFilter())
    again.offset = 0
    acknowledge(uri, Tail(13, Position("0/300")))
    trim(uri, 13, LogConfig.model_validate({}))
    new = again.read(100)
    head = LogReader(uri).head()
    assert new.lost == head > 0
    assert [offset for offset, _ in new.lines] == list(range(head, 13))


def test_events_of_one_op_are_found_in_blocks_that_have_several(writer: LogWriter, uri: str) -> None:
    ops = [Op.INSERT, Op.DELETE, Op.INSERT, Op.UPDATE] * 5
    block = make_block(len(ops), ops=ops, offsets=range(len(ops)), table=ORDERS)
    writer.append(Committed((block,), len(ops), ((len(ops), Position("0/100")),)))
    wanted = EventFilter("public.*", "delete")
    assert [offset for offset, _ in recent_events(uri, "shop", wanted, 3)] == [9, 13, 17]
    assert [*print_events(uri, "shop", 2, 14, wanted, 9)] == [
        line for _, line in recent_events(uri, "shop", wanted, 4)
    ][:3]
    tail = EventTail(uri, "shop", EventFilter(op="update"))
    tail.offset = 0
    assert [offset for offset, _ in tail.read(2).lines] == [3, 7]
    assert [offset for offset, _ in tail.read(9).lines] == [11, 15, 19]


def test_an_op_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="upsert") as refused:
        EventFilter(op="upsert")
    assert "insert, update, delete" in refused.value.fix
