"""The processor `python`: functions over Arrow batches and over events."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.blocks import make_block
from tidemill.errors import ConfigError, ProcessingError
from tidemill.model.block import ODD, UNCHANGED, Block, Op
from tidemill.model.derived import with_column
from tidemill.processors.python import PythonConfig, PythonProcessor

Make = Callable[..., PythonProcessor]


@pytest.fixture
def function(tmp_path: Path) -> Make:
    def make(source: str, style: str = "event") -> PythonProcessor:
        path = tmp_path / "mine.py"
        path.write_text(source)
        processor = PythonProcessor(PythonConfig.model_validate({"id": "py", "file": str(path), "style": style}))
        processor.source_id = "shop"
        return processor

    return make


def run(processor: PythonProcessor, block: Block) -> Block:
    [made] = processor.process(iter([block]))
    return made


def after(block: Block) -> list[Any]:
    rows: list[Any] = block.batch.column("after").to_pylist()
    return rows


def test_a_function_over_batches_gets_the_block_and_returns_one(function: Make) -> None:
    source = """
import pyarrow.compute as pc
from tidemill.processors.python import get, put

def process(batch):
    batch = batch.filter(pc.greater(get(batch, "after.id"), 0))
    return put(batch, "after.customer", pc.utf8_upper(get(batch, "after.customer")))
"""
    block = make_block(3)
    made = run(function(source, "arrow"), block)
    assert made.offsets().tolist() == block.offsets().tolist()[1:]
    assert [row["customer"] for row in after(made)] == [row["customer"].upper() for row in after(block)[1:]]
    assert made.table is block.table


def test_columns_that_a_batch_gets_are_columns_of_the_table(function: Make) -> None:
    source = """
import pyarrow as pa
from tidemill.processors.python import put

def process(batch):
    return put(batch, "after.total", pa.array([1.5] * batch.num_rows))
"""
    made = run(function(source, "arrow"), make_block(2))
    assert [c.name for c in made.table.columns][-1] == "total"
    assert made.table.columns[-1].type.native == "double precision"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return None", "not a pyarrow.RecordBatch"),
        ("return batch.remove_column(0)", 'lost the column "offset"'),
        ("return batch.set_column(1, 'op', batch.column('op').cast('int32'))", '"op" with another type'),
    ],
)
def test_a_batch_that_is_no_block_stops_the_pipeline_and_says_why(function: Make, body: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        run(function(f"def process(batch):\n    {body}\n", "arrow"), make_block(1))


def test_events_are_changed_dropped_and_added(function: Make) -> None:
    source = """
def process(event):
    row = event["after"]
    if row["id"] == 0:
        return None
    row["customer"] = f'{event["event_id"]} {event["op"]}'
    row["price"] *= 2
    return [event, {"op": "insert", "after": {"id": row["id"], "extra": 7}}] if row["id"] == 2 else event
"""
    block = make_block(3)
    made = run(function(source), block)
    first, last = block.offsets().tolist()[1:]
    assert made.offsets().tolist() == [first, last, last]
    rows = after(made)
    assert rows[0]["customer"] == "shop:0/100:1 insert"
    assert rows[1]["price"] == decimal.Decimal("1.00")
    assert rows[2]["extra"] == 7
    assert rows[2]["customer"] is None
    assert made.table.columns[-1].type.native == "bigint"


def test_what_a_function_returns_is_read_before_it_is_called_again(function: Make) -> None:
    source = """
row, made = {}, {"op": "insert"}


def process(event):
    row.update(event["after"], note=f"copy of {event['after']['id']}")
    made["after"] = row
    return [event, made]
"""
    made = run(function(source), make_block(3))
    assert [row["id"] for row in after(made)] == [0, 0, 1, 1, 2, 2]
    assert [row["note"] for row in after(made)[1::2]] == ["copy of 0", "copy of 1", "copy of 2"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("row['new'] = '\\ud800'", 'column "new" was given str with half of a surrogate pair'),
        ("row['new'] = 2 ** 70", 'column "new" was given int that no column holds'),
        ("row['new'] = object()", 'column "new" was given object that no column holds'),
        ("row['note'] = '\\ud800'", 'column "note" holds string, and was given str with half of a surrogate pair'),
        ("row[5] = 1", "after must be a dictionary with the names of columns, or None"),
        ("event['after'] = 5", "after must be a dictionary with the names of columns, or None"),
        ("event['op'] = ['insert']", "op must be insert, update or delete"),
        ("event['route'] = 'topic'", "route must be a dictionary with topic, key and headers, or None"),
        ("event['route'] = {'topic': '\\ud800'}", "route must have strings: topic, key and headers by name"),
        ("event['route'] = {'headers': {'a': 5}}", "route must have strings: topic, key and headers by name"),
        ("event['route'] = {'headers': ['a']}", "route must have strings: topic, key and headers by name"),
    ],
)
def test_what_no_sink_could_take_is_an_error_of_its_event_and_not_of_the_pipeline(
    function: Make, line: str, reason: str
) -> None:
    source = f"""
