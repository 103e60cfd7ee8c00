from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config.document import Document, parse, read
from tidemill.config.problem import DocumentError
from tidemill.errors import ConfigError


def only(text: str) -> Document:
    (document,) = parse(text, "f.yaml", {})
    return document


def test_every_path_knows_its_line() -> None:
    document = only("a:\n  b: 1\n  c:\n    - x\n    - y: 2\n")
    assert document.data == {"a": {"b": 1, "c": ["x", {"y": 2}]}}
    assert document.line(("a", "b")) == 2
    assert document.line(("a", "c", 1, "y")) == 5
    assert document.line(("a", "c", 1, "missing")) == 5
    assert document.line(("nowhere",)) == 1


def test_several_documents_are_several_pipelines_and_empty_ones_are_none() -> None:
    documents = parse("---\na: 1\n---\n---\nb: 2\n", "f.yaml", {})
    assert [d.data for d in documents] == [{"a": 1}, {"b": 2}]
    assert documents[1].line(("b",)) == 5


def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    with pytest.raises(DocumentError, match='"b" is given twice') as caught:
        only("a:\n  b: 1\n  b: 2\n")
    assert caught.value.where == "f.yaml:3, a.b"
    assert "Line 2" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"), ("no", "no"), ("true", True), ("12:30:00", "12:30:00"), ("2026-01-01", "2026-01-01"),
        ("0/16B3748", "0/16B3748"), ("007", 7), ("0x10", 16), ("0o17", 15), ("1e3", 1000.0), ("-.5", -0.5),
        ("~", None), ("", None), ("'5'", "5"), ("1_000", "1_000"), (".inf", float("inf")), ("+3", 3), ("a-b", "a-b"),
        ("9223372036854775807", 2**63 - 1), ("!!int 5", 5),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    assert only(f"a: {text}").data == {"a": value}


def test_anchors_and_merges_work_and_written_keys_win() -> None:
    document = only("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\nz: *x\n")
    assert document.data["y"] == {"a": 1, "b": 3}
    assert document.data["z"] == {"a": 1, "b": 2}
    assert document.line(("y", "b")) == 4


@pytest.mark.parametrize(
    "text",
    [
        "a: [1",
        "a: b: c",
        "a: &x [*x]",
        "? [a, b]\n: 1",
        "1: a",
        "a: !!python/object:os.system {}",
        "a: !custom 1",
        "\ta: 1",
        "a: *nothing",
        "<<: 3",
        "a: \0",
        "a: \x07",
        "# \x7f",
        "a: \ud800",
        r'a: "\ud800"',
        r'"\udfff": 1',
        "a: " + "1" * 5000,
        "a: 9223372036854775808",
        "a: -9223372036854775809",
        "a: !!int ten",
        "a: !!bool maybe",
        "a: !!float much",
        "a: !!binary aGk=",
        "a: !!timestamp 2026-01-31",
    ],
)
def test_bad_text_is_a_config_error_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"\n{text}\n", "f.yaml", {})
    assert "f.yaml:" in caught.value.where


def test_a_character_that_yaml_does_not_take_is_told_with_its_line_and_its_number() -> None:
    with pytest.raises(DocumentError, match=r"U\+0000") as caught:
        parse("a: 1\nb: ${B}\nc: x\0y\n", "f.yaml", {"B": "'one\n\n  two'"})
    assert caught.value.where == "f.yaml:3"
    assert caught.value.fix == "Remove it."


def test_aliases_that_multiply_are_stopped() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    with pytest.raises(ConfigError):
        parse(text, "f.yaml", {})


def test_an_unquoted_template_in_a_flow_mapping_gets_the_right_advice() -> None:
    with pytest.raises(DocumentError) as caught:
        only("a: {topic: ${source.table}}")
    assert "in quotes" in caught.value.fix


def test_an_empty_missing_or_binary_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "none.yaml")
    (tmp_path / "a.yaml").write_text("# nothing\n")
    with pytest.raises(ConfigError, match="no pipeline"):
        read(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read(tmp_path / "b.yaml")
