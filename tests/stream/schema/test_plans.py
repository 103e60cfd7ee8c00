"""What an operator is shown of a schema change is what the sinks then do, also after changes that were left out."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from tests.stream.schema.test_barrier import ID, NAME, NOTE, OLD, WIDER, Bench, bench, text
from tests.support.capturing import eventually
from tests.support.changes import column, structure
from tidemill.contracts.schema_change_store import ChangeStatus, Decision
from tidemill.errors import SchemaChangeHalted
from tidemill.model.table import Table

__all__ = ["bench"]  # a fixture

EXTRA = text("extra")
WIDEST = structure("items", ID, NAME, NOTE, EXTRA, version=3)


def alterations(statements: Iterable[str]) -> list[str]:
    """Without comments."""
    return [each for each in statements if each.startswith("ALTER")]


def wait_at(bench: Bench) -> list[str]:
    """Comes to the change at which the gate is closed; what the sink would run there."""
    bench.stopping.set()
    assert not bench.deliver()
    bench.stopping.clear()
    newest, *_ = bench.store.changes("mill")
    return alterations(newest.outcomes["copy"].statements)


def ran(bench: Bench) -> list[str]:
    newest, *_ = bench.store.changes("mill")
    assert newest.status is ChangeStatus.APPLIED
    return alterations(newest.outcomes["copy"].statements)


def test_the_plan_after_a_rejected_change_is_what_is_then_made(bench: Bench) -> None:
    bench.begin(gate=True, on_reject="ignore")
    bench.insert(OLD, 1, "a")
    bench.insert(WIDER, 2, "b", "n")
    wait_at(bench)
    bench.decide(Decision.REJECTED)
    bench.deliver()
    bench.insert(WIDEST, 3, "c", "n", "e")
    reached = bench.db("SELECT max(upto) FROM reached")[0][0]
    (previewed,) = bench.barrier.preview(reached, bench.writer.tail.offset)
    bench.begin(gate=True, on_reject="ignore")
    planned = wait_at(bench)
    assert (
        planned
        == ['ALTER TABLE "copy"."items" ADD COLUMN "extra" text']
        == alterations(previewed.plans["copy"].statements)
    )
    bench.decide(Decision.APPROVED, 2)
    bench.deliver()
    assert (ran(bench), bench.columns()) == (planned, ["id", "name", "extra"])
    assert bench.rows() == [(1, "a", None), (2, "b", None), (3, "c", "e")]


def test_a_column_that_was_rejected_may_be_renamed_and_dropped_and_nothing_is_run(bench: Bench) -> None:
    bench.begin(gate=True, on_reject="ignore", sink={"allow_destructive_ddl": True})
    bench.insert(OLD, 1, "a")
    bench.insert(WIDER, 2, "b", "n")
    wait_at(bench)
    bench.decide(Decision.REJECTED)
    bench.insert(structure("items", ID, NAME, text("remark"), version=3, renamed=[("note", "remark")]), 3, "c", "n")
    assert wait_at(bench) == []
    bench.decide(Decision.APPROVED, 2)
    bench.insert(structure("items", ID, NAME, version=4), 4, "d")
    assert wait_at(bench) == []
    bench.decide(Decision.APPROVED, 3)
    bench.deliver()
    assert (ran(bench), bench.columns()) == ([], ["id", "name"])
    assert bench.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def test_an_approval_lets_a_change_pass_and_kinds_that_are_ignored_stay_left_out(bench: Bench) -> None:
    """One statement adds a column and drops another, and only what is added is asked about."""
    bench.begin(
        gate=True, policies=[{"kinds": ["drop_column"], "action": "ignore"}], sink={"allow_destructive_ddl": True}
    )
    bench.insert(WIDER, 1, "a", "n")
    bench.insert(structure("items", ID, NAME, EXTRA, version=2), 2, "b", "e")
    planned = wait_at(bench)
    assert planned == ['ALTER TABLE "copy"."items" ADD COLUMN "extra" text']
    bench.decide(Decision.APPROVED)
    bench.deliver()
    assert (ran(bench), bench.columns()) == (planned, ["id", "name", "note", "extra"])
    assert bench.rows() == [(1, "a", "n", None), (2, "b", None, "e")]


def test_a_preview_runs_nothing_for_what_is_ignored_and_goes_on_from_there(bench: Bench) -> None:
    bench.begin(policies=[{"kinds": ["add_column"], "tables": ["public.items"], "action": "ignore"}])
    bench.insert(OLD, 1, "a")
    bench.deliver()
    renamed = structure("items", ID, text("title"), NOTE, version=3, renamed=[("name", "title")])
    bench.insert(WIDER, 2, "b", "n")
    bench.insert(renamed, 3, "c", "n")
    first, second = bench.barrier.preview(1, 3)
    assert (first.verdict.action, first.plans["copy"].statements) == ("ignore", ())
    assert second.plans["copy"].statements == ('ALTER TABLE "copy"."items" RENAME COLUMN "name" TO "title"',)
    bench.begin(policies=[{"kinds": ["add_column"], "tables": ["public.items"], "action": "ignore"}])
    bench.deliver()
    assert (tuple(ran(bench)), bench.columns()) == (second.plans["copy"].statements, ["id", "title"])


def number(native: str, kind: pa.DataType, *, nullable: bool) -> Table:
    return structure("items", ID, column("n", native, kind, nullable=nullable), version=1 if native == "integer" else 2)


@pytest.mark.parametrize("ignored", ["change_nullability", "change_generated"])
def test_a_type_follows_where_only_something_else_of_its_column_is_ignored(bench: Bench, ignored: str) -> None:
    bench.begin(policies=[{"kinds": [ignored], "action": "ignore"}])
    bench.insert(number("integer", pa.int32(), nullable=False), 1, 7)
    bench.insert(number("bigint", pa.int64(), nullable=ignored == "change_nullability"), 2, 2**40)
    bench.deliver()
    assert bench.rows() == [(1, 7), (2, 2**40)]


def test_a_change_on_which_nobody_decides_in_time_stops_the_pipeline_and_can_still_be_decided(bench: Bench) -> None:
    settings: dict[str, Any] = {"gate": True, "gate_timeout_seconds": 0.5}
    bench.begin(**settings)
    bench.insert(OLD, 1, "a")
    bench.insert(WIDER, 2, "b", "n")
    for _ in range(2):  # a new start does not count anew
        with pytest.raises(SchemaChangeHalted, match=r"nobody decided on it within 0.5 seconds") as expired:
            bench.deliver()
        bench.begin(**settings)
    assert "tidemill ddl approve" in expired.value.fix
    assert (bench.rows(), bench.statuses()) == ([(1, "a")], [ChangeStatus.PENDING])
    bench.decide(Decision.APPROVED)
    bench.deliver()
    assert (bench.rows(), bench.statuses()) == ([(1, "a", None), (2, "b", "n")], [ChangeStatus.APPLIED])


def test_a_decision_that_comes_in_time_counts(bench: Bench) -> None:
    bench.begin(gate=True, gate_timeout_seconds=300)
    bench.insert(OLD, 1, "a")
    bench.insert(WIDER, 2, "b", "n")

    def decide_when_it_waits() -> None:
        eventually(lambda: bench.statuses() == [ChangeStatus.PENDING])
        bench.decide(Decision.APPROVED)

    decider = threading.Thread(target=decide_when_it_waits)
    decider.start()
    assert bench.deliver()
    decider.join()
    assert bench.statuses() == [ChangeStatus.APPLIED]
