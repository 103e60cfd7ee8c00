"""Processors through real Spark: in the workers, before every sink of a group; their errors and what they learn."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pytest

from tests.stream.conftest import MICRO_BATCHES, Mill
from tests.support.blocks import make_change, make_table
from tidemill.config.spec import Batch
from tidemill.dlq import DeadLetters
from tidemill.errors import ProcessingError
from tidemill.log import codec
from tidemill.model.types import DataType, JsonForm
from tidemill.schema.registry import RegistryFile
from tidemill.service.schema.structures import KeptStructures
from tidemill.stream.batch.admission import ROWS_PER_LANE
from tidemill.stream.schema.structures import Known
from tidemill.stream.spark import source


def quill(**settings: Any) -> tuple[str, dict[str, Any]]:
    """A third party's, found by its entry point."""
    return "quill", {"id": "q", **settings}


EVEN = ("filter", {"id": "even", "where": {"field": "after.paid", "eq": True}})


def test_every_sink_gets_what_the_chain_makes_of_a_batch(mill: Mill) -> None:
    rows = ROWS_PER_LANE * 2
    mill.log.append(make_change(rows))
    mill.run(mill.sink("a"), mill.sink("b"), lanes=2, processors=[EVEN, quill(copies=2)])
    wanted = [offset for offset in range(0, rows, 2) for _ in range(2)]
    assert mill.offsets("a") == wanted
    assert mill.offsets("b") == wanted
    (report,) = mill.reports
    assert [(c.processor, c.events_in, c.events_out) for c in report.processors] == [
        ("even", rows, rows // 2), ("q", rows // 2, rows),
    ]  # fmt: skip
    assert report.events == rows


def test_a_sink_that_is_written_again_gets_the_same_events(mill: Mill) -> None:
    mill.log.append(make_change(10))
    mill.poison("s", 2)
    store = DeadLetters(mill.directory / "dlq.sqlite")
    mill.run(dead_letters=store, processors=[EVEN])
    assert mill.offsets() == [0, 4, 6, 8]
    (kept,) = store.dead_letters()
    assert (kept.offset, kept.stage) == (2, "deliver")
    store.close()


def test_an_event_that_a_processor_fails_on_becomes_a_dead_letter_as_it_was_captured(mill: Mill) -> None:
    mill.log.append(make_change(6))
    store = DeadLetters(mill.directory / "dlq.sqlite")
    mill.run(
        mill.sink("a"), mill.sink("b"), dead_letters=store,
        processors=[("drop", {"id": "d", "columns": ["note"]}), quill(fails_on=[1, 4], on_error="dead_letter")],
    )  # fmt: skip
    assert mill.offsets("a") == mill.offsets("b") == [0, 2, 3, 5]
    assert [(kept.sink, kept.offset, kept.stage) for kept in store.dead_letters()] == [
        ("a", 1, "processor:q"), ("b", 1, "processor:q"), ("a", 4, "processor:q"), ("b", 4, "processor:q"),
    ]  # fmt: skip
    whole = store.dead_letter(store.dead_letters()[0].number)
    assert whole is not None
    assert whole.reason == "processor q: the quill is blunt"
    captured = codec.load(pa.py_buffer(whole.payload))
    assert [c.name for c in captured.table.columns] == [c.name for c in make_table().columns], "as it was captured"
    assert mill.reports[0].processors[1].dead_letters == 2
    store.close()


def test_events_that_are_skipped_are_counted_and_the_others_arrive(mill: Mill) -> None:
    mill.log.append(make_change(6))
    mill.run(processors=[quill(fails_on=[1, 4], on_error="skip")])
    assert mill.offsets() == [0, 2, 3, 5]
    assert mill.reports[0].processors[0].skipped == 2


def test_an_event_that_is_to_halt_stops_the_pipeline_before_anything_is_written(mill: Mill) -> None:
    mill.log.append(make_change(6))
    loop = mill.loop(processors=[quill(fails_on=[4])])
    loop.start()
    with pytest.raises(ProcessingError, match="event 4: the quill is blunt") as stopped:
        loop.await_end(60)
    assert 'processor "q"' in stopped.value.where
    assert mill.offsets() == []
    assert mill.store.load("mill") is None


def test_columns_that_only_rows_tell_are_kept_before_they_are_written(mill: Mill) -> None:
    kept = KeptStructures(RegistryFile(mill.directory / "registry.sqlite"))
    mill.log.append(make_change(4))
    mill.run(processors=[quill(length_of="customer")], structures=kept)
    assert mill.notes()[-1]["columns"][-1] == "length"
    (tables,) = kept.load().values()
    assert tables["public.orders"][-1][0] == "length"
    mill.log.append(make_change(4, number=2))
    mill.run(processors=[quill(length_of="customer")], structures=kept)
    assert mill.offsets() == list(range(8)), "nothing was written twice"
    assert kept.load() == {next(iter(kept.load())): tables}


def test_a_lane_that_learns_is_sent_again_alone_and_later_batches_have_what_it_learned(mill: Mill) -> None:
    rows = ROWS_PER_LANE * 2
    kept = KeptStructures(RegistryFile(mill.directory / "registry.sqlite"))
    settings: dict[str, Any] = {"processors": [quill(length_of="customer", length_at=rows)], "structures": kept}
    mill.log.append(make_change(rows))
    mill.run(lanes=2, **settings)
    assert ["length" in note["columns"] for note in mill.notes()] == [False, False]
    mill.log.append(make_change(rows, number=2))  # one lane of it has the column
    mill.log.append(make_change(rows, number=3))  # none has
    mill.run(lanes=2, batch=Batch(max_events=rows), **settings)
    assert [(n["start"], n["lanes"]) for n in mill.notes()] == [(b * rows, 2) for b in range(3) for _ in range(2)]
    first, second = ("length" in note["columns"] for note in mill.notes()[2:4])
    assert (first, second) == (False, True), "the lane that met nothing new did not wait for the one that did"
    assert all("length" in note["columns"] for note in mill.notes()[4:])
    assert mill.offsets() == list(range(rows * 3)), "nothing was written twice"


def test_a_batch_in_which_nothing_is_learned_is_one_job(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    second_jobs: list[int] = []

    def again(spark: Any, plan: Any, shares: Any) -> pa.Table:
        second_jobs.append(len(shares))
        return sent_again(spark, plan, shares)

    sent_again = source.again
    monkeypatch.setattr(source, "again", again)
    rows = ROWS_PER_LANE * 2
    kept = KeptStructures(RegistryFile(mill.directory / "registry.sqlite"))
    settings: dict[str, Any] = {
        "processors": [quill(length_of="customer")], "structures": kept, "trigger": MICRO_BATCHES
    }  # fmt: skip
    mill.log.append(make_change(rows))
    mill.run(lanes=2, **settings)
    assert second_jobs == [2], "both lanes of the first batch learn"
    mill.log.append(make_change(rows, number=2))
    mill.run(lanes=2, **settings)
    assert second_jobs == [2]
    assert mill.reports[-1].lanes == 2
    assert mill.offsets() == list(range(rows * 2))


def test_a_group_takes_the_types_that_another_group_learned_first(mill: Mill) -> None:
    class Ahead(KeptStructures):
        def save(self, known: Known) -> None:
            stage, tables = next(iter(known.items()))
            other = DataType("bigint", pa.int64(), JsonForm.NUMBER).to_dict()
            super().save({stage: {"public.orders": [*tables["public.orders"][:-1], ["length", other]]}})
            super().save(known)

    kept = Ahead(RegistryFile(mill.directory / "registry.sqlite"))
    mill.log.append(make_change(2))
    loop = mill.loop(processors=[quill(length_of="customer")], structures=kept)
    loop.start()
    try:
        mill.wait(loop, lambda: loop.checkpoint.offset == 2)
    finally:
        loop.stop()
    known = orjson.loads((mill.spark_dir / "structures.json").read_bytes())["known"]
    assert known == kept.load()
    assert [kind["native"] for t in known.values() for name, kind in t["public.orders"] if name == "length"] == [
        "bigint"
    ]
