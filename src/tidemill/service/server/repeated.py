"""What a server does again and again beside its requests: restarts, looks at the state store."""

from __future__ import annotations

import threading
from collections.abc import Callable

_CLOSE_SECONDS = 10.0


class RepeatedTask:
    """Calls `call` every so many seconds in a thread of its own, from `begin` to `close`. It must raise nothing."""

    def __init__(self, call: Callable[[], None], *, seconds: float, name: str) -> None:
        self._call, self._seconds = call, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def begin(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Returns when the call under way is over, or after ten seconds."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._call()
