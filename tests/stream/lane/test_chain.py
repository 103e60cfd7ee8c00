"""The host of processors: which rows they see, what becomes of their errors, and what it makes of what they return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from tests.support.blocks import make_block, make_table
from tidemill import registry
from tidemill.config.spec import Sharding
from tidemill.contracts import BaseProcessor, ProcessorConfig
from tidemill.errors import ConfigError, ProcessingError, TidemillError
from tidemill.model.block import Block, Op
from tidemill.model.derived import image, reshape, sub_ordinals, with_column
from tidemill.model.identity import event_ids
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.stream.batch.admission import spread_by
from tidemill.stream.batch.ordering import ordering
from tidemill.stream.lane.chain import Chain, ChainRun
from tidemill.stream.schema.structures import Known, merge

TEXT = DataType("text", pa.string(), JsonForm.STRING)
BIGINT = DataType("bigint", pa.int64(), JsonForm.NUMBER)


class Custom(BaseProcessor[ProcessorConfig]):
    """Whatever a test says."""

    Config: ClassVar[type[ProcessorConfig]] = ProcessorConfig
    work: ClassVar[Callable[[Block], Block | Sequence[Block]]]
    derives: ClassVar[bool] = False

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            made = type(self).work(block)
            yield from [made] if isinstance(made, Block) else made

    def derive(self, table: Table) -> Table | None:
        return None if self.derives else table


@pytest.fixture
def custom(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Chain]:
    """A chain of one processor that does `work`."""

    def make(work: Callable[[Block], Block | Sequence[Block]], *, learns: bool = False, **config: Any) -> Chain:
        kind = type("Custom", (Custom,), {"work": staticmethod(work), "derives": learns})
        monkeypatch.setattr(registry, "load", lambda family, name: kind)
        return Chain([("custom", {"id": "mine", **config})], "shop")

    return make


def run(chain: Chain, *blocks: Block, known: Mapping[str, Any] | None = None) -> tuple[list[Block], ChainRun]:
    passed = chain.begin(dict(known or {}))
    return list(passed.blocks(iter(blocks))), passed


def offsets(blocks: Sequence[Block]) -> list[int]:
    return [int(offset) for block in blocks for offset in block.offsets()]


def with_new_column(block: Block, name: str, values: pa.Array, kind: DataType) -> Block:
    table = replace(block.table, columns=(*block.table.columns, Column(name, kind)))
    after = block.column("after")
    arrays = [*(block.struct("after") or {}).values(), values]
    images = {"after": image(arrays, table.columns, after)}
    for side in ("key", "before"):
        images[side] = block.column(side)
    return reshape(block, table, images, [c.name for c in block.table.columns] + [None])


def test_rows_of_other_tables_and_operations_pass_by_in_their_place(custom: Callable[..., Chain]) -> None:
    seen: list[int] = []

    def work(block: Block) -> Block:
        seen.extend(int(offset) for offset in block.offsets())
        return block

    chain = custom(work, tables=["public.ord%"], ops=["update"])
    ops = [Op.INSERT, Op.UPDATE, Op.DELETE, Op.UPDATE]
    made, _ = run(chain, make_block(4, ops=ops), make_block(2, table=make_table("items"), offsets=[4, 5]))
    assert seen == [1, 3]
    assert offsets(made) == [0, 1, 2, 3, 4, 5]
    assert [block.table.name for block in made] == ["orders", "items"]
    assert made[0].batch.column("op").to_pylist() == [int(op) for op in ops]


def test_a_processor_is_given_no_ddl_and_no_truncate(custom: Callable[..., Chain]) -> None:
    def work(block: Block) -> Block:
        raise AssertionError("it has none to see")

    made, _ = run(custom(work), make_block(1, ops=Op.TRUNCATE))
    assert offsets(made) == [0]


def test_an_event_that_fails_stops_the_pipeline_with_the_processor_and_the_reason(
    custom: Callable[..., Chain],
) -> None:
    def work(block: Block) -> Block:
        if 2 in block.offsets():
            raise ProcessingError({2: "its weight is negative"})
        return block

    with pytest.raises(ProcessingError) as stopped:
        run(custom(work), make_block(4))
    assert stopped.value.where == 'processor "mine"'
    assert "event 2: its weight is negative" in stopped.value.what


@pytest.mark.parametrize("mode", ["dead_letter", "skip"])
def test_an_event_that_fails_leaves_the_others_and_is_counted(custom: Callable[..., Chain], mode: str) -> None:
    def work(block: Block) -> Block:
        bad = [int(offset) for offset in block.offsets() if offset in (1, 3)]
        if bad:
            raise ProcessingError({bad[0]: "bad"})
        return block

    made, passed = run(custom(work, on_error=mode), make_block(5))
    (count,) = passed.counts
    assert offsets(made) == [0, 2, 4]
    assert (count.dead_letters, count.skipped) == ((2, 0) if mode == "dead_letter" else (0, 2))
    assert sorted(passed.failures) == ([1, 3] if mode == "dead_letter" else [])
    assert (count.events_in, count.events_out) == (3, 3)


def test_an_error_of_the_code_itself_names_its_kind_and_no_value(custom: Callable[..., Chain]) -> None:
    def work(block: Block) -> Block:
        raise ValueError("secret 4711")

    with pytest.raises(TidemillError) as stopped:
        run(custom(work, on_error="skip"), make_block(1))
    assert stopped.value.code == "processing-failed"
    assert "builtins.ValueError" in stopped.value.what
    assert "4711" not in str(stopped.value)


def test_added_events_have_their_parents_identity_and_a_number(custom: Callable[..., Chain]) -> None:
    def work(block: Block) -> Block:
        return block.take([0, 1, 1, 1, 2])

    ((made,), _) = run(custom(work), make_block(3))
    subs = sub_ordinals(made)
    assert offsets([made]) == [0, 1, 1, 1, 2]
    assert subs is not None
    assert subs.tolist() == [0, 0, 1, 2, 0]
    ids = event_ids(made, "shop").to_pylist()
    assert ids == [f"shop:0/100:{each}" for each in ("0", "1", "1.1", "1.2", "2")]


def test_events_that_come_back_in_another_order_are_put_in_order(custom: Callable[..., Chain]) -> None:
    ((made,), _) = run(custom(lambda block: block.take([2, 0, 1])), make_block(3))
    assert offsets([made]) == [0, 1, 2]
    assert made.column("sub") is None


def test_events_that_were_not_given_are_refused(custom: Callable[..., Chain]) -> None:
    with pytest.raises(TidemillError, match="not given"):
        run(custom(lambda block: make_block(2, offsets=[0, 9])), make_block(2))


def _other_ids(block: Block) -> Block:
    struct = block.struct("after") or {}
    arrays = [pa.array([99] * block.rows, pa.int64()), *list(struct.values())[1:]]
    images = {"after": image(arrays, block.table.columns, block.column("after"))}
    return reshape(block, block.table, images, [c.name for c in block.table.columns])


def test_a_key_that_changes_unannounced_is_an_error_of_that_event(custom: Callable[..., Chain]) -> None:
    _, passed = run(custom(_other_ids, on_error="dead_letter"), make_block(2))
    assert {why.reason for why in passed.failures.values()} == {
        "it changes the event's key, which needs changes_keys: true"
    }
    made, passed = run(custom(_other_ids, changes_keys=True), make_block(2))
    assert not passed.failures
    assert (made[0].struct("after") or {})["id"].to_pylist() == [99, 99]


def test_a_new_column_is_learned_and_its_type_stays(custom: Callable[..., Chain]) -> None:
    kinds: list[Any] = [(pa.int64(), BIGINT, 7)]

    def work(block: Block) -> Block:
        arrow, kind, value = kinds[0]
        return with_new_column(block, "extra", pa.array([value] * block.rows, arrow), kind)

    chain = custom(work, learns=True, on_error="dead_letter")
    _, passed = run(chain, make_block(2))
    learned = passed.learned
    assert [[name for name, _ in columns] for tables in learned.values() for columns in tables.values()] == [
        [*(c.name for c in make_table().columns), "extra"]
    ]
    made, passed = run(chain, make_block(2), known=learned)
    assert not passed.learned
    assert made[0].table.columns[-1] == Column("extra", BIGINT)
    fingerprint = made[0].table.fingerprint
    assert fingerprint != make_table().fingerprint

    kinds[0] = (pa.string(), TEXT, "seven")
    made, passed = run(chain, make_block(2), known=learned)
    assert sorted(passed.failures) == [0, 1]
    assert "holds int64 since it was first met" in passed.failures[0].reason

    other = custom(work, learns=True)  # another worker, which has learned nothing itself
    kinds[0] = (pa.int64(), BIGINT, 8)
    made, _ = run(other, make_block(1), known=learned)
    assert made[0].table.fingerprint != ""


def test_of_two_lanes_that_learn_different_types_the_first_stays() -> None:
    one: Known = {"stage": {"t": [["a", None], ["b", {"native": "bigint"}]]}}
    two: Known = {"stage": {"t": [["b", {"native": "text"}], ["c", None]]}}
    assert merge(one, two) == {"stage": {"t": [["a", None], ["b", {"native": "bigint"}], ["c", None]]}}
    assert merge(merge(one, two), two) == merge(one, two)


def test_updates_that_a_processor_does_not_see_leave_its_columns_as_they_are(custom: Callable[..., Chain]) -> None:
    def work(block: Block) -> Block:
        return with_new_column(block, "extra", pa.array([1] * block.rows), BIGINT)

    chain = custom(work, learns=True, ops=["insert"])
    block = make_block(3, ops=[Op.INSERT, Op.UPDATE, Op.DELETE])
    _, passed = run(chain, block)
    ((made,), _) = run(chain, block, known=passed.learned)
    number = len(made.table.columns) - 1
    assert made.table.columns[number].name == "extra"
    assert (made.struct("after") or {})["extra"].to_pylist() == [1, None, None]
    assert made.batch.column("unchanged").to_pylist() == [None, [number], []]


def test_ddl_of_a_table_comes_with_the_structure_that_its_rows_have() -> None:
    chain = Chain([("drop", {"id": "d", "columns": ["note"]})], "shop")
    made, _ = run(chain, make_block(1, ops=Op.TRUNCATE), make_block(1, offsets=[1]))
    assert [c.name for c in made[0].table.columns] == [c.name for c in made[1].table.columns]
    assert "note" not in [c.name for c in made[0].table.columns]
    assert made[0].table.fingerprint == made[1].table.fingerprint
    assert made[0].batch.column("op").to_pylist() == [int(Op.TRUNCATE)]


def test_the_same_chain_gives_the_same_fingerprint_and_another_chain_another() -> None:
    def derived(*specs: tuple[str, dict[str, Any]]) -> str:
        made, _ = run(Chain(specs, "shop"), make_block(1))
        return made[0].table.fingerprint

    drop = ("drop", {"id": "d", "columns": ["note"]})
    rename = ("rename", {"id": "r", "columns": {"customer": "buyer"}})
    assert derived(drop) == derived(drop)
    assert len({derived(drop), derived(rename), derived(drop, rename), make_table().fingerprint}) == 4


def test_a_column_that_is_not_there_is_named_with_the_nearest_one() -> None:
    with pytest.raises(TidemillError) as stopped:
        run(Chain([("drop", {"id": "d", "columns": ["custmer"]})], "shop"), make_block(1))
    assert 'has no column "custmer"' in stopped.value.what
    assert 'Did you mean "customer"?' in stopped.value.fix
    assert stopped.value.where == 'processor "d"'
    with pytest.raises(ConfigError):
        registry.load("processors", "filtr")


def test_processors_run_in_the_order_of_the_document() -> None:
    rename = ("rename", {"id": "r", "columns": {"customer": "buyer"}})
    drop = ("drop", {"id": "d", "columns": ["buyer"]})
    made, passed = run(Chain([rename, drop], "shop"), make_block(2))
    assert "buyer" not in [c.name for c in made[0].table.columns]
    assert [count.processor for count in passed.counts] == ["r", "d"]
    assert all(count.events_in == count.events_out == 2 for count in passed.counts)
    assert np.all([count.seconds >= 0 for count in passed.counts])


def test_a_table_stays_in_one_lane_where_keys_may_change() -> None:
    sharding = Sharding(mode="hash", count=4, key="id")
    moving = ordering(sharding, [("drop", {"id": "a"}), ("drop", {"id": "b", "changes_keys": True})])
    assert (spread_by(moving), moving.count) == ("table", 4)
    assert ordering(sharding, [("drop", {"id": "a", "changes_keys": False})]) is sharding


@pytest.mark.parametrize(
    ("kind", "settings", "spread"),
    [
        ("outbox", {}, "table"),
        ("outbox", {"key": None}, "hash"),
        ("route", {"key": "${after.customer}"}, "table"),
        ("route", {"topic": "t"}, "hash"),
    ],
)
def test_a_table_stays_in_one_lane_where_messages_get_a_key(kind: str, settings: dict[str, Any], spread: str) -> None:
    assert spread_by(ordering(Sharding(), [(kind, {"id": "a", **settings})])) == spread


def test_events_that_two_processors_add_have_ids_of_their_own(custom: Callable[..., Chain]) -> None:
    def work(block: Block) -> list[Block]:
        doubled = block.take(np.repeat(np.arange(block.rows), 2))
        return [doubled.take(np.arange(first, min(first + 3, doubled.rows))) for first in range(0, doubled.rows, 3)]

    chain = custom(work)
    ((once,), _) = run(chain, make_block(3))
    ((twice,), _) = run(chain, once)
    ids = event_ids(twice, "shop").to_pylist()
    assert offsets([twice]) == [0] * 4 + [1] * 4 + [2] * 4
    assert len(set(ids)) == 12
    assert ids[4:8] == [f"shop:0/100:{each}" for each in ("1", "1.1", "1.2", "1.3")]


def test_more_events_than_numbers_can_name_are_an_error_of_the_event(custom: Callable[..., Chain]) -> None:
    def work(block: Block) -> Block:
        return block.take(np.repeat(np.arange(block.rows), [1 << 16, *[(1 << 16) + 1] * (block.rows - 1)]))

    made, passed = run(custom(work, on_error="dead_letter"), make_block(2))
    assert passed.failures[1].reason == "it became more than 65536 events"
    assert len(set(event_ids(made[0], "shop").to_pylist())) == 1 << 16


def test_a_worker_that_met_a_column_before_writes_as_one_that_did_not(custom: Callable[..., Chain]) -> None:
    def work(block: Block) -> Block:
        if int(block.offsets()[0]) < 100:
            return block
        return with_new_column(block, "extra", pa.array([1] * block.rows), BIGINT)

    chain = custom(work, learns=True)
    _, first = run(chain, make_block(1))
    _, second = run(chain, make_block(1, offsets=[100]), known=first.learned)
    assert second.learned
    run(chain, make_block(1, offsets=[100]), known=merge(first.learned, second.learned))
    ((met,), _) = run(chain, make_block(1), known=first.learned)
    ((fresh,), _) = run(custom(work, learns=True), make_block(1), known=first.learned)
    assert met.table.fingerprint == fresh.table.fingerprint


def test_a_column_that_the_source_drops_stays_where_the_processor_writes_it(custom: Callable[..., Chain]) -> None:
    def work(block: Block) -> Block:
        if "note" in [c.name for c in block.table.columns]:
            return block
        return with_new_column(block, "note", pa.array(["mine"] * block.rows), TEXT)

    chain, table = custom(work, learns=True), make_table()
    less = tuple(c for c in table.columns if c.name != "note")
    without = replace(table, columns=less, version=2, fingerprint="").with_fingerprint()
    _, first = run(chain, make_block(1))
    _, second = run(chain, make_block(1, table=without), known=first.learned)
    known = merge(first.learned, second.learned)
    ((made,), third) = run(chain, make_block(1, table=without), known=known)
    assert not third.learned
    assert (made.struct("after") or {})["note"].to_pylist() == ["mine"]
    ((old,), _) = run(chain, make_block(1), known=known)
    assert [c.name for c in old.table.columns] == [c.name for c in made.table.columns]


def test_columns_named_after_values_stop_the_pipeline_at_a_limit(custom: Callable[..., Chain]) -> None:
    def work(block: Block) -> Block:
        for number in range(11):
            block = with_new_column(block, f"c{block.offsets()[0]}_{number}", pa.array([1] * block.rows), BIGINT)
        return block

    chain = custom(work, learns=True)
    with pytest.raises(TidemillError, match=r"public\.orders more than 1000 columns") as stopped:
        run(chain, *(make_block(1, offsets=[number]) for number in range(100)))
    assert stopped.value.where == 'processor "mine"'


@pytest.mark.parametrize(
    ("given", "op", "after", "words"),
    [
        (Op.INSERT, Op.DELETE, True, "has no row in `after`"),
        (Op.INSERT, Op.DELETE, False, "needs the old row or its key in `before`"),
        (Op.DELETE, Op.INSERT, False, "needs the row in `after`"),
    ],
)
def test_an_operation_that_its_images_do_not_fit_is_an_error_of_the_event(
    custom: Callable[..., Chain], given: Op, op: Op, *, after: bool, words: str
) -> None:
    def work(block: Block) -> Block:
        made = with_column(block, "op", pa.array([int(op)] * block.rows, pa.uint8()))
        return made if after else with_column(made, "after", None)

    with pytest.raises(ProcessingError, match=words):
        run(custom(work), make_block(1, ops=given))


def test_captured_events_pass_with_the_images_that_they_have(custom: Callable[..., Chain]) -> None:
    block = with_column(make_block(2, ops=[Op.DELETE, Op.INSERT]), "key", None)  # a delete that does not say of what
    ((made,), _) = run(custom(lambda block: block), block)
    assert made.rows == 2
