"""One process watches many folders with few of the descriptors that the kernel gives a user."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tidemill.disk import inotify
from tidemill.disk.inotify import FolderWatch, Inotify, watch_folder

_MANY = 300  # more than the 128 descriptors that a user has by default


def test_more_folders_than_there_are_descriptors_are_watched_each_for_itself(tmp_path: Path) -> None:
    with _watched(tmp_path, _MANY) as watches:
        for number in (0, 7, 8, _MANY - 1):
            (tmp_path / str(number) / "a.idx").write_bytes(b"1")
            assert _names(watches[number]) == {b"a.idx"}
            assert watches[number].take() == []
        assert [watch.take() for watch in watches] == [[]] * _MANY


def test_a_folder_that_two_watch_is_told_to_both_and_to_the_one_that_stays(tmp_path: Path) -> None:
    with _watched(tmp_path, inotify._OWN_FOLDERS):
        first, second = watch_folder(tmp_path), watch_folder(tmp_path)
        assert first is not None
        assert second is not None
        (tmp_path / "a").write_bytes(b"1")
        assert (_names(first), _names(second)) == ({b"a"}, {b"a"})
        first.close()
        (tmp_path / "b").write_bytes(b"1")
        assert _names(second) == {b"b"}
        second.close()


def test_a_folder_that_is_not_there_and_a_system_without_descriptors_give_no_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watch_folder(tmp_path / "nowhere") is None
    with _watched(tmp_path, inotify._OWN_FOLDERS):
        assert watch_folder(tmp_path / "nowhere") is None
    monkeypatch.setattr(inotify, "_folders", inotify._Folders())
    monkeypatch.setattr(Inotify, "open", classmethod(lambda cls, blocking=False: None))
    assert watch_folder(tmp_path) is None


@contextmanager
def _watched(folder: Path, count: int) -> Iterator[list[FolderWatch]]:
    with ExitStack() as held:
        watches = []
        for number in range(count):
            (folder / str(number)).mkdir()
            watch = watch_folder(folder / str(number))
            assert watch is not None
            held.callback(watch.close)
            watches.append(watch)
        yield watches


def _names(watch: FolderWatch) -> set[bytes]:
    assert select.select([watch], [], [], 10)[0] == [watch]
    found = set(watch.take())
    while select.select([watch], [], [], 0.05)[0]:  # the kernel tells of making and of writing
        found |= set(watch.take())
    return found
