"""`tidemill dlq` over a real store, with a real sink that writes files and can be told what it never takes."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pyarrow as pa
import pytest

from tests.config.conftest import PIPELINE
from tests.stream import scribe
from tests.support.blocks import make_block, make_change, position
from tests.support.components import register
from tests.support.terminal import Terminal
from tidemill import config, registry
from tidemill.dlq import DeadLetters, Mark
from tidemill.errors import Poisoned
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.block import Block, Op
from tidemill.model.change import Committed
from tidemill.model.delivery import Checkpoint, Delivery, Receipt
from tidemill.schema.registry import SchemaRegistry
from tidemill.service.redelivery.resend import block_of
from tidemill.stream.lane.poison import dead_letters_of
from tidemill.stream.superseded import Follower


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> config.Pipeline:
    """Stopped at offset 20 of 20; the events 3, 4 and 17 are dead letters of sink s, 4 also of sink t."""
    register(monkeypatch)
    installed = registry._entry_points
    mine = EntryPoint("scribe", f"{scribe.__name__}:Scribe", "tidemill.sinks")
    monkeypatch.setattr(
        registry, "_entry_points", lambda family: [*([mine] if family == "sinks" else []), *installed(family)]
    )
    path = tmp_path / "orders.yaml"
    sinks = "".join(f"    - {{type: scribe, config: {{id: {s}, directory: '{tmp_path}'}}}}\n" for s in "st")
    path.write_text(
        PIPELINE.replace("    - {type: bucket, config: {id: b}}\n", sinks) + f"  state_dir: {tmp_path}/state\n  dlq:\n"
    )
    (pipeline,) = config.load(path)
    log = LogWriter.open(pipeline.log_uri, LogConfig.model_validate({"fsync": False}))
    log.append(make_change(10, 10))
    log.close()
    reader = LogReader(pipeline.log_uri)
    blocks = [reader.read(ref) for ref in reader.refs(0, 20)]
    delivery = Delivery(pipeline.name, "p", 0, 20, 0, 1, lambda: iter(blocks))
    store = DeadLetters(pipeline.dlq_path, pipeline.spec.dlq)
    for sink, reasons in (("s", {3: "too large", 4: "too large", 17: "no such column"}), ("t", {4: "bad key"})):
        store.put(dead_letters_of(Poisoned(reasons), delivery, sink))
    store.close()
    checkpoints = pipeline.build_checkpoints()
    checkpoints.save(pipeline.name, Checkpoint(20, position(2)), expect=0)
    checkpoints.close()
    return pipeline


@pytest.fixture
def store(pipeline: config.Pipeline) -> Iterator[DeadLetters]:
    store = DeadLetters(pipeline.dlq_path)
    yield store
    store.close()


def written(directory: Path, sink: str) -> list[int]:
    """Offsets, in the order of arrival."""
    file = directory / f"{sink}.jsonl"
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [row[2] for line in lines for row in orjson.loads(line)["rows"]]


def test_ls_lists_letters_by_offset_with_their_reasons(tidemill: Terminal, pipeline: config.Pipeline) -> None:
    answer = tidemill("dlq", "ls", pipeline.file, "--json").json
    assert answer["count"] == {"s": 3, "t": 1}
    assert [(each["sink"], each["offset"]) for each in answer["dead_letters"]] == [
        ("s", 3),
        ("s", 4),
        ("t", 4),
        ("s", 17),
    ]
    assert "payload" not in answer["dead_letters"][0]
    out = tidemill("dlq", "ls", pipeline.file, "--sink", "s", "--limit", 2).out
    assert "too large" in out
    assert "no such column" not in out
    assert "2 of 3" in out


def test_show_is_the_event_with_its_reason(tidemill: Terminal, pipeline: config.Pipeline) -> None:
    shown = tidemill("dlq", "show", pipeline.file, 3, "--json").json
    assert (shown["id"], shown["sink"], shown["reason"], shown["attempts"]) == (3, "s", "no such column", 1)
    assert shown["event"]["event_id"] == shown["event_id"] == "p:0/200:7"
    assert shown["event"]["after"]["id"] == 17
    missing = tidemill("dlq", "show", pipeline.file, 99)
    assert missing.code == 2
    assert "99" in missing.err


def test_replay_delivers_by_offset_and_removes_what_arrived(
    tidemill: Terminal, pipeline: config.Pipeline, store: DeadLetters, tmp_path: Path
) -> None:
    (tmp_path / "s.poison").write_bytes(orjson.dumps([4]))
    answer = tidemill("dlq", "replay", pipeline.file, "--yes", "--json")
    assert answer.code == 1, "one failed"
    assert (answer.json["replayed"], answer.json["failed"], answer.json["untried"]) == (3, 1, 0)
    assert written(tmp_path, "s") == [3, 17]
    assert written(tmp_path, "t") == [4]
    (left,) = store.dead_letters()
    assert (left.sink, left.offset, left.attempts) == ("s", 4, 2)
    assert "unreadable" in left.reason
    (tmp_path / "s.poison").unlink()
    assert tidemill("dlq", "replay", pipeline.file, left.number, "--yes").code == 0
    assert store.dead_letters() == []
    assert written(tmp_path, "s") == [3, 17, 4]


def test_a_sink_is_told_which_structure_the_table_of_a_letter_has_by_now(
    tidemill: Terminal, pipeline: config.Pipeline, store: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = store.dead_letter(store.dead_letters(sink="t")[0].number)
    assert whole is not None
    table = block_of(whole).table
    with closing(SchemaRegistry(pipeline.state_path / "registry.sqlite")) as schemas:
        schemas.register(table, position(1))
        more = dataclasses.replace(table, columns=(*table.columns, dataclasses.replace(table.columns[-1], name="more")))
        newest = schemas.register(more.with_fingerprint(), position(2))
    sent: list[Delivery] = []
    write = scribe.Scribe.write

    def noted(sink: scribe.Scribe, delivery: Delivery) -> Receipt:
        sent.append(delivery)
        return write(sink, delivery)

    monkeypatch.setattr(scribe.Scribe, "write", noted)
    assert tidemill("dlq", "replay", pipeline.file, "--yes").code == 0
    assert {delivery.newest for delivery in sent} == {newest}


def test_replay_says_that_letters_arrive_behind_later_events_and_waits_for_a_yes(
    tidemill: Terminal, pipeline: config.Pipeline, store: DeadLetters, tmp_path: Path
) -> None:
    answer = tidemill("dlq", "replay", pipeline.file, "--sink", "t")
    assert answer.code == 1
    assert "1 of 1 dead letters are older than what their sink has" in answer.err
    assert written(tmp_path, "t") == []
    assert len(store.dead_letters()) == 4


def test_replay_asks_a_sink_that_is_away_once(
    tidemill: Terminal, pipeline: config.Pipeline, store: DeadLetters, tmp_path: Path
) -> None:
    (tmp_path / "s-0.fail").write_text("retry")
    answer = tidemill("dlq", "replay", pipeline.file, "--sink", "s", "--yes", "--json")
    assert (answer.json["replayed"], answer.json["failed"], answer.json["untried"]) == (0, 1, 2)
    assert [dead_letter.attempts for dead_letter in store.dead_letters(sink="s")] == [2, 1, 1]
    assert "2 not tried" in tidemill("dlq", "replay", pipeline.file, "--sink", "s", "--yes").out


def test_a_letter_that_is_still_bad_does_not_keep_the_next_ones_from_a_database(
    tidemill: Terminal, pipeline: config.Pipeline, store: DeadLetters, tmp_path: Path, database: str
) -> None:
    path = Path(pipeline.file)
    scribes = f"{{type: scribe, config: {{id: s, directory: '{tmp_path}'}}}}"
    path.write_text(path.read_text().replace(scribes, f'{{type: postgres, config: {{id: s, dsn: "{database}"}}}}'))
    with psycopg.connect(database, autocommit=True) as db:
        # Its other columns are added in the transaction of the first letter, which is taken back.
        db.execute("CREATE TABLE orders (id bigint PRIMARY KEY CHECK (id <> 3))")
        answer = tidemill("dlq", "replay", path, "--sink", "s", "--yes", "--json")
        assert (answer.json["replayed"], answer.json["failed"], answer.json["untried"]) == (2, 1, 0)
        assert db.execute("SELECT id FROM orders ORDER BY id").fetchall() == [(4,), (17,)]
    (left,) = store.dead_letters(sink="s")
    assert (left.offset, left.attempts) == (3, 2)
    assert "check violation" in left.reason


def test_replay_refuses_while_the_pipeline_runs(
    tidemill: Terminal, pipeline: config.Pipeline, store: DeadLetters
) -> None:
    writer = LogWriter.open(pipeline.log_uri, LogConfig.model_validate({}))
    try:
        answer = tidemill("dlq", "replay", pipeline.file, "--yes")
    finally:
        writer.close()
    assert answer.code == 1
    assert "another process writes this log" in answer.err
    assert len(store.dead_letters()) == 4


def test_letters_of_a_sink_that_is_gone_are_not_replayed_elsewhere(
    tidemill: Terminal, pipeline: config.Pipeline, tmp_path: Path
) -> None:
    path = Path(pipeline.file)
    path.write_text(path.read_text().replace("id: t,", "id: other,"))
    for chosen in (("--sink", "t"), ()):
        answer = tidemill("dlq", "replay", path, *chosen, "--yes")
        assert answer.code == 2
        assert "does not have any more" in answer.err
        assert (written(tmp_path, "other"), written(tmp_path, "s")) == ([], []), "nothing is sent by halves"


def test_purge_removes_what_was_chosen_after_a_yes(
    tidemill: Terminal, pipeline: config.Pipeline, store: DeadLetters
) -> None:
    refused = tidemill("dlq", "purge", pipeline.file, "--sink", "s")
    assert refused.code == 1
    assert "3 events of orders are never delivered (3 to s); 3 of them are not superseded" in refused.err
    assert tidemill("dlq", "purge", pipeline.file, 1, 99, "--yes").code == 2
    assert len(store.dead_letters()) == 4
    assert tidemill("dlq", "purge", pipeline.file, 1, "--yes", "--json").json["purged"] == 1
    assert tidemill("dlq", "purge", pipeline.file, "--yes", "--json").json["purged"] == 3
    assert store.dead_letters() == []


def test_a_pipeline_without_dead_letters_says_how_to_have_them(tidemill: Terminal, pipeline: config.Pipeline) -> None:
    path = Path(pipeline.file)
    path.write_text(path.read_text().replace("  dlq:\n", ""))
    assert tidemill("dlq", "ls", path).code == 0, "letters of earlier days can still be seen"
    pipeline.dlq_path.unlink()
    answer = tidemill("dlq", "ls", path)
    assert answer.code == 2
    assert "dlq: {}" in answer.err


class Rows:
    """The pipeline with a PostgreSQL sink s that has been sent everything but its letters; `tell` reads its rows."""

    def __init__(self, pipeline: config.Pipeline, dsn: str, directory: Path) -> None:
        path = Path(pipeline.file)
        scribes = f"{{type: scribe, config: {{id: s, directory: '{directory}'}}}}"
        path.write_text(path.read_text().replace(scribes, f'{{type: postgres, config: {{id: s, dsn: "{dsn}"}}}}'))
        (self.pipeline,) = config.load(path)
        self.log = LogReader(pipeline.log_uri)
        self.dsn = dsn

    def append(self, *blocks: Block) -> None:
        log = LogWriter.open(self.pipeline.log_uri, LogConfig.model_validate({"fsync": False}))
        for number, block in enumerate(blocks):
            log.append(Committed((block,), block.rows, ((block.rows, position(9 + number)),)))
        log.close()

    def deliver(self, start: int, end: int, *, without: set[int] = frozenset(), checkpoint: bool = True) -> None:  # type: ignore[assignment]
        """As the stream does."""
        blocks = [self.log.read(ref) for ref in self.log.refs(start, end)]
        with closing(self.pipeline.build_sink(self.pipeline.spec.sinks[0])) as sink:
            sink.write(Delivery("orders", "p", start, end, 0, 1, lambda: iter(blocks)).without(without))
        if not checkpoint:
            return
        store, saved = DeadLetters(self.pipeline.dlq_path), self.pipeline.build_checkpoints()
        follower = Follower(store, ["s"], "orders")
        follower.begin(start)
        follower.compare(self.log, start, end, {"s": without})
        known = saved.load("orders")
        assert known is not None
        saved.save("orders", Checkpoint(end, position(9)), expect=known.version)
        store.close()
        saved.close()

    def tell(self) -> dict[int, str | None]:
        with psycopg.connect(self.dsn) as db:
            return dict(db.execute("SELECT id, customer FROM orders WHERE id IN (3, 4, 17)").fetchall())


@pytest.fixture
def rows(pipeline: config.Pipeline, database: str, tmp_path: Path) -> Rows:
    rows = Rows(pipeline, database, tmp_path)
    rows.deliver(0, 20, without={3, 4, 17})
    return rows


def renamed(number: int) -> Block:
    """A newer event of that row, with another customer."""
    block = make_block(1, ops=Op.UPDATE, first_id=number)
    after = block.batch.column("after")
    names = [f.name for f in after.type]
    arrays = [pa.array(["newer"]) if name == "customer" else after.field(name) for name in names]
    at = block.batch.schema.get_field_index("after")
    return Block(block.table, block.batch.set_column(at, "after", pa.StructArray.from_arrays(arrays, names)))


def test_a_letter_never_puts_a_row_of_a_database_back_to_an_older_state(
    tidemill: Terminal, rows: Rows, store: DeadLetters
) -> None:
    rows.append(renamed(3))
    rows.deliver(20, 21)
    listed = {
        each["offset"]: each["superseded"]
        for each in tidemill("dlq", "ls", rows.pipeline.file, "--json").json["dead_letters"]
    }
    assert listed == {3: "wholly", 4: "", 17: ""}
    assert "wholly by 20" in tidemill("dlq", "ls", rows.pipeline.file).out
    answer = tidemill("dlq", "replay", rows.pipeline.file, "--sink", "s", "--json")
    assert answer.code == 0, "nobody had to be asked"
    assert (answer.json["replayed"], answer.json["skipped"], answer.json["failed"]) == (2, 1, 0)
    (skipped,) = [each["skipped"] for each in answer.json["dead_letters"] if each["skipped"]]
    assert skipped == "superseded: event 20 is newer"
    assert rows.tell() == {3: "newer", 4: "customer 4 — Zürich", 17: "customer 17 — Zürich"}
    shown = tidemill("dlq", "replay", rows.pipeline.file, "--sink", "s")
    assert "0 delivered, 0 failed, 1 skipped" in shown.out
    (purge,) = [line.partition(": ")[2] for line in shown.out.splitlines() if "dlq purge" in line]
    (number,) = [dead_letter.number for dead_letter in store.dead_letters(sink="s")]
    assert purge == f"tidemill dlq purge {rows.pipeline.file} {number}", "as it can be pasted"
    refused = tidemill("dlq", "replay", rows.pipeline.file, "--sink", "s", "--superseded")
    assert refused.code == 1
    assert "Rows may go back" in refused.err
    tidemill("dlq", "replay", rows.pipeline.file, "--sink", "s", "--superseded", "--yes")
    assert rows.tell()[3] == "customer 3 — Zürich"
    assert store.dead_letters(sink="s") == []


def test_only_superseded_letters_are_let_go_where_that_is_asked(
    tidemill: Terminal, rows: Rows, store: DeadLetters
) -> None:
    rows.append(renamed(3))
    rows.deliver(20, 21)
    (partly,) = [dead_letter.number for dead_letter in store.dead_letters(sink="t")]
    store.mark([Mark(partly, "partly", 20, "")])
    asked = tidemill("dlq", "purge", rows.pipeline.file, "--superseded")
    assert "1 events of orders are never delivered (1 to s)" in asked.err
    assert "not superseded" not in asked.err
    assert tidemill("dlq", "purge", rows.pipeline.file, "--superseded", "--yes", "--json").json["purged"] == 1
    assert [(dead_letter.sink, dead_letter.offset) for dead_letter in store.dead_letters()] == [
        ("s", 4),
        ("t", 4),
        ("s", 17),
    ]


def test_a_letter_superseded_in_part_says_how_to_find_out_whether_the_row_is_right(
    tidemill: Terminal, rows: Rows, store: DeadLetters
) -> None:
    (first, *_) = store.dead_letters(sink="s")
    store.mark([Mark(first.number, "partly", 20, "")])
    answer = tidemill("dlq", "replay", rows.pipeline.file, "--sink", "s", "--json")
    (skipped,) = [each["skipped"] for each in answer.json["dead_letters"] if each["skipped"]]
    assert skipped.startswith("superseded in part: event 20 is newer, but did not bring all that the dead letter has.")
    verify = f"tidemill verify {rows.pipeline.file} --pipeline orders --sink s --table {first.table}"
    assert f"`{verify}`; with --repair the row is sent again if not" in skipped


def test_what_a_sink_is_says_its_config_and_only_the_one_that_sends_is_made(
    tidemill: Terminal, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    build = config.Pipeline.build_sink

    def watched(self: config.Pipeline, spec: Any) -> Any:
        made.append(spec.type)
        return build(self, spec)

    monkeypatch.setattr(config.Pipeline, "build_sink", watched)
    tidemill("dlq", "replay", rows.pipeline.file, "--sink", "s", "--json")
    assert made == ["postgres"]


def test_sinks_that_hold_events_get_superseded_letters_too(
    tidemill: Terminal, rows: Rows, store: DeadLetters, tmp_path: Path
) -> None:
    store.mark([Mark(dead_letter.number, "wholly", 20, "") for dead_letter in store.dead_letters(sink="t")])
    answer = tidemill("dlq", "replay", rows.pipeline.file, "--sink", "t", "--yes", "--json")
    assert (answer.json["replayed"], answer.json["skipped"]) == (1, 0)
    assert written(tmp_path, "t") == [4]


def test_a_newer_event_that_no_checkpoint_covers_yet_holds_a_letter_back(tidemill: Terminal, rows: Rows) -> None:
    """Killed between the sink's commit and the checkpoint: the sink skips the batch when it comes again."""
    rows.append(renamed(3))
    rows.deliver(20, 21, checkpoint=False)
    answer = tidemill("dlq", "replay", rows.pipeline.file, "--sink", "s", "--json").json
    assert (answer["replayed"], answer["skipped"]) == (2, 1)
    rows.deliver(20, 21)
    assert rows.tell()[3] == "newer"


