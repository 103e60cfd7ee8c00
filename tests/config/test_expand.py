from __future__ import annotations

import pytest

from tidemill.config.expand import expand

ENV = {"HOST": "db.internal", "EMPTY": "", "KEY": "one\ntwo", "NESTED": "${HOST}", "PG_DSN": "x"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: ${HOST}", "a: db.internal"),
        ("a: ${HOST:-other}", "a: db.internal"),
        ("a: ${UNSET:-other}", "a: other"),
        ("a: ${UNSET:-}", "a: "),
        ("a: ${EMPTY:-other}", "a: other"),
        ("a: [${EMPTY}]", "a: []"),
        ("a: ${UNSET:-http://x:80/y}", "a: http://x:80/y"),
        ("a: ${HOST}:${PORT:-5432}", "a: db.internal:5432"),
        ("a: $${HOST}", "a: ${HOST}"),
        ("a: $$${HOST}", "a: $db.internal"),
        ("a: pa$$word $HOST", "a: pa$$word $HOST"),
        ("a: ${source.table}-${after.region}", "a: ${source.table}-${after.region}"),
        ("a: ${NESTED}", "a: ${HOST}"),
        ("  # ${UNSET} is only talked about", "  # ${UNSET} is only talked about"),
    ],
)
def test_variables_are_expanded_and_templates_are_left_alone(text: str, expected: str) -> None:
    result = expand(text, ENV, "f.yaml")
    assert not result.problems
    assert result.text == expected


def test_every_missing_variable_is_reported_with_its_line_and_near_names() -> None:
    first, second = expand("a: ${HSOT}\nb: 1\nc: ${PG_DNS}", ENV, "f.yaml").problems
    assert (first.line, second.line) == (1, 3)
    assert "HSOT is not set" in first.what
    assert "HOST" in first.fix
    assert "PG_DSN" in second.fix
    assert second.where == "f.yaml:3"


@pytest.mark.parametrize("text", ["${a-b}", "${}", "${OPEN", "${A:-${B}}", "${x y}"])
def test_what_looks_like_a_variable_but_is_none_is_refused(text: str) -> None:
    (problem, *_) = expand(f"a: {text}", ENV, "f.yaml").problems
    assert "is not a variable" in problem.what
    assert "$${" in problem.fix


def test_lines_are_those_of_the_file_when_a_value_has_several() -> None:
    result = expand("a: |\n  ${KEY}\nb: 1", ENV, "f.yaml")
    assert result.text.split("\n")[3] == "b: 1"
    assert [result.line(i) for i in range(4)] == [1, 2, 2, 3]
