"""What the baselines of all sinks have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidemill.formats.json import JsonFormat
from tidemill.lab.bench.material import Material

PULLED = 1000
"""Messages of one pull, and of the ack after it."""


class Baseline(ABC):
    """Starts on entry, is gone on exit. `loop` says what `plain` does, `pull_loop` what the plain consumer does."""

    loop: str
    pull_loop: str = ""

    def __init__(self, scratch: Path, material: Material) -> None:
        self.scratch = scratch
        self.material = material
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        self.scratch.mkdir(parents=True, exist_ok=True)
        try:
            self.start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stack.close()

    @abstractmethod
    def start(self) -> None:
        """The server, and what `plain` needs ready."""

    @abstractmethod
    def config(self, target: str) -> dict[str, Any]:
        """The sink's settings; every target is a place of its own."""

    @abstractmethod
    def plain(self, target: str) -> float:
        """Seconds of the plain loop."""

    def pulls(self, ours: str, plain: str) -> tuple[float, float] | None:
        """Seconds to take everything out again, by our consumer and by the plainest one; None if we have none."""
        return None

    def values(self) -> list[bytes]:
        """Every event as a sink would send it."""
        return [v for block in self.material.blocks() for v in JsonFormat().encode(block, "bench").to_pylist()]

    def keys(self) -> list[bytes]:
        return [v for block in self.material.blocks() for v in JsonFormat().encode_key(block).to_pylist()]
