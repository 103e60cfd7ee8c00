"""How often a producer is asked whether its queue is empty: no broker, a producer that stands in for librdkafka."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tidemill.sinks.kafka import client
from tidemill.sinks.kafka.client import KafkaFailure, Messages, Producer, Transactional


class QueuedMessages(Producer):
    """Its queue is empty after some milliseconds; like librdkafka it uses all of the time that it gets. It holds
    thousands of messages a millisecond where `many` is set."""

    def __init__(self, milliseconds: int, *, many: bool = False) -> None:
        super().__init__({})
        self._left = milliseconds
        self._many = many
        self.asked: list[int] = []
        self.flushed = 0

    def topic(self, name: str) -> int:
        return 0

    def headers(self, pairs: tuple[tuple[str, bytes], ...]) -> int:
        return 0

    def _enqueuer(self, messages: Messages, partition: int) -> Callable[[int], tuple[int, int]]:
        raise NotImplementedError

    def _poll(self, milliseconds: int) -> None:
        if milliseconds:
            self.asked.append(milliseconds)
            self._left -= milliseconds

    def _flush(self, milliseconds: int) -> None:
        self._poll(milliseconds)
        self.flushed += milliseconds

    def _count_queued(self) -> int:
        return max(0, self._left) * (5000 if self._many else 1)

    def _transact(self, what: Transactional, milliseconds: int) -> None:
        raise NotImplementedError

    def _fatal(self) -> tuple[int, str] | None:
        return None

    def _text(self, code: int) -> str:
        return ""

    def _drop(self) -> None:
        pass

    def _forget(self) -> None:
        pass


@pytest.mark.parametrize("milliseconds", [1, 2, 3, 5, 9, 40, 1000])
def test_a_small_delivery_is_noticed_within_a_millisecond_and_a_slow_one_is_not_asked_for_all_the_time(
    milliseconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = QueuedMessages(milliseconds)
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: sum(producer.asked) / 1000))
    producer.flush(5.0)
    late = sum(producer.asked) - milliseconds
    assert late <= (1 if milliseconds <= 50 else 25)
    assert len(producer.asked) <= min(milliseconds, 51) + milliseconds * 0.15
    assert producer._count_queued() == 0


def test_a_large_delivery_is_left_alone_most_of_the_time() -> None:
    """While it is flushed, librdkafka's thread does not sleep if anything waits for an earlier request."""
    producer = QueuedMessages(1000, many=True)
    producer.flush(5.0)
    assert producer._count_queued() == 0
    assert producer.asked[0] <= 2, "what fills no batch leaves at once"
    assert producer.flushed < 200
    assert sum(producer.asked) - 1000 <= 25


def test_a_queue_that_never_empties_is_given_up() -> None:
    producer = QueuedMessages(10**9)
    producer._count_queued = lambda: 3  # type: ignore[method-assign]
    with pytest.raises(KafkaFailure, match="3 messages were not acknowledged"):
        producer.flush(0.0)
