"""A range of the log delivered again: to a sink that lost it, to a new one, and never beyond what it has."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from tests.support.blocks import make_change, make_table, position
from tests.support.terminal import Terminal
from tidemill import config
from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.servers.valkey import Valkey
from tidemill.log import LogConfig, LogReader, LogWriter, Tail, acknowledge
from tidemill.model.delivery import Checkpoint
from tidemill.service.run.ownership import lock_stopped_pipeline

DOCUMENT = """
metadata: {{name: orders}}
spec:
  source: {{type: postgres, config: {{id: shop, dsn: "postgresql://nobody@127.0.0.1:1/none", tables: [public.orders]}}}}
  sinks: [{sinks}]
  state_dir: {state}
  log: {{retention_seconds: 3600}}
"""
ORDERS, ITEMS = make_table("orders"), make_table("items")


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def _pipeline(folder: Path, *sinks: str, delivered: int = 8) -> config.Pipeline:
    """Transactions end at 3, 5, 8 and 10, of which the first two are of one append; `items` have every second event
    since 5. The time between 5 and 8 is at least a millisecond long."""
    path = folder / "orders.yaml"
    path.write_text(DOCUMENT.format(sinks=", ".join(sinks), state=folder / "state"))
    (pipeline,) = config.load(path)
    with closing(LogWriter.open(pipeline.log_uri, LogConfig.model_validate({}))) as writer:
        writer.append(make_change(3, 2, number=1, tables=[ORDERS]))
        time.sleep(0.01)
        writer.append(make_change(3, number=3, tables=[ORDERS, ITEMS], first_id=100))
        time.sleep(0.01)
        writer.append(make_change(2, number=4, tables=[ORDERS], first_id=200))
    with closing(pipeline.build_checkpoints()) as store:
        store.save(pipeline.name, Checkpoint(delivered, position(3)), expect=0)
    acknowledge(pipeline.log_uri, Tail(delivered, position(3)))
    return pipeline


def _files(folder: Path) -> str:
    return f'{{type: files, config: {{id: out, path: "{folder}/out"}}}}'


def _events(folder: Path, table: str = "*") -> list[tuple[str, int]]:
    """(table, id) in the order of their files."""
    found = []
    for path in sorted(folder.glob(f"out/{table}/*.jsonl")):
        found += [orjson.loads(line) for line in path.read_bytes().splitlines()]
    return [(event["table"], event["after"]["id"]) for event in found]


def _time_of(pipeline: config.Pipeline, offset: int) -> str:
    entry = next(entry for entry in LogReader(pipeline.log_uri).entries(0) if entry.base == offset)
    return datetime.fromtimestamp(entry.written_at / 1000, UTC).isoformat()


@pytest.mark.parametrize(
    ("begin", "end", "start", "stop"),
    [
        ("0", None, 0, 8),
        ("3", "5", 3, 5),
        ("4", "6", 3, 8),  # inside transactions: wholly
        (position(1), None, 3, 8),
        ("0", position(2), 0, 5),
        ("at 5", None, 5, 8),
        ("0", "at 5", 0, 5),
        ("5", "5", 5, 5),
    ],
)
def test_a_range_is_named_by_offset_time_or_position_and_has_whole_transactions(
    tidemill: Terminal, tmp_path: Path, begin: str, end: str | None, start: int, stop: int
) -> None:
    pipeline = _pipeline(tmp_path, _files(tmp_path))
    places = [_time_of(pipeline, 5) if place == "at 5" else place for place in (begin, end) if place is not None]
    options = ["--from", places[0], *(["--to", places[1]] if end is not None else [])]
    answer = tidemill("replay", pipeline.file, *options, "--yes", "--json")
    assert answer.code == 0, answer
    found = answer.json
    assert (found["sink"], found["start"], found["end"], found["delivered"]) == ("out", start, stop, stop - start)
    assert len(_events(tmp_path)) == stop - start


def test_replayed_events_pass_the_processors_of_the_document(tidemill: Terminal, tmp_path: Path) -> None:
    pipeline = _pipeline(tmp_path, _files(tmp_path))
    path = Path(pipeline.file)
    path.write_text(
        path.read_text()
        + """  processors:
    - {type: filter, id: even, tables: [public.orders], where: {field: id, in: [0, 2, 4]}}
    - {type: rename, id: names, columns: {id: number}}
