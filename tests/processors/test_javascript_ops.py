"""What a script may make of an event's operation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.blocks import make_block, make_table
from tidemill.errors import ProcessingError
from tidemill.model.block import Block, Op
from tidemill.processors.javascript import JavascriptConfig, JavascriptProcessor

pytestmark = pytest.mark.slow


def run(line: str, block: Block) -> Block:
    inline = f"function process(ev) {{\n  {line}\n  return ev;\n}}"
    processor = JavascriptProcessor(JavascriptConfig(id="js", inline=inline))
    try:
        [made] = processor.process(iter([block]))
        return made
    finally:
        processor.close()


@pytest.mark.parametrize(
    ("given", "line", "op", "image"),
    [
        (Op.INSERT, 'ev.op = "update";', Op.UPDATE, "after"),
        (Op.UPDATE, 'ev.op = "insert";', Op.INSERT, "after"),
        (Op.READ, 'ev.op = "insert";', Op.INSERT, "after"),
        (Op.UPDATE, 'if (ev.op === "update") Object.assign(ev, {op: "delete", before: ev.after, after: null});',
         Op.DELETE, "before"),
        (Op.INSERT, 'ev.op = "delete"; ev.before = {id: ev.after.id}; ev.after = null;', Op.DELETE, "before"),
        (Op.DELETE, 'ev.op = "update"; ev.after = {...ev.before, note: "gone"};', Op.UPDATE, "after"),
    ],
)  # fmt: skip
def test_an_operation_may_become_another_that_its_images_fit(given: Op, line: str, op: Op, image: str) -> None:
    made = run(line, make_block(1, ops=given))
    assert made.batch.column("op").to_pylist() == [op]
    row: dict[str, Any] = made.batch.column(image)[0].as_py()
    assert row["id"] == 0


@pytest.mark.parametrize(
    ("given", "line", "reason"),
    [
        (Op.INSERT, 'ev.op = "delete";', 'op "delete" has no row in `after`: set it to null'),
        (Op.INSERT, 'ev.op = "delete"; ev.after = null;', 'op "delete" needs the old row or its key in `before`'),
        (Op.INSERT, 'ev.op = "delete"; ev.before = {note: "x"}; ev.after = null;', "needs the old row or its key"),
        (Op.DELETE, 'ev.op = "insert";', 'op "insert" needs the row in `after`'),
        (Op.INSERT, "ev.after = null;", 'op "insert" needs the row in `after`'),
        (Op.INSERT, 'ev.op = "read";', 'op "read" is of rows that a snapshot read'),
        (Op.INSERT, 'ev.op = "truncate";', "op must be insert, update or delete"),
        (Op.INSERT, 'ev["op"] = 7;', "op must be insert, update or delete"),
    ],
)
def test_an_operation_that_does_not_fit_is_an_error_of_the_event_and_of_its_line(
    given: Op, line: str, reason: str
) -> None:
    block = make_block(2, ops=given, table=make_table())
    with pytest.raises(ProcessingError) as caught:
        run(line, block)
    assert sorted(caught.value.reasons) == block.offsets().tolist()
    said = str(caught.value)
    assert reason in said
    assert (f"in `{line}` at js.js:2" in said) is ("op" in line)
