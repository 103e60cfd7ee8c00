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
