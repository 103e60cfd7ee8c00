"""One atomic replace for every file that Tidemill keeps: old or new, on disk, and only its owner's."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tidemill.disk.replace import publish_file, replace_file

SOURCES = Path(tidemill.__file__).parent


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What was asked of the disk, in order."""
    found: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced(file: int) -> None:
        place = Path(f"/proc/self/fd/{file}").readlink()
        found.append("sync directory" if place.is_dir() else f"sync {place.name}")
        sync(file)

    def renamed(old: Any, new: Any) -> None:
        found.append(f"rename {Path(old).name} to {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    return found


def test_a_file_is_replaced_as_a_whole_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"a longer text than the next")
    path.chmod(0o644)
    replace_file(path, b"short")
    assert path.read_bytes() == b"short"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_disk_before_it_has_the_name_and_the_name_before_it_returns(
    tmp_path: Path, steps: list[str]
) -> None:
    replace_file(tmp_path / "a.json", b"x")
    assert steps == ["sync a.json.tmp", "rename a.json.tmp to a.json", "sync directory"]


def test_a_file_that_was_written_elsewhere_is_published_in_the_same_order(tmp_path: Path, steps: list[str]) -> None:
    (tmp_path / "draft").write_bytes(b"x")
    publish_file(tmp_path / "draft", tmp_path / "a.json")
    assert steps == ["sync draft", "rename draft to a.json", "sync directory"]


def test_who_does_not_ask_for_the_disk_does_not_wait_for_it(tmp_path: Path, steps: list[str]) -> None:
    replace_file(tmp_path / "a.json", b"x", durable=False)
    assert steps == ["rename a.json.tmp to a.json"]


def test_files_of_one_stem_have_drafts_of_their_own(tmp_path: Path, steps: list[str]) -> None:
    """`a.json` and `a.lock` once had the same draft."""
    replace_file(tmp_path / "a.json", b"x", durable=False)
    replace_file(tmp_path / "a.lock", b"y", durable=False)
    assert steps == ["rename a.json.tmp to a.json", "rename a.lock.tmp to a.lock"]


@pytest.mark.parametrize("call", ["pwritev", "fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_content_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "a.json"
    replace_file(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_kernel_that_takes_a_few_bytes_at_a_time_is_asked_until_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda file, views, at: real(file, [views[0][:3]], at))
    replace_file(tmp_path / "a", b"more than three")
    assert (tmp_path / "a").read_bytes() == b"more than three"


def test_nobody_replaces_a_file_in_a_way_of_his_own() -> None:
    own = re.compile(r"os\.replace\(|\b(draft|passing|temporary)\.replace\(")
    found = [
        str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py")
        if "lab" not in path.parts and path.name != "replace.py" and own.search(path.read_text())
    ]  # fmt: skip
    assert not found
