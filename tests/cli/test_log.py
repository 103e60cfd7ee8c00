from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.config.conftest import PIPELINE
from tests.support.blocks import make_change, make_table
from tests.support.components import register
from tests.support.terminal import Terminal
from tidemill import config
from tidemill.log import LogConfig, LogWriter, Tail, acknowledge
from tidemill.model.position import Position


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    register(monkeypatch)
    return Terminal(capsys)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pipeline whose log has three appends: 0-3 and 3-8 of two tables, 8-10 a barrier."""
    register(monkeypatch)
    path = tmp_path / "orders.yaml"
    path.write_text(PIPELINE + f"  state_dir: {tmp_path}/state\n")
    (pipeline,) = config.load(path)
    writer = LogWriter.open(pipeline.log_uri, LogConfig.model_validate({}))
    tables = (make_table("orders"), make_table("items"))
    writer.append(make_change(3, tables=tables, number=1))
    writer.append(make_change(2, 3, tables=tables, number=2, first_id=3))
    writer.append(make_change(2, number=4, first_id=8, barrier=True))
    yield path
    writer.close()


def lines(out: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in out.splitlines()]


def test_ls_lists_appends(tidemill: Terminal, file: Path) -> None:
    appends = tidemill("log", "ls", file, "--json").json["appends"]
    assert [(a["offset"], a["events"], a["transactions"], a["barrier"]) for a in appends] == [
        (0, 3, 1, False),
        (3, 5, 2, False),
        (8, 2, 1, True),
    ]
    assert appends[1]["tables"] == {"public.orders": 3, "public.items": 2}
    text = tidemill("log", "ls", file, "--from", 3, "--limit", 1).out
    assert "public.items" in text
    assert len(text.splitlines()) == 2


def test_cat_prints_events_in_order_across_tables(tidemill: Terminal, file: Path) -> None:
    answer = tidemill("log", "cat", file)
    events = lines(answer.out)
    assert [event["offset"] for event in events] == list(range(10))
    assert {event["table"] for event in events} == {"orders", "items"}
    assert events[0]["event_id"] == "p:0/100:0"  # the source's id, so that it is the id that sinks got


def test_cat_takes_a_range_a_table_and_a_limit(tidemill: Terminal, file: Path) -> None:
    def offsets(*options: object) -> list[int]:
        return [event["offset"] for event in lines(tidemill("log", "cat", file, *options).out)]

    assert offsets("--from", 2, "--to", 5) == [2, 3, 4]
    assert offsets("--limit", 2) == [0, 1]
    both = sorted(offsets("--table", "public.orders") + offsets("--table", "*.items"))
    assert both == list(range(10))
    assert offsets("--table", "nothing") == []
    assert offsets("--from", 99) == []


def test_tail_prints_the_last_events_that_the_filters_leave(tidemill: Terminal, file: Path) -> None:
    def offsets(*options: object) -> list[int]:
        return [event["offset"] for event in lines(tidemill("log", "tail", file, *options).out)]

    items = [event["offset"] for event in lines(tidemill("log", "cat", file, "--table", "*.items").out)]
    assert 9 not in items, "the last event is of the other table"
    assert offsets() == list(range(10))
    assert offsets("--limit", 3) == [7, 8, 9]
    assert offsets("--table", "*.items", "--limit", 2) == items[-2:]
    assert offsets("--op", "insert", "--limit", 2) == [8, 9]
    assert offsets("--op", "truncate") == []
    assert offsets("--since", "2001-01-01T00:00:00Z") == list(range(10))
    assert offsets("--since", "2999-01-01T00:00:00Z") == []
    assert tidemill("log", "tail", file, "--op", "upsert").code == 2
    assert tidemill("log", "tail", file, "--since", "yesterday").code == 2


def test_a_log_can_be_read_by_its_directory(tidemill: Terminal, file: Path) -> None:
    (pipeline,) = config.load(file)
    direct = tidemill("log", "cat", pipeline.log_uri).out
    assert direct.replace('"unknown', '"p') == tidemill("log", "cat", file).out


def test_stats_count_tables_and_what_is_not_delivered(tidemill: Terminal, file: Path) -> None:
    (pipeline,) = config.load(file)
    acknowledge(pipeline.log_uri, Tail(3, Position("0/100")))
    stats = tidemill("log", "stats", file, "--json").json
    assert (stats["head"], stats["tail"], stats["delivered"], stats["undelivered_events"]) == (0, 10, 3, 7)
    assert (stats["appends"], stats["barriers"]) == (3, 1)
    assert {table["table"]: table["events"] for table in stats["tables"]}.keys() == {"public.orders", "public.items"}
    assert "undelivered events" in tidemill("log", "stats", file).out


def test_an_empty_log_is_no_error(tidemill: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text(PIPELINE + f"  state_dir: {tmp_path}/nothing\n")
    assert tidemill("log", "ls", path, "--json").json == {"appends": []}
    assert tidemill("log", "cat", path).out == ""
    assert tidemill("log", "stats", path, "--json").json["tail"] == 0
    assert not (tmp_path / "nothing").exists()


def test_a_file_with_several_pipelines_needs_a_name(tidemill: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(PIPELINE + "---\n" + PIPELINE.replace("orders", "users").replace("id: p,", "id: q,"))
    answer = tidemill("log", "ls", path)
    assert answer.code == 2
    assert "orders, users" in answer.err
    assert tidemill("log", "ls", path, "-p", "nobody").code == 2
