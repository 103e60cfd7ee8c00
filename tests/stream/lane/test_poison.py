"""A lane of a batch with poison in it, in this process: no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from tests.stream import scribe
from tests.support.blocks import make_change, make_table
from tests.support.deliveries import make_deliveries, make_events
from tidemill import registry
from tidemill.dlq import unpack
from tidemill.errors import DeliveryError, Poisoned, Refused
from tidemill.log import LogConfig, LogReader, LogWriter, codec
from tidemill.model.delivery import Delivery, Receipt
from tidemill.model.schema_change import SchemaChangeKind
from tidemill.model.types import DataType, JsonForm
from tidemill.schema.view import TableView
from tidemill.stream.batch.plan import Lane, LaneResult, Plan
from tidemill.stream.lane import poison as poisoning
from tidemill.stream.lane.deliver import deliver
from tidemill.stream.lane.poison import dead_letters_of
from tidemill.stream.lane.pool import POOL


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A log of 20 events over two tables, and a sink `scribe` that this process knows."""
    log = LogWriter.open(str(tmp_path / "log"), LogConfig.model_validate({"fsync": False}))
    log.append(make_change(10, 10, tables=[make_table("orders"), make_table("customers")]))
    log.close()
    installed = registry._entry_points
    mine = EntryPoint("scribe", f"{scribe.__name__}:Scribe", "tidemill.sinks")
    monkeypatch.setattr(
        registry, "_entry_points", lambda family: [*([mine] if family == "sinks" else []), *installed(family)]
    )
    yield tmp_path
    POOL.close()


def write(
    directory: Path, *without: int, dead_letters: bool = True, seconds: float = 0.0, seen: dict[str, Any] | None = None,
    **settings: Any,
) -> LaneResult:  # fmt: skip
    config = {"id": "s", "directory": str(directory), **settings}
    plan = Plan(
        "p",
        "src",
        str(directory / "log"),
        "p",
        "run",
        (("scribe", config),),
        retry_seconds=seconds,
        dead_letters=dead_letters,
        **(seen or {}),
    )
    (answer,) = deliver(plan, Lane(0, 20, 0, 1, "hash"), {"s": without} if without else None)
    return answer


def poison(directory: Path, *offsets: int) -> None:
    (directory / "s.poison").write_bytes(orjson.dumps(offsets))


def written(directory: Path) -> list[int]:
    (line,) = (directory / "s.jsonl").read_bytes().splitlines()
    return sorted(row[2] for row in orjson.loads(line)["rows"])


def test_poison_is_answered_with_letters_before_anything_is_written(directory: Path) -> None:
    """A sink that has the rest may skip a replay as a whole: the letters must be stored by then."""
    poison(directory, 3, 4, 17)
    answer = write(directory)
    assert (answer.receipt.ok, answer.receipt.retryable) == (False, True)
    assert not (directory / "s.jsonl").exists()
    dead_letters = unpack(answer.dead_letters)
    assert [dead_letter.offset for dead_letter in dead_letters] == [3, 4, 17]
    assert dead_letters[0].table == "public.customers"
    assert dead_letters[2].event_id == "src:0/200:7"
    assert {dead_letter.reason for dead_letter in dead_letters} == {"unreadable"}


def test_the_rest_is_written_without_the_letters(directory: Path) -> None:
    poison(directory, 3, 4, 17)
    answer = write(directory, 3, 4, 17)
    assert (answer.receipt.ok, answer.receipt.events, answer.dead_letters) == (True, 17, b"")
    assert written(directory) == [offset for offset in range(20) if offset not in (3, 4, 17)]


def test_a_value_that_does_not_fit_what_processors_see_is_a_dead_letter_before_they_run(directory: Path) -> None:
    """The type of a column changed, and the policy of that change is ignore."""
    table = make_table("orders")
    whole = DataType("integer", pa.int32(), JsonForm.NUMBER)
    before = replace(table, columns=tuple(replace(c, type=whole) if c.name == "weight" else c for c in table.columns))
    view = TableView.whole(before.with_fingerprint()).follow(table, frozenset({SchemaChangeKind.CHANGE_TYPE}))
    seen = {
        "views": {"s": {"public.orders": [[0, view.to_dict()]]}},
        "processors": (("filter", {"id": "some", "where": {"field": "weight", "gte": 0}}),),
    }
    answer = write(directory, seen=seen)
    dead_letters = unpack(answer.dead_letters)
    assert (answer.receipt.retryable, {each.table for each in dead_letters}) == (True, {"public.orders"})
    assert len(dead_letters) == 8  # a weight is a whole number in every eighth row
    out = [each.offset for each in dead_letters]
    assert write(directory, *out, seen=seen).receipt.ok
    assert written(directory) == [offset for offset in range(20) if offset not in out]
    stopped = write(directory, dead_letters=False, seen=seen)
    assert (stopped.receipt.retryable, "dlq: {}" in stopped.receipt.error) == (False, True)


