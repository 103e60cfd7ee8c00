"""The kernel wakes a reader of the log; where it cannot, nobody waits for it."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

from tests.support.blocks import make_change
from tidemill.log import LogConfig, LogWriter
from tidemill.log import notice as notices
from tidemill.log.notice import AppendNotice


def test_an_append_is_noticed_and_its_data_alone_is_not(tmp_path: Path) -> None:
    log = LogWriter.open(str(tmp_path), LogConfig.model_validate({}))
    notice = AppendNotice(str(tmp_path))
    file = notice.fileno()
    assert file is not None
    assert select.select([file], [], [], 0)[0] == []
    (tmp_path / f"{7:020d}.seg").write_bytes(b"data")
    assert select.select([file], [], [], 5)[0] == [file]
    assert not notice.clear()
    for number in (1, 2):
        log.append(make_change(5, number=number))
        assert select.select([file], [], [], 5)[0] == [file]
        assert notice.clear()
        assert not notice.clear()
    log.close()
    notice.close()
    assert notice.fileno() is None


def test_a_log_that_the_kernel_does_not_know_gives_no_notice(tmp_path: Path) -> None:
    notice = AppendNotice(str(tmp_path / "nowhere"))
    assert (notice.fileno(), notice.clear()) == (None, False)
    notice.close()


def test_who_is_told_of_appends_need_not_look_often_and_who_is_not_looks_again_soon(tmp_path: Path) -> None:
    log = LogWriter.open(str(tmp_path), LogConfig.model_validate({}))
    notice = AppendNotice(str(tmp_path))
    for number in range(5):
        log.append(make_change(5, number=number))
        assert notice.wait(5)
        notice.note_append()
    assert notice.look_seconds == 1.0
    notice.clear()
    for _ in range(3):  # found, and no notice came: another machine writes this log
        assert not notice.wait(0)
        notice.note_append()
    assert notice.look_seconds == pytest.approx(0.003)
    log.append(make_change(5, number=9))
    assert notice.wait(5)
    notice.note_append()
    assert notice.look_seconds == 1.0
    log.close()
    notice.close()


def test_who_found_nothing_for_long_looks_seldom(tmp_path: Path) -> None:
    notice = AppendNotice(str(tmp_path))
    notice._found_at -= 30.0
    assert notice.look_seconds == pytest.approx(3.0, abs=0.1)
    notice._found_at -= 3000.0
    assert notice.look_seconds == 5.0
    notice.note_append()
    assert notice.look_seconds == 1.0
    notice.close()


def test_a_backlog_of_several_batches_is_no_append_that_nobody_told_of(tmp_path: Path) -> None:
    notice = AppendNotice(str(tmp_path))
    for _ in range(10):
        notice.note_append()
    assert notice.look_seconds == 1.0
    notice.close()


def test_a_log_that_is_made_later_is_watched_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_WATCHED_SECONDS", 0.0)
    notice = AppendNotice(str(tmp_path / "log"))
    assert notice.fileno() is None
    assert not notice.wait(0.001)
    log = LogWriter.open(str(tmp_path / "log"), LogConfig.model_validate({}))
    notice.clear()
    log.append(make_change(5, number=1))
    assert notice.wait(5)
    log.close()
    notice.close()