def test_letters_of_an_older_version_are_compared_with_what_the_log_still_has(
    tidemill: Terminal, rows: Rows, store: DeadLetters
) -> None:
    rows.append(renamed(3))
    rows.deliver(20, 21)
    with closing(sqlite3.connect(store.path)) as db, db:
        db.execute("DELETE FROM followed")
    answer = tidemill("dlq", "replay", rows.pipeline.file, 1, 2, "--json").json
    assert [each["skipped"] for each in answer["dead_letters"]] == ["superseded: event 20 is newer", ""]
    assert rows.tell() == {3: "newer", 4: "customer 4 — Zürich"}
    Path(rows.pipeline.log_uri).rename(Path(rows.pipeline.log_uri).with_name("away"))
    answer = tidemill("dlq", "replay", rows.pipeline.file, 3, "--json").json
    assert "is not known" in answer["dead_letters"][0]["skipped"]


def test_a_letter_that_is_replayed_alone_supersedes_older_ones_of_its_row(
    tidemill: Terminal, rows: Rows, store: DeadLetters
) -> None:
    rows.append(renamed(3))
    blocks = [rows.log.read(ref) for ref in rows.log.refs(20, 21)]
    delivery = Delivery("orders", "p", 20, 21, 0, 1, lambda: iter(blocks))
    store.put(dead_letters_of(Poisoned({20: "too large"}), delivery, "s"))
    rows.deliver(20, 21, without={20})
    newest = max(dead_letter.number for dead_letter in store.dead_letters())
    assert tidemill("dlq", "replay", rows.pipeline.file, newest, "--json").json["replayed"] == 1
    answer = tidemill("dlq", "replay", rows.pipeline.file, "--sink", "s", "--json").json
    assert (answer["replayed"], answer["skipped"]) == (2, 1)
    assert rows.tell()[3] == "newer"