def process(event):
    row = event["after"]
    if row["id"] == 1:
        {line}
    return event
"""
    block = make_block(3)
    with pytest.raises(ProcessingError) as caught:
        run(function(source), block)
    assert caught.value.reasons == {int(block.offsets()[1]): reason}


def test_values_that_a_function_does_not_touch_stay_as_they_are(function: Make) -> None:
    block = make_block(20, ops=[Op.INSERT, Op.UPDATE] * 10)
    price = [c.name for c in block.table.columns].index("price")
    block = with_column(block, "odd", pa.array([[{"side": 2, "column": price, "text": "NaN"}]] * 20, ODD))
    made = run(function("def process(event):\n    assert event['after']['price'] == 'NaN'\n    return event\n"), block)
    assert made.batch.column("after").equals(block.batch.column("after"))
    assert made.batch.column("odd").to_pylist() == block.batch.column("odd").to_pylist()
    assert made.batch.column("op").equals(block.batch.column("op"))


def test_an_exact_text_goes_when_its_value_is_written(function: Make) -> None:
    block = make_block(2)
    odd = [[{"side": 2, "column": 3, "text": "NaN"}]] * 2
    block = with_column(block, "odd", pa.array(odd, ODD))
    source = """
from decimal import Decimal
def process(event):
    if event["after"]["id"] == 1:
        event["after"]["price"] = Decimal("2.50")
    return event
"""
    made = run(function(source), block)
    assert made.batch.column("odd").to_pylist() == [odd[0], None]
    assert [row["price"] for row in after(made)] == [None, decimal.Decimal("2.50")]


def test_unchanged_columns_are_absent_and_stay_unchanged_unless_written(function: Make) -> None:
    block = make_block(2, ops=Op.UPDATE)
    block = with_column(block, "unchanged", pa.array([[6], [6]], UNCHANGED))
    source = """
def process(event):
    assert "note" not in event["after"] and event["unchanged"] == ["note"]
    if event["after"]["id"] == 1:
        event["after"]["note"] = "written"
    return event
"""
    made = run(function(source), block)
    assert made.batch.column("unchanged").to_pylist() == [[6], None]
    assert after(made)[1]["note"] == "written"


def test_an_error_names_its_event_and_line_and_quotes_nothing(function: Make) -> None:
    source = """
def helper(row):
    raise ValueError(row["customer"])

def process(event):
    return helper(event["after"]) if event["after"]["id"] == 1 else event
"""
    block = make_block(3)
    processor = function(source)
    with pytest.raises(ProcessingError) as caught:
        run(processor, block)
    [(offset, reason)] = caught.value.reasons.items()
    assert offset == block.offsets()[1]
    assert reason.startswith('ValueError in `raise ValueError(row["customer"])` at mine.py:3 in helper, mine.py:6')
    processor.show_messages = True
    with pytest.raises(ProcessingError, match="Zürich"):
        run(processor, block)


def test_a_value_that_does_not_fit_is_an_error_of_its_event(function: Make) -> None:
    block = make_block(3)
    source = """
def process(event):
    event["after"]["quantity"] = "x" if event["after"]["id"] == 1 else 5
    return event
"""
    with pytest.raises(ProcessingError, match='column "quantity" holds int32, and was given str') as caught:
        run(function(source), block)
    assert list(caught.value.reasons) == [int(block.offsets()[1])]


def test_an_event_can_be_routed(function: Make) -> None:
    source = "def process(event):\n    return {**event, 'route': {'topic': 'vip', 'headers': {'a': 'b'}}}\n"
    made = run(function(source), make_block(1))
    assert made.batch.column("route").to_pylist() == [{"topic": "vip", "key": None, "headers": [("a", "b")]}]


def test_a_function_that_is_not_there_is_said_by_doctor_and_at_the_start(function: Make) -> None:
    with pytest.raises(ConfigError, match="has no function called process"):
        run(function("x = 1\n"), make_block(1))
    missing = PythonProcessor(PythonConfig(id="x", function="no_such_module_here:f"))
    [check] = missing.doctor()
    assert check.outcome == "fail"
    assert "no_such_module_here" in check.detail
    [check] = PythonProcessor(PythonConfig(id="x", function="math:floor")).doctor()
    assert check.outcome == "pass"


@pytest.mark.parametrize("settings", [{"function": "f"}, {"function": "a:b", "file": "x.py"}, {"function": "a b:c"}])
def test_a_function_is_named_in_one_way(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="function"):
        PythonConfig.model_validate({"id": "x", **settings})
