"""Documents of JSON columns in scripts: numbers keep the digits that they came with, whatever the script changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.blocks import make_block
from tidemill.errors import ProcessingError
from tidemill.model.block import Block
from tidemill.model.derived import with_column
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.processors.javascript import JavascriptConfig, JavascriptProcessor

pytestmark = pytest.mark.slow

Change = Callable[..., list[str | None]]
_COLUMNS = (
    Column("id", DataType("bigint", pa.int64(), JsonForm.NUMBER)),
    Column("doc", DataType("jsonb", pa.string(), JsonForm.RAW)),
)
_TABLE = Table("d", "public", "documents", _COLUMNS, key=("id",)).with_fingerprint()


@pytest.fixture(scope="module")
def change() -> Iterator[Change]:
    """Documents after a line of script that sees each as `d`. One engine for each line."""
    engines: dict[str, JavascriptProcessor] = {}

    def changed(line: str, *documents: str) -> list[str | None]:
        if line not in engines:
            inline = f"function process(ev) {{ const d = ev.after.doc; {line}; return ev; }}"
            engines[line] = JavascriptProcessor(JavascriptConfig(id="js", inline=inline))
        ids = pa.array(range(len(documents)), pa.int64())
        after = pa.StructArray.from_arrays([ids, pa.array(documents)], fields=list(_TABLE.arrow_struct()))
        block = Block(_TABLE, with_column(make_block(len(documents)), "after", after).batch)
        [made] = engines[line].process(iter([block]))
        return [row["doc"] for row in made.batch.column("after").to_pylist()]

    yield changed
    for engine in engines.values():
        engine.close()


@pytest.mark.parametrize(
    ("document", "line", "expected"),
    [
        ('{"a": 9007199254740993, "b": 1}', "d.b = 2", '{"a":9007199254740993,"b":2}'),
        ('{"a": {"x": [12345678901234567890]}, "b": 1}', "d.b = 2", '{"a":{"x":[12345678901234567890]},"b":2}'),
        ('{"a": 0.12345678901234567890123}', "d.b = 2", '{"a":0.12345678901234567890123,"b":2}'),
        ('{"a": 1.0, "z": -0, "e": 1e400}', "d.b = 2", '{"a":1.0,"z":-0,"e":1e400,"b":2}'),
        ('{"a": 9007199254740993}', "d.a = 5", '{"a":5}'),
        ('{"a": 9007199254740993}', "d.a = 9007199254740995n", '{"a":9007199254740995}'),
        ('{"a": 9007199254740993}', "d.c = d.a; delete d.a", '{"c":9007199254740993}'),
        ('{"a": 1.0}', "d.c = d.a", '{"a":1.0,"c":1}'),
        ('{"a": [1, 9007199254740993, 5]}', "d.a.shift()", '{"a":[9007199254740993,5]}'),
        ('{"a": [9007199254740993, 9007199254740992]}', "d.b = 1", '{"a":[9007199254740993,9007199254740992],"b":1}'),
        ('{"a": 9007199254740993}', "ev.after.doc = {...d, at: new Date(0)}",
         '{"a":9007199254740993,"at":"1970-01-01T00:00:00.000Z"}'),
        ('{"a": 9007199254740993}', "ev.after.doc = [d, d]", '[{"a":9007199254740993},{"a":9007199254740993}]'),
        ('{"__proto__": 9007199254740993}', "d.b = 1", '{"__proto__":9007199254740993,"b":1}'),
        ("9007199254740993", "ev.after.doc = {a: d}", '{"a":9007199254740993}'),
        ('{"text": "9007199254740993"}', "d.b = 1", '{"text":"9007199254740993","b":1}'),
    ],
)  # fmt: skip
def test_numbers_of_a_document_keep_their_digits(change: Change, document: str, line: str, expected: str) -> None:
    assert change(line, document) == [expected]


def test_a_document_that_is_only_read_keeps_its_text(change: Change) -> None:
    document = '{"a":  9007199254740993, "b": 1.0}'
    assert change("if (d.a !== 9007199254740992) throw new Error()", document) == [document]


@pytest.mark.parametrize("line", ["d.a.shift()", "d.b = d.a[0]"])
def test_a_number_that_could_be_two_of_its_document_is_an_error_of_the_event(change: Change, line: str) -> None:
    with pytest.raises(ProcessingError, match="JavaScript cannot tell from another"):
        change(line, '{"a": [9007199254740993, 9007199254740992, 1]}')


NUMBERS = st.one_of(
    st.integers(-(10**25), 10**25),
    st.decimals(allow_nan=False, allow_infinity=False, places=20, min_value=-1000, max_value=1000),
    st.floats(allow_nan=False, allow_infinity=False),
)
DOCUMENTS = st.recursive(
    NUMBERS | st.text(max_size=5) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def render(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {render(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(render, value)) + "]"
    return f"{value:f}" if isinstance(value, Decimal) else json.dumps(value)


def test_a_key_that_is_an_escape_is_not_taken_for_the_backslash_of_a_document_before_it(change: Change) -> None:
    """As V8 14 does by itself, where nothing else has shared the keys before it."""
    documents = [
        r'{"inner":{"":0,"\\":0}}',
        r'{"inner":{"":0,"\u00f7":1,"in":[{"\n":2.50}]}}',
        r'{"":0,"\"" :3,"\u0041":4}',
        r'{"":"\"\n\":"}',
    ]
    made = [json.loads(change("d.more = true", each)[0] or "") for each in documents]
    assert made == [{**json.loads(each), "more": True} for each in documents]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(document=DOCUMENTS)
def test_any_document_is_the_same_to_the_last_digit_beside_what_was_added(change: Change, document: Any) -> None:
    text = render({"inner": document})
    [made] = change("d.added = true", text)
    assert made is not None
    exact: dict[str, Any] = {"parse_float": Decimal, "parse_int": Decimal}
    assert json.loads(made, **exact) == {**json.loads(text, **exact), "added": True}
