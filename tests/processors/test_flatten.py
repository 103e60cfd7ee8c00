"""JSON documents as columns: names, types, and what does not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.blocks import make_block, make_table
from tidemill.errors import ProcessingError
from tidemill.model.block import Block, Op
from tidemill.model.derived import image, with_column
from tidemill.model.table import Column
from tidemill.model.types import DataType, JsonForm
from tidemill.processors.flatten.members import Members
from tidemill.stream.lane.chain import Chain, ChainRun

JSON = DataType("jsonb", pa.string(), JsonForm.RAW)


def block_of(documents: list[str | None], *, op: Op = Op.INSERT, kind: DataType = JSON) -> Block:
    block = make_block(len(documents), ops=op)
    table = replace(make_table(), columns=(*make_table().columns, Column("doc", kind))).with_fingerprint()
    arrays = [*(block.struct("after") or {}).values(), pa.array(documents, pa.string())]
    return with_column(Block(table, block.batch), "after", image(arrays, table.columns, block.column("after")))


def run(chain: Chain, block: Block, known: Any = None) -> tuple[Block | None, ChainRun]:
    passed = chain.begin(known or {})
    made = list(passed.blocks(iter([block])))
    return (made[0] if made else None), passed


def flatten(documents: list[str | None], **settings_: Any) -> dict[str, list[Any]]:
    made, _ = run(Chain([("flatten", {"id": "f", **settings_})], "s"), block_of(documents))
    assert made is not None
    new = (made.struct("after") or {}).items()
    return {name: array.to_pylist() for name, array in new if name.startswith("doc")}


def test_members_become_columns_with_the_types_of_their_values() -> None:
    documents = [
        '{"a": {"b": 1, "c": "x\\u00e9\\n\\"q"}, "l": [1, {"q": 2}], "t": true, "e": {}}',
        '{ "a" : {"b" : 2.5, "c": "y"} , "n": null, "t": false }',
        "null",
        None,
        '{"big": 123456789012345678901234, "int": -5}',
    ]
    assert flatten(documents) == {
        "doc_a_b": [1.0, 2.5, None, None, None],
        "doc_a_c": ['xé\n"q', "y", None, None, None],
        "doc_l": ['[1, {"q": 2}]', None, None, None, None],
        "doc_t": [True, False, None, None, None],
        "doc_big": [None, None, None, None, "123456789012345678901234"],
        "doc_int": [None, None, None, None, -5],
    }


def test_depth_and_separator_say_how_far_and_how() -> None:
    documents: list[str | None] = ['{"a": {"b": {"c": 1}}}']
    assert flatten(documents, separator=".", depth=2) == {"doc.a.b": ['{"c": 1}']}
    assert flatten(documents, depth=1) == {"doc_a": ['{"b": {"c": 1}}']}


def test_a_type_that_was_learned_or_declared_stays() -> None:
    chain = Chain([("flatten", {"id": "f", "on_error": "dead_letter", "types": {"doc_d": "double"}})], "s")
    _, first = run(chain, block_of(['{"n": 1, "d": 2}']))
    made, passed = run(chain, block_of(['{"n": "one"}', '{"n": 2}', '{"n": 2.5}', '{"x": null}']), first.learned)
    assert made is not None
    assert sorted(passed.failures) == [0, 2]
    reason = (
        '"doc_n" is bigint since it was first met, and its value is not; `types: {doc_n: %s}` declares another type'
    )
    assert [passed.failures[row].reason for row in (0, 2)] == [reason % "json", reason % "double"]
    assert (made.struct("after") or {})["doc_n"].to_pylist() == [2, None]
    assert (made.struct("after") or {})["doc_d"].type == pa.float64()


def test_two_members_of_one_name_are_an_error_or_are_told_apart() -> None:
    documents: list[str | None] = ['{"a": {"b": 1}, "a_b": 2}']
    with pytest.raises(ProcessingError, match='two columns would be called "doc_a_b"'):
        flatten(documents)
    assert flatten(documents, collision="rename") == {"doc_a_b": [1], "doc_a__b": [2]}


def test_text_that_holds_json_is_flattened_where_it_is_named_and_what_is_no_json_is_an_error() -> None:
    documents: list[str | None] = [
        '{"a": 1}',
        None,
        "nonsense",
        '{"a": 0x10}',
        '{"a": 2} and more',
        '{"a": 3,}',
        "null",
    ]
    block = block_of(documents, kind=DataType("text", pa.string(), JsonForm.STRING))
    assert run(Chain([("flatten", {"id": "f"})], "s"), block)[0] == block  # patterns mean JSON columns
    made, passed = run(Chain([("flatten", {"id": "f", "columns": ["doc"], "on_error": "dead_letter"})], "s"), block)
    assert made is not None
    assert (made.struct("after") or {})["doc_a"].to_pylist() == [1, None, None]
    assert sorted(passed.failures) == [2, 3, 4, 5]
    assert {each.reason for each in passed.failures.values()} == {'"doc" holds a text that is no JSON'}
    with pytest.raises(ProcessingError, match=r'"paid" of public[.]orders is boolean, neither JSON nor text'):
        run(Chain([("flatten", {"id": "f", "columns": ["paid"]})], "s"), block)


def test_what_is_no_object_is_an_error_of_that_event() -> None:
    chain = Chain([("flatten", {"id": "f", "on_error": "dead_letter"})], "s")
    made, passed = run(chain, block_of(["[1]", '{"a": 1}', '{"a": 1', '"text"']))
    assert sorted(passed.failures) == [0, 2, 3]
    assert passed.failures[0].reason == '"doc" holds no JSON object'
    assert made is not None
    assert made.rows == 1


def test_a_document_that_was_not_sent_again_leaves_all_members_unchanged() -> None:
    block = block_of(['{"a": 1, "b": {"c": 2}}', None], op=Op.UPDATE)
    number = len(block.table.columns) - 1
    block = with_column(block, "unchanged", pa.array([None, [0, number]], pa.list_(pa.uint16())))
    chain = Chain([("flatten", {"id": "f"})], "s")
    _, first = run(chain, block)
    made, _ = run(chain, block, first.learned)
    assert made is not None
    names = [column.name for column in made.table.columns]
    assert names[-2:] == ["doc_a", "doc_b_c"]
    assert made.batch.column("unchanged").to_pylist() == [None, [0, number, number + 1]]
    alone, _ = run(chain, Block(block.table, block.batch.slice(1)), first.learned)
    assert alone is not None
    assert alone.batch.column("unchanged").to_pylist() == [[0, number, number + 1]]


scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**17), 10**17), st.text(max_size=8))
objects = st.recursive(
    st.dictionaries(st.text(max_size=5), scalars, max_size=4),
    lambda inner: st.dictionaries(
        st.text(max_size=5), st.one_of(scalars, inner, st.lists(scalars, max_size=2)), max_size=4
    ),
    max_leaves=12,
)


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if isinstance(value, dict):
        return {found: leaf for key, each in value.items() for found, leaf in leaves(each, (*path, key)).items()}
    return {path: value}


@settings(max_examples=150, deadline=None)
@given(documents=st.lists(objects, min_size=1, max_size=5))
def test_every_member_is_found_as_the_parser_finds_it(documents: list[dict[str, Any]]) -> None:
    texts = pa.array([orjson.dumps(document).decode() for document in documents])
    members = Members({"after": texts}, "doc", "\x00", 0, doubled=False)
    assert not members.bad.any()
    paths = {path: None for document in documents for path, leaf in leaves(document).items() if leaf is not None}
    wanted = {"\x00".join(("doc", *path)): path for path in paths}
    if len(wanted) < len(paths) or any("\x00" in key for path in paths for key in path):
        return  # a name that holds the separator
    made = members.columns(dict.fromkeys(wanted, JSON))
    for column, arrays in made:
        path = wanted[column.name]
        found = [None if text is None else orjson.loads(text) for text in arrays["after"].to_pylist()]
        assert found == [leaves(document).get(path) for document in documents]
