"""The load: a few clients that do random transactions until told to stop, the same choices for the same seed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random

from tests.crash.harness import SourceHarness


class Load:
    """Each client has its own session and its own dice. What happened when is the scheduler's choice, not the seed's.

    `pause` is the mean number of seconds between a client's transactions, and `rows_per_second` what it takes at most
    over time: on a slow machine, too, a restart must not leave a mountain behind.
    """

    def __init__(
        self,
        harness: SourceHarness,
        seed: int,
        *,
        clients: int = 2,
        pause: float = 0.02,
        rows_per_second: float = 2000,
        moves: Mapping[str, float] | None = None,
    ) -> None:
        self.done: Counter[str] = Counter()
        self._harness = harness
        self._pause = pause
        self._rate = rows_per_second
        self._moves = dict(moves or harness.MOVES)
        self._stop = threading.Event()
        self._failure: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._serve, args=(Random(f"{seed}/{number}"),), name=f"client-{number}")
            for number in range(clients)
        ]

    @contextmanager
    def running(self) -> Iterator[Load]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(60)
            # Also when the test failed already: without load it may only have waited for what never came.
            if self._failure:
                raise self._failure[0]
        assert not any(thread.is_alive() for thread in self._threads), "a client hangs"

    def _serve(self, dice: Random) -> None:
        kinds, weights = list(self._moves), list(self._moves.values())
        session = self._harness.session()
        try:
            rows = 0
            while not self._stop.wait(dice.expovariate(1 / self._pause) + rows / self._rate):
                kind = dice.choices(kinds, weights)[0]
                rows = session.move(kind, dice)
                self.done[kind] += 1
        except BaseException as error:  # noqa: BLE001  raised again where the load is stopped
            self._failure.append(error)
        finally:
            session.close()
