"""One small file per pipeline, with the newest checkpoint as a line of JSON and the one before: nothing to install,
easy to read, safe against a power cut, and one `fdatasync` for each save (`disk/slots.py`).

Keeps the newest checkpoint only; `sqlite` keeps the past too. Files of earlier versions hold one JSON document: they
are read, and replaced by the first save.
"""

from __future__ import annotations

import fcntl
import os
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from tidemill.checkpoints._shared import succeed
from tidemill.contracts import Component, Config
from tidemill.disk.private import make_directory, open_file
from tidemill.disk.slots import SlotFile, read_document
from tidemill.errors import CheckpointError
from tidemill.model.delivery import Checkpoint
from tidemill.retry import RetryPolicy

_NUMBER = "version"
# A reader that is overtaken by two writes while it reads finds neither line whole.
_LOOKS = 3


class FileConfig(Config):
    path: Path | None = Field(
        default=None, description="Directory of the checkpoint files; by default inside the pipeline's state directory."
    )


class FileCheckpoints(Component[FileConfig]):
    Config = FileConfig
    lock_seconds: ClassVar[float] = 30.0

    def __init__(self, config: FileConfig, state_dir: Path | None = None) -> None:
        super().__init__(config)
        self.directory = config.path or (state_dir or Path(".tidemill")) / "checkpoints"
        self._saving = threading.Lock()  # an open lock file is no lock among the threads that share it
        self._files: dict[str, SlotFile] = {}
        self._locks: dict[str, int] = {}

    def load(self, pipeline: str) -> Checkpoint | None:
        path = self._path(pipeline)
        try:
            for _ in range(_LOOKS):
                if (found := _read(path)) is not None:
                    return Checkpoint(**found)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise _no_checkpoint(path, str(error)) from error
        except OSError as error:
            raise _unreachable(path, error) from error
        raise _no_checkpoint(path, "no line of it matches its checksum")

    def save(self, pipeline: str, checkpoint: Checkpoint, *, expect: int, force: bool = False) -> Checkpoint:
        """Returns when it is on disk."""
        try:
            with self._saving, self._lock(pipeline):
                newest = self.load(pipeline)
                stored = succeed(newest, checkpoint, expect=expect, force=force, pipeline=pipeline)
                file = self._files.setdefault(pipeline, SlotFile(self._path(pipeline), _NUMBER))
                # Written again even where it is that already: an fsync may be what failed the last time.
                file.write(asdict(stored))
                return stored
        except OSError as error:
            raise _unreachable(self._path(pipeline), error) from error

    def history(self, pipeline: str, limit: int = 20) -> list[Checkpoint]:
        """Only the newest: this store keeps no past."""
        newest = self.load(pipeline)
        return [newest][:limit] if newest else []

    def close(self) -> None:
        with self._saving:
            for file in self._files.values():
                file.close()
            for lock in self._locks.values():
                os.close(lock)
            self._files, self._locks = {}, {}

    def _path(self, pipeline: str) -> Path:
        # A pipeline may be called "a/b" or "..": its name must not choose another directory.
        return self.directory / f"{urllib.parse.quote(pipeline, safe=' ')}.json"

    @contextmanager
    def _lock(self, pipeline: str) -> Iterator[None]:
        """Compare-and-set between processes. The lock has its own file: a replaced file takes its lock along."""
        lock = self._open_lock(pipeline)
        held_by_others = RetryPolicy(first=0.01, most=0.01, seconds=self.lock_seconds)
        try:
            held_by_others.run(
                lambda: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB),
                worth=lambda error: isinstance(error, BlockingIOError),
            )
        except BlockingIOError as error:
            raise CheckpointError(
                f"another process has held the checkpoint's lock for {self.lock_seconds:.0f} seconds",
                where=str(self._lock_path(pipeline)),
                fix="It holds it only while it writes, so it is stuck: find it with lsof, and end it.",
            ) from error
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)

    def _open_lock(self, pipeline: str) -> int:
        """Stays open from save to save; a lock file that somebody removed locks nobody out."""
        lock = self._locks.get(pipeline)
        if lock is not None and os.fstat(lock).st_nlink:
            return lock
        if lock is not None:
            os.close(self._locks.pop(pipeline))
        make_directory(self.directory, ours=self.config.path is None)
        self._locks[pipeline] = open_file(self._lock_path(pipeline), os.O_WRONLY | os.O_CREAT)
        return self._locks[pipeline]

    def _lock_path(self, pipeline: str) -> Path:
        return self._path(pipeline).with_suffix(".lock")


def _read(path: Path) -> dict[str, Any] | None:
    """None where neither line is whole."""
    return read_document(path.read_bytes(), _NUMBER)


def _no_checkpoint(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint file does not hold a checkpoint: {why}",
        where=str(path),
        fix='Restore it from a backup, or remove it and set the position with "tidemill checkpoints set".',
    )


def _unreachable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint file cannot be used: {error.strerror or error}",
        where=str(path),
        fix="Check the directory's permissions and free space.",
    )


component = FileCheckpoints
