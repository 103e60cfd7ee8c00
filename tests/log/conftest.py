from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, overload

import pyarrow.fs as pafs
import pytest

from tidemill.log.objects import ObjectStore
from tidemill.log.store import Store, open_store

OpenStore = Callable[[], Store]
S = TypeVar("S", bound=ObjectStore)


class Bucket:
    """One place in memory; each `open` is another process's view of it."""

    def __init__(self) -> None:
        self._fs, _ = pafs.FileSystem.from_uri("mock://")

    @overload
    def open(self) -> ObjectStore: ...
    @overload
    def open(self, kind: type[S]) -> S: ...
    def open(self, kind: type[ObjectStore] = ObjectStore) -> ObjectStore:
        return kind(self._fs, "bucket/log")


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture(params=["directory", "file uri", "objects in memory", "objects on disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Where a log can live. Each call is another process's view of the same place.

    The object layouts are pyarrow file systems that nothing is ever added to: one in memory, one over a directory.
    """
    match request.param:
        case "directory":
            return lambda: open_store(str(tmp_path / "log"))
        case "file uri":
            return lambda: open_store((tmp_path / "a log").as_uri())
        case "objects in memory":
            memory, _ = pafs.FileSystem.from_uri("mock://")
            return lambda: ObjectStore(memory, "bucket/log")
        case _:
            tmp_path.joinpath("bucket").mkdir()
            disk = pafs.SubTreeFileSystem(str(tmp_path / "bucket"), pafs.LocalFileSystem())
            return lambda: ObjectStore(disk, "log")
