"""Heartbeats of a driver to all lanes that stand for it, from one thread: one for each pipeline made two hundred, which
all woke up once a second (ADR 78)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from tidemill.stream.trigger import channel as wire
from tidemill.stream.trigger.channel import Channel


class Beats:
    """Its thread is there while a channel is. For any thread."""

    def __init__(self) -> None:
        self._changing = threading.Lock()  # guards what is below; held while one is sent, which waits for nobody
        self._channels: set[Channel] = set()
        self._runs = False

    @contextmanager
    def to(self, channels: Iterable[Channel]) -> Iterator[None]:
        """Meanwhile; none is sent after it, so that they may be closed."""
        ours = set(channels)
        with self._changing:
            self._channels |= ours
            if ours and not self._runs:
                self._runs = True
                threading.Thread(target=self._beat, name="lane-beats", daemon=True).start()
        try:
            yield
        finally:
            with self._changing:
                self._channels -= ours

    def _beat(self) -> None:
        while True:
            time.sleep(wire.BEAT_SECONDS)
            for channel in list(self._channels):
                with self._changing:
                    if channel in self._channels:
                        with suppress(OSError):  # whoever hears it next meets the same
                            channel.beat()
            with self._changing:
                if not self._channels:
                    self._runs = False
                    return


beats = Beats()  # of the process: pipelines know nothing of each other
