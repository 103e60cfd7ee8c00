"""What sinks say of rows that are left behind: it comes home with receipts, and stands over a restart."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import orjson
import pytest

from tidemill.service.run.notices import SinkNotices

SAID = {"code": "rows-left-behind", "subject": "public.t", "what": "rows keep NULL", "fix": "copy them"}


def _packed(*notices: dict[str, str], table: str = "public.t") -> str:
    return orjson.dumps({table: list(notices)}).decode()


def test_a_notice_stands_over_a_restart_until_the_sink_finds_that_it_is_no_longer_so(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    first = SinkNotices(path)
    first.take("pg", "", "shop")  # most receipts say nothing, and that means nothing
    assert not path.exists()
    first.take("pg", _packed(SAID), "shop")
    first.take("ch", _packed(table="public.other"), "shop")
    again = SinkNotices(path)
    assert list(again.standing()) == [SAID]
    again.take("ch", _packed(), "shop")  # of another sink's table
    assert list(again.standing()) == [SAID]
    again.take("pg", _packed(), "shop")
    assert list(again.standing()) == []
    assert list(SinkNotices(path).standing()) == []


def test_a_notice_is_written_to_the_log_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notices = SinkNotices(tmp_path / "notices.json")
    with caplog.at_level(logging.WARNING, "tidemill"):
        for _ in range(3):
            notices.take("pg", _packed(SAID), "shop")
    assert [record.getMessage() for record in caplog.records] == ["sink.rows_left_behind"]


def test_the_file_is_its_owners_only(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    SinkNotices(path).take("pg", _packed(SAID), "shop")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "notices.json"
    path.write_bytes(b"{")
    assert list(SinkNotices(path).standing()) == []
