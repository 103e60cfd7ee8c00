"""Checkpoints that die with the process: for tests, and for pipelines that begin anew each time by design."""

from __future__ import annotations

import threading
from pathlib import Path

from pydantic import Field

from tidemill.checkpoints._shared import succeed
from tidemill.contracts import Component, Config
from tidemill.model.delivery import Checkpoint


class MemoryConfig(Config):
    keep: int = Field(default=1000, ge=1, description="How many past checkpoints of a pipeline to keep.")


class MemoryCheckpoints(Component[MemoryConfig]):
    Config = MemoryConfig

    def __init__(self, config: MemoryConfig, state_dir: Path | None = None) -> None:
        super().__init__(config)
        self._lock = threading.Lock()
        self._saved: dict[str, list[Checkpoint]] = {}

    def load(self, pipeline: str) -> Checkpoint | None:
        with self._lock:
            saved = self._saved.get(pipeline)
            return saved[-1] if saved else None

    def save(self, pipeline: str, checkpoint: Checkpoint, *, expect: int, force: bool = False) -> Checkpoint:
        with self._lock:
            saved = self._saved.setdefault(pipeline, [])
            stored = succeed(saved[-1] if saved else None, checkpoint, expect=expect, force=force, pipeline=pipeline)
            if not saved or saved[-1] is not stored:
                saved.append(stored)
            del saved[: -self.config.keep]
            return stored

    def history(self, pipeline: str, limit: int = 20) -> list[Checkpoint]:
        """Newest first."""
        with self._lock:
            return self._saved.get(pipeline, [])[::-1][:limit]

    def close(self) -> None:
        pass


component = MemoryCheckpoints
