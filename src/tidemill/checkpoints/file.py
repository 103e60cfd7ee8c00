"""One small JSON file per pipeline, replaced atomically: nothing to install, easy to read, safe against a power cut.

Keeps the newest checkpoint only; `sqlite` keeps the past too.
"""

from __future__ import annotations

import fcntl
import os
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import orjson
from pydantic import Field

from tidemill.checkpoints._shared import succeed
from tidemill.contracts import Component, Config
from tidemill.disk.private import make_directory, open_file
from tidemill.disk.replace import replace_file
from tidemill.errors import CheckpointError
from tidemill.model.delivery import Checkpoint
from tidemill.retry import RetryPolicy


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

    def load(self, pipeline: str) -> Checkpoint | None:
        path = self._path(pipeline)
        try:
            return Checkpoint(**orjson.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint file does not hold a checkpoint: {error}",
                where=str(path),
                fix='Restore it from a backup, or remove it and set the position with "tidemill checkpoints set".',
            ) from error
        except OSError as error:
            raise _unreachable(path, error) from error

    def save(self, pipeline: str, checkpoint: Checkpoint, *, expect: int, force: bool = False) -> Checkpoint:
        """Returns when the new file is on disk, directory entry included."""
        path = self._path(pipeline)
        try:
            with self._locked(pipeline):
                newest = self.load(pipeline)
                stored = succeed(newest, checkpoint, expect=expect, force=force, pipeline=pipeline)
                # Written again even where it is that already: an fsync may be what failed the last time.
                replace_file(path, orjson.dumps(asdict(stored), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
                return stored
        except OSError as error:
            raise _unreachable(path, error) from error

    def history(self, pipeline: str, limit: int = 20) -> list[Checkpoint]:
        """Only the newest: this store keeps no past."""
        newest = self.load(pipeline)
        return [newest][:limit] if newest else []

    def close(self) -> None:
        pass

    def _path(self, pipeline: str) -> Path:
        # A pipeline may be called "a/b" or "..": its name must not choose another directory.
        return self.directory / f"{urllib.parse.quote(pipeline, safe=' ')}.json"

    @contextmanager
    def _locked(self, pipeline: str) -> Iterator[None]:
        """Compare-and-set between processes. The lock has its own file: a replaced file takes its lock along."""
        make_directory(self.directory, ours=self.config.path is None)
        path = self._path(pipeline).with_suffix(".lock")
        held_by_others = RetryPolicy(first=0.01, most=0.01, seconds=self.lock_seconds)
        with open(open_file(path, os.O_WRONLY | os.O_CREAT), "w") as lock:
            try:
                held_by_others.run(
                    lambda: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB),
                    worth=lambda error: isinstance(error, BlockingIOError),
                )
            except BlockingIOError as error:
                raise CheckpointError(
                    f"another process has held the checkpoint's lock for {self.lock_seconds:.0f} seconds",
                    where=str(path),
                    fix="It holds it only while it writes, so it is stuck: find it with lsof, and end it.",
                ) from error
            yield


def _unreachable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint file cannot be used: {error.strerror or error}",
        where=str(path),
        fix="Check the directory's permissions and free space.",
    )


component = FileCheckpoints
