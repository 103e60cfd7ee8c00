"""`tidemill dlq` over a real store, with a real sink that writes files and can be told what it never takes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import orjson
import psycopg
import pytest

from tests.config.conftest import PIPELINE
from tests.stream import scribe
from tests.support.blocks import make_change, position
from tests.support.components import register
from tests.support.terminal import Terminal
from tidemill import config, registry
from tidemill.dlq import DeadLetters
from tidemill.errors import Poisoned
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.delivery import Checkpoint, Delivery
from tidemill.stream.quarantine import letters_of


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
        store.put(letters_of(Poisoned(reasons), delivery, sink))
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
    assert [(each["sink"], each["offset"]) for each in answer["letters"]] == [("s", 3), ("s", 4), ("t", 4), ("s", 17)]
    assert "payload" not in answer["letters"][0]
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
    (left,) = store.letters()
    assert (left.sink, left.offset, left.attempts) == ("s", 4, 2)
    assert "unreadable" in left.reason
    (tmp_path / "s.poison").unlink()
    assert tidemill("dlq", "replay", pipeline.file, left.number, "--yes").code == 0
    assert store.letters() == []
    assert written(tmp_path, "s") == [3, 17, 4]


def test_replay_says_that_letters_arrive_behind_later_events_and_waits_for_a_yes(
    tidemill: Terminal, pipeline: config.Pipeline, store: DeadLetters, tmp_path: Path
) -> None:
    answer = tidemill("dlq", "replay", pipeline.file, "--sink", "t")
    assert answer.code == 1
    assert "1 of 1 letters are older than what their sink has" in answer.err
    assert written(tmp_path, "t") == []
    assert len(store.letters()) == 4


def test_replay_asks_a_sink_that_is_away_once(
    tidemill: Terminal, pipeline: config.Pipeline, store: DeadLetters, tmp_path: Path
) -> None:
    (tmp_path / "s-0.fail").write_text("retry")
    answer = tidemill("dlq", "replay", pipeline.file, "--sink", "s", "--yes", "--json")
    assert (answer.json["replayed"], answer.json["failed"], answer.json["untried"]) == (0, 1, 2)
    assert [letter.attempts for letter in store.letters(sink="s")] == [2, 1, 1]
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
    (left,) = store.letters(sink="s")
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
    assert len(store.letters()) == 4


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
    assert "3 events of orders are never delivered" in refused.err
    assert tidemill("dlq", "purge", pipeline.file, 1, 99, "--yes").code == 2
    assert len(store.letters()) == 4
    assert tidemill("dlq", "purge", pipeline.file, 1, "--yes", "--json").json["purged"] == 1
    assert tidemill("dlq", "purge", pipeline.file, "--yes", "--json").json["purged"] == 3
    assert store.letters() == []


def test_a_pipeline_without_dead_letters_says_how_to_have_them(tidemill: Terminal, pipeline: config.Pipeline) -> None:
    path = Path(pipeline.file)
    path.write_text(path.read_text().replace("  dlq:\n", ""))
    assert tidemill("dlq", "ls", path).code == 0, "letters of earlier days can still be seen"
    pipeline.dlq_path.unlink()
    answer = tidemill("dlq", "ls", path)
    assert answer.code == 2
    assert "dlq: {}" in answer.err
