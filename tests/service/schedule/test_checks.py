"""What the commands say of a document with a schedule."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.terminal import Terminal

DOCUMENT = """
metadata: {name: orders}
spec:
  schedule: {cron: "CRON"}
  source: {type: sqlite, config: {id: shop, path: shop.db}}
  sinks: [{type: blackhole, config: {id: hole}}]
"""


def test_validate_shows_a_schedule_and_refuses_a_wrong_one_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, tidemill = tmp_path / "orders.yaml", Terminal(capsys)
    file.write_text(DOCUMENT.replace("CRON", "*/15 * * * *"))
    shown = tidemill("validate", file, "--json").json["pipelines"][0]["spec"]["schedule"]
    assert shown == {"cron": "*/15 * * * *", "max_empty_reads": 0}
    file.write_text(DOCUMENT.replace("CRON", "61 * * * *"))
    refused = tidemill("validate", file)
    assert refused.code == 2
    assert "orders.yaml:4" in refused.err
    assert "*/15 * * * *" in refused.err


def test_run_refuses_what_only_a_server_can_keep_and_names_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(DOCUMENT.replace("CRON", "@daily"))
    refused = Terminal(capsys)("run", file)
    assert refused.code == 2
    assert "tidemill serve" in refused.err
    assert "--once" in refused.err
