"""The kernel that tells structures apart agrees with a parser."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.schema.sensing.shapes import UNREADABLE, collapse, escape, shape_of, unescape
from tidemill.schema.sensing.structure import structure_hashes

LEAVES = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.just(1.5) | st.text(max_size=5)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from('ab"[\\é'), inner, max_size=4),
    max_leaves=12,
)


def hashes(documents: list[str], depth: int = 3) -> list[int]:
    found: list[int] = structure_hashes(pa.array(documents, pa.string()), depth).tolist()
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(DOCUMENTS, min_size=1, max_size=6), st.integers(1, 4), st.sampled_from([None, 1]))
def test_documents_have_one_number_only_if_they_have_one_shape(documents: list[Any], depth: int, indent: Any) -> None:
    texts = [json.dumps(each, indent=indent, ensure_ascii=False) for each in documents]
    shapes: dict[int, object] = {}
    for text, number in zip(texts, hashes(texts, depth), strict=True):
        assert number != 0
        shape = shape_of(text, depth, 1000)
        assert shapes.setdefault(number, shape) == shape


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": "x"}', '{"b":"y","a":2}'),
        ('{"a": [1, 2, 3]}', '{"a": [7]}'),
        ('{"a": [{"b": 1}, {"b": 2}]}', '{"a": [{"b": -5}]}'),
        ('{"a": {"b": {"c": {"deep": 1}}}}', '{"a": {"b": {"c": {"other": [true]}}}}'),
        ('{"a": "}]{[\\" , :"}', '{"a": ""}'),
        ("true", " false "),
    ],
)
def test_order_length_and_values_do_not_change_the_number(one: str, other: str) -> None:
    first, second = hashes([one, other])
    assert first == second


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}', '{"a": 1.5}'),
        ('{"a": 1}', '{"b": 1}'),
        ('{"a": null}', '{"a": 1}'),
        ('{"a": []}', '{"a": [1]}'),
        ('{"a": {}}', '{"a": []}'),
        ('{"a": 1, "b": "x"}', '{"a": "x", "b": 1}'),
        ('{"a": {"b": 1}}', '{"a": 1, "b": 1}'),
    ],
)
def test_another_key_or_type_changes_the_number(one: str, other: str) -> None:
    first, second = hashes([one, other])
    assert first != second


@pytest.mark.parametrize("text", ["", "{", '{"a": 1', "]", '{"a": 1]', "nonsense", '"open', "{} {}", "1 2"])
def test_what_is_no_document_has_no_number(text: str) -> None:
    assert hashes([text]) == [0]
    assert shape_of(text, 3, 100) == UNREADABLE


@given(st.text(max_size=6))
def test_a_key_comes_back_from_its_path(key: str) -> None:
    assert "/" not in escape(key)
    assert escape(key) not in ("[]", "{}")
    assert unescape(escape(key)) == key


def test_an_object_with_many_keys_is_a_map() -> None:
    document = {"scores": {f"player {n}": {"points": n} for n in range(20)}, "id": 1}
    assert shape_of(json.dumps(document), 4, 10) == {
        ("", "object", 1), ("/id", "integer", 1), ("/scores", "object", 1), ("/scores/{}", "object", 20),
        ("/scores/{}/points", "integer", 20),
    }  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(DOCUMENTS, min_size=2, max_size=6), st.integers(1, 3), st.randoms())
def test_maps_are_the_same_in_whichever_order_documents_are_added(documents: list[Any], most: int, chance: Any) -> None:
    def total(order: list[Any]) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for each in order:
            for path, kind, count in shape_of(json.dumps(each), 4, most):
                found[path, kind] = found.get((path, kind), 0) + count
            found = collapse(found, most)
        return found

    shuffled = list(documents)
    chance.shuffle(shuffled)
    assert total(documents) == total(shuffled)
