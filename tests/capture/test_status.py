"""What capture says of itself, in a file that is not written for every append."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.capture.status import StatusFile, read_status


def test_what_came_too_soon_after_another_status_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr("tidemill.capture.status.time.time", lambda: now)

    def written() -> int:
        found = read_status(tmp_path)
        assert found is not None
        return found.undelivered_bytes

    file = StatusFile(tmp_path)
    file.update(stage="cdc", undelivered_bytes=1)
    file.update(undelivered_bytes=7)
    file.write_due()
    assert written() == 1, "the file is written for every append"
    now += 1
    file.write_due()
    assert written() == 7
    (tmp_path / "capture.json").unlink(missing_ok=True)
    before = sorted(tmp_path.iterdir())
    now += 1
    file.write_due()
    assert sorted(tmp_path.iterdir()) == before, "at rest nothing is written"


def test_a_status_is_written_in_place_and_outgrows_its_room(tmp_path: Path) -> None:
    """A file that gets another name is work for the journal, which appends wait for; and readers find it whole."""
    path = tmp_path / "capture.json"
    path.write_text('{"pid": 7, "stage": "cdc"}')  # of an earlier version
    found = read_status(tmp_path)
    assert found is not None
    assert found.pid == 7
    file = StatusFile(tmp_path)
    file.update(now=True, stage="cdc", events=0)
    there = path.stat().st_ino
    for events in range(1, 50):
        file.update(now=True, events=events)
        assert (found := read_status(tmp_path)) is not None
        assert found.events == events
    assert path.stat().st_ino == there
    tables = {f"public.table_{number}": number for number in range(1000)}
    file.update(now=True, tables=tables)
    assert (found := read_status(tmp_path)) is not None
    assert (found.events, found.tables) == (49, tables)