def test_a_sink_that_names_one_event_at_a_time_comes_to_an_end(directory: Path) -> None:
    poison(directory, 3, 4, 17)
    out: tuple[int, ...] = ()
    while not (answer := write(directory, *out, at_once=1)).receipt.ok:
        out += tuple(dead_letter.offset for dead_letter in unpack(answer.dead_letters))
        assert len(out) <= 3
    assert out == (3, 4, 17)
    assert len(written(directory)) == 17


def test_a_letter_holds_the_event_exactly(directory: Path) -> None:
    poison(directory, 4)
    (dead_letter,) = unpack(write(directory).dead_letters)
    block = codec.load(pa.py_buffer(dead_letter.payload))
    log = LogReader(str(directory / "log"))
    (whole,) = [log.read(ref) for ref in log.refs(0, 20) if ref.table == "public.orders"]
    assert block.table == whole.table
    assert block.batch.to_pylist() == whole.take([2]).batch.to_pylist()
    assert block.offsets().tolist() == [4]
    assert len(block.batch.column("position").dictionary) == 1


def test_without_dead_letters_poison_refuses_the_batch_and_says_what_to_do(directory: Path) -> None:
    poison(directory, 3)
    answer = write(directory, dead_letters=False)
    assert not answer.receipt.ok
    assert not answer.receipt.retryable
    assert "event 3: unreadable" in answer.receipt.error
    assert "dlq: {}" in answer.receipt.error
    assert not (directory / "s.jsonl").exists()


def test_a_batch_with_too_much_poison_is_refused_as_a_whole(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poisoning, "MOST_DEAD_LETTERS", 2)
    poison(directory, 3, 4, 5)
    answer = write(directory)
    assert not answer.receipt.ok
    assert "more than 2 events of one delivery are refused" in answer.receipt.error
    assert answer.dead_letters == b""
    monkeypatch.setattr(poisoning, "MOST_DEAD_LETTERS", 1000)
    monkeypatch.setattr(poisoning, "MOST_BYTES", 100)
    assert "more than 100 bytes" in write(directory).receipt.error


def test_letters_are_counted_over_all_tries_of_a_delivery(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poisoning, "MOST_DEAD_LETTERS", 2)
    poison(directory, 3, 4, 5)
    answer = write(directory, 3, 4)
    assert (answer.receipt.retryable, answer.dead_letters) == (False, b"")


def test_a_sink_must_name_an_event_it_was_given_and_did_not_name_before() -> None:
    (delivery,) = make_deliveries(make_events(100), 10, 20, lanes=1)
    (dead_letter,) = dead_letters_of(Poisoned({12: "bad"}), delivery, "s")
    assert dead_letter.offset == 12
    left = delivery.without([12])
    assert (left.start, left.end, sum(block.rows for block in left)) == (10, 20, 9)
    for stranger in (12, 20, 9):
        with pytest.raises(Refused, match="was not given"):
            dead_letters_of(Poisoned({stranger: "bad", 13: "bad"}), left, "s", before=1)


def test_a_sink_that_fails_otherwise_keeps_its_letters_for_the_next_attempt(directory: Path) -> None:
    poison(directory, 3)
    (directory / "s-0.fail").write_text("retry")
    answer = write(directory)
    assert not answer.receipt.ok
    assert answer.receipt.retryable
    assert answer.dead_letters == b""
    (directory / "s-0.fail").unlink()
    assert len(unpack(write(directory).dead_letters)) == 1


def test_a_receipt_says_how_often_the_worker_tried_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_once, tries = scribe.Scribe.write, []

    def write_at_last(self: scribe.Scribe, delivery: Delivery) -> Receipt:
        tries.append(delivery.start)
        if len(tries) < 3:
            raise DeliveryError("not yet")
        return write_once(self, delivery)

    monkeypatch.setattr(scribe.Scribe, "write", write_at_last)
    assert write(directory).receipt.retries == 0
    assert write(directory, seconds=30.0).receipt.retries == 1