"""
    )
    assert tidemill("replay", path, "--from", "0", "--yes", "--json").json["delivered"] == 4
    found = [orjson.loads(line) for file in tmp_path.glob("out/*/*.jsonl") for line in file.read_bytes().splitlines()]
    assert sorted((event["table"], event["after"]["number"]) for event in found) == [
        ("items", 100), ("orders", 0), ("orders", 2), ("orders", 4),
    ]  # fmt: skip


def test_positions_stay_where_they_are_and_a_second_replay_brings_the_same_files(
    tidemill: Terminal, tmp_path: Path
) -> None:
    pipeline = _pipeline(tmp_path, _files(tmp_path))
    before = tidemill("checkpoints", "show", pipeline.file, "--json").json
    for _ in range(2):
        assert tidemill("replay", pipeline.file, "--from", "0", "--yes").code == 0
    assert tidemill("checkpoints", "show", pipeline.file, "--json").json == before
    assert sorted(_events(tmp_path)) == sorted([("orders", i) for i in (0, 1, 2, 3, 4, 100, 101)] + [("items", 100)])


def test_only_the_tables_that_are_asked_for_come(tidemill: Terminal, tmp_path: Path) -> None:
    pipeline = _pipeline(tmp_path, _files(tmp_path))
    answer = tidemill("replay", pipeline.file, "--from", "0", "--table", "*.items", "--yes", "--json")
    assert (answer.json["delivered"], _events(tmp_path)) == (1, [("items", 100)])
    missing = tidemill("replay", pipeline.file, "--from", "0", "--to", "5", "--table", "public.items", "--yes")
    assert missing.code == 2
    assert "It has events of: public.orders" in missing.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--from", "0", "--to", "10"], "what follows is delivered to it by `run`"),
        (["--from", "11"], "the log does not have offset 11: it holds 0 to 10"),
        (["--from", "5", "--to", "3"], "--to (3) is before --from (5)"),
        (["--from", "yesterday"], "no offset, no time and no position"),
        (["--from", "0", "--sink", "nobody"], "Name one with --sink: out"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_a_way_out(
    tidemill: Terminal, tmp_path: Path, options: Sequence[str], said: str
) -> None:
    pipeline = _pipeline(tmp_path, _files(tmp_path))
    answer = tidemill("replay", pipeline.file, *options, "--yes")
    assert answer.code == 2
    assert said in answer.err
    assert _events(tmp_path) == []


def test_it_asks_first_and_not_while_the_pipeline_runs(tidemill: Terminal, tmp_path: Path) -> None:
    pipeline = _pipeline(tmp_path, _files(tmp_path))
    asked = tidemill("replay", pipeline.file, "--from", "0")
    assert asked.code == 1
    assert '8 events, offsets 0 to 7, are delivered to sink "out"' in asked.err
    with lock_stopped_pipeline(pipeline):
        assert tidemill("replay", pipeline.file, "--from", "0", "--yes").code != 0
    assert _events(tmp_path) == []


def _postgres(dsn: str) -> str:
    return f'{{type: postgres, config: {{id: copy, dsn: "{dsn}"}}}}'


def _rows(db: psycopg.Connection[Any], table: str) -> list[int]:
    return [i for (i,) in db.execute(f"SELECT id FROM public.{table} ORDER BY id".encode())]


def test_a_new_sink_begins_in_the_past_and_one_that_lost_rows_has_them_again(
    tidemill: Terminal, tmp_path: Path, postgres18: Postgres
) -> None:
    """Of two sinks the second is new: it has nothing yet, and begins at the pipeline's checkpoint."""
    with postgres18.database("replayed") as dsn, psycopg.connect(dsn, autocommit=True) as db:
        pipeline = _pipeline(tmp_path, _files(tmp_path), _postgres(dsn))
        answer = tidemill("replay", pipeline.file, "--from", position(1), "--sink", "copy", "--yes", "--json")
        assert answer.json["delivered"] == 5, answer
        assert (_rows(db, "orders"), _rows(db, "items")) == ([3, 4, 100, 101], [100])
        whole = [3, 4, 100, 101]
        db.execute("DELETE FROM public.orders WHERE id > 50")
        assert tidemill("replay", pipeline.file, "--from", "0", "--sink", "copy", "--yes").code == 0
        assert _rows(db, "orders") == [0, 1, 2, *whole]
        assert _events(tmp_path) == [], "the other sink gets nothing"


def test_a_sink_that_holds_rows_is_said_to_go_back_where_the_range_ends_early(
    tidemill: Terminal, tmp_path: Path, postgres18: Postgres
) -> None:
    with postgres18.database("goes_back") as dsn:
        pipeline = _pipeline(tmp_path, _postgres(dsn))
        asked = tidemill("replay", pipeline.file, "--from", "0", "--to", "5").err
        assert "rows go back to how they were before 5" in asked
        assert "go back" not in tidemill("replay", pipeline.file, "--from", "0").err


def test_a_stream_gets_the_events_after_those_that_it_has(tidemill: Terminal, tmp_path: Path) -> None:
    import redis

    with Valkey() as server:
        sink = f'{{type: redis, config: {{id: out, uri: "redis://127.0.0.1:{server.port}", stream: all}}}}'
        pipeline = _pipeline(tmp_path, sink)
        for _ in range(2):
            assert tidemill("replay", pipeline.file, "--from", "3", "--yes").code == 0
        entries = redis.Redis(port=server.port).xrange("all")
    assert [orjson.loads(fields[b"event"])["after"]["id"] for _, fields in entries] == [3, 4, 100, 100, 101] * 2
