"""What benches with servers of their own have in common: a folder, a log of events, and an orderly end."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemill.telemetry import events


class ScratchBench(ABC):
    """Starts on entry. Everything it started, and put on `_stack`, is gone when it is closed."""

    _scratch: Path

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._counter = 0

    @abstractmethod
    def _start(self) -> None:
        """Servers, Spark, and what all runs need."""

    def __enter__(self) -> Self:
        try:
            self._scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-bench-")))
            events.configure(stream=self._stack.enter_context((self._scratch / "events.log").open("w")))
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
