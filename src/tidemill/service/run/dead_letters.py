"""The dead letters of a running pipeline: where new ones are kept, and which old ones its streams follow."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.config.pipeline import Pipeline
from tidemill.dlq import DeadLetters
from tidemill.stream.superseded import Follower


class RunDeadLetters:
    """`store` is None where none are kept. Those there are are followed also then: dead letters may have been switched
    off since."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.store = self._open() if pipeline.spec.dlq.enabled else None
        self._older: DeadLetters | None = None

    def follower(self, sinks: Sequence[str]) -> Follower | None:
        kept = self.store
        if kept is None and self._pipeline.dlq_path.exists():
            kept = self._older = self._older or self._open()
        return Follower(kept, sinks, self._pipeline.name) if kept is not None else None

    def close(self) -> None:
        for store in (self.store, self._older):
            if store is not None:
                store.close()

    def _open(self) -> DeadLetters:
        return DeadLetters(self._pipeline.dlq_path, self._pipeline.spec.dlq)
