"""What a checkpoint store promises."""

from __future__ import annotations

from typing import Protocol

from tidemill.model.delivery import Checkpoint


class CheckpointStore(Protocol):
    """Keeps checkpoints per pipeline. `save` is compare-and-set on `expect` (the version that was read, 0 for none)
    and never moves backwards unless `force` says that an operator asked for it. A save may be repeated with the same
    `expect` after an error, by the same `writer`: what it stored the first time is no conflict."""

    def load(self, pipeline: str) -> Checkpoint | None: ...

    def save(self, pipeline: str, checkpoint: Checkpoint, *, expect: int, force: bool = False) -> Checkpoint: ...

    def history(self, pipeline: str, limit: int = 20) -> list[Checkpoint]: ...

    def close(self) -> None: ...
