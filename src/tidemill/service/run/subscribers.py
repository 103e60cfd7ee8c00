"""Who wants to hear of pipelines. Each subscriber is called from a thread of its own, in the order of what happened.

So a slow subscriber holds up no pipeline and no other subscriber, and may call the runtime from within.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tidemill.telemetry import events

_KEPT = 10_000  # notices that wait for one subscriber
_LAST_SECONDS = 5.0


class Subscribers:
    """Any number of them; every method from any thread."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._all: list[Subscriber] = []

    def add(self, **callbacks: Callable[..., None] | None) -> Callable[[], None]:
        """`callbacks` by kind. The function that is returned unsubscribes; it may be called again."""
        subscriber = Subscriber({kind: call for kind, call in callbacks.items() if call is not None})
        with self._changing:
            self._all = [*self._all, subscriber]

        def unsubscribe() -> None:
            with self._changing:
                self._all = [each for each in self._all if each is not subscriber]
            subscriber.end(finish=False)

        return unsubscribe

    def tell(self, kind: str, *arguments: object) -> None:
        """Returns at once."""
        for subscriber in self._all:
            subscriber.tell(kind, arguments)

    def close(self) -> None:
        """Lets everyone hear what has happened so far; waits a few seconds for those who are slow."""
        with self._changing:
            gone, self._all = self._all, []
        for subscriber in gone:
            subscriber.end(finish=True)


class Subscriber:
    """A queue and the thread that empties it. It keeps the newest notices and says in the log how many it dropped."""

    def __init__(self, callbacks: dict[str, Callable[..., None]]) -> None:
        self._callbacks = callbacks
        self._waiting: deque[tuple[str, tuple[object, ...]]] = deque()
        self._dropped = 0
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._listen, name="subscriber", daemon=True)
        self._thread.start()

    def tell(self, kind: str, arguments: tuple[object, ...]) -> None:
        if kind not in self._callbacks:
            return
        with self._changed:
            if self._ended:
                return
            if len(self._waiting) == _KEPT:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append((kind, arguments))
            self._changed.notify()

    def end(self, *, finish: bool) -> None:
        """No call begins after it, unless it is to `finish` what waits. A call under way is waited for, but not from
        within that call."""
        with self._changed:
            self._ended = True
            if not finish:
                self._waiting.clear()
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(_LAST_SECONDS)

    def _listen(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                kind, arguments = self._waiting.popleft()
                dropped, self._dropped = self._dropped, 0
            if dropped:
                events.warn("subscriber.lagging", dropped=dropped)
            try:
                self._callbacks[kind](*arguments)
            except Exception as error:  # noqa: BLE001  no pipeline and no other subscriber pays for it
                events.warn("subscriber.failed", kind=kind, error=type(error).__qualname__)
