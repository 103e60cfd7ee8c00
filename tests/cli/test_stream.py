"""`tidemill stream` where there is no queue yet. With one it is tested in tests/sinks/pgstream/."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.terminal import Terminal


@pytest.mark.parametrize("words", [("ls",), ("pull", "orders", "-g", "billing"), ("dead", "orders", "-g", "billing")])
def test_a_queue_that_is_not_there_yet_is_named(
    words: tuple[str, ...], database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = Terminal(capsys)("stream", words[0], database, *words[1:])
    assert answer.code == 2
    assert 'there is no queue in the schema "pgstream"' in answer.err
    assert "first batch" in answer.err


def test_a_file_without_a_queue_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(
        "metadata: {name: orders}\n"
        "spec:\n"
        "  source: {type: postgres, config: {id: shop, dsn: postgresql://127.0.0.1/shop}}\n"
        "  sinks: [{type: blackhole, config: {id: b}}]\n"
    )
    answer = Terminal(capsys)("stream", "ls", file)
    assert answer.code == 2
    assert "a sink of type pgstream" in answer.err
