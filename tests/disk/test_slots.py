"""A document in two slots: one `fdatasync` for each write, and whatever is torn leaves the one before."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tidemill.disk.slots import SlotFile, overwrite, read_newest


def newest(path: Path) -> dict[str, object] | None:
    return read_newest(path.read_bytes(), "number")


def test_the_last_document_is_read_back_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    file = SlotFile(tmp_path / "a", "number")
    for number in range(1, 6):
        file.write({"number": number, "text": "x" * (6 - number)})
        assert newest(tmp_path / "a") == {"number": number, "text": "x" * (6 - number)}
    file.close()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_write_into_a_file_that_is_there_is_one_sync_and_no_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SlotFile(tmp_path / "a", "number")
    file.write({"number": 1})
    asked: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: asked.append("fsync"))
    monkeypatch.setattr(os, "replace", lambda *_: asked.append("replace"))
    monkeypatch.setattr(os, "fdatasync", lambda _: asked.append("fdatasync"))
    file.write({"number": 2})
    file.close()
    assert asked == ["fdatasync"]


def test_what_need_not_be_on_disk_waits_for_no_disk_and_gets_no_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that goes to another file is work for the journal, which every `fdatasync` then waits for."""
    path = tmp_path / "a"
    path.write_text('{"of": "an earlier version"}')
    overwrite(path, {"text": "first"}, "number")
    there = path.stat().st_ino
    asked: list[str] = []
    for call in ("fsync", "fdatasync", "replace", "ftruncate"):
        monkeypatch.setattr(os, call, lambda *_, call=call: asked.append(call))
    for text in ("second", "third", "fourth"):
        overwrite(path, {"text": text}, "number")
        found = newest(path)
        assert found is not None
        assert found["text"] == text
    assert (asked, path.stat().st_ino, os.listdir(tmp_path)) == ([], there, ["a"])


def test_a_document_that_outgrows_its_slot_gets_a_larger_file(tmp_path: Path) -> None:
    file = SlotFile(tmp_path / "a", "number")
    for number, length in enumerate((10, 5000, 10, 5000, 20_000), 1):
        file.write({"number": number, "text": "x" * length})
        found = newest(tmp_path / "a")
        assert found is not None
        assert (found["number"], len(str(found["text"]))) == (number, length)
    file.close()


def test_torn_anywhere_the_document_before_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = SlotFile(path, "number")
    file.write({"number": 1, "text": "before"})
    whole = path.read_bytes()
    file.write({"number": 2, "text": "after"})
    file.close()
    now = path.read_bytes()
    changed = [at for at in range(len(now)) if now[at] != whole[at]]
    for kept in range(len(changed)):
        torn = bytearray(whole)
        for at in changed[:kept]:
            torn[at] = now[at]
        assert read_newest(bytes(torn), "number") == {"number": 1, "text": "before"}, f"{kept} bytes were written"


def test_after_a_disk_error_readers_find_the_document_before_and_the_write_may_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    file = SlotFile(path, "number")
    for number in (1, 2):
        file.write({"number": number})

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk says no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="the disk says no"):
            file.write({"number": 3})
    assert newest(path) == {"number": 2}
    file.write({"number": 3})
    assert newest(path) == {"number": 3}
    file.close()


def test_a_file_that_another_process_replaced_or_removed_is_written_where_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = SlotFile(path, "number")
    file.write({"number": 1})
    other = SlotFile(path, "number")
    other.write({"number": 2, "text": "x" * 5000})
    other.close()
    file.write({"number": 3})
    assert newest(path) == {"number": 3}
    path.unlink()
    file.write({"number": 4})
    assert newest(path) == {"number": 4}
    file.close()


def test_a_file_with_other_content_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for content in (b"", b"{" + b" " * 8191, b"x" * 100):
        path.write_bytes(content)
        assert newest(path) is None
        file = SlotFile(path, "number")
        file.write({"number": 7})
        file.close()
        assert newest(path) == {"number": 7}
        assert path.stat().st_size == 8192
