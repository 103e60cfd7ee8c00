"""What the kafka sink asks of a producer, whichever way librdkafka is called (`probe` decides).

    librdkafka.DirectProducer    its C interface from a compiled loop: no Python object per message
    library.LibraryProducer      confluent_kafka's `produce`, one call per message, where the probe said no

Success is silent: with `delivery.report.only.error` librdkafka reports failed messages only, so the rule is "the queue
is empty and nothing was reported".
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tidemill.sinks.kafka import kernel

QUEUE_FULL = -184
TOO_LARGE = 10
TIMED_OUT = -185
_FATAL = -150
NO_HEADERS = 0
FATAL_FOR_CLIENT = frozenset({-169})  # _AUTHENTICATION: librdkafka would retry wrong credentials until messages expire
_MESSAGE_MAX_BYTES = 1_000_000  # librdkafka's default
_FIRST_MS, _LONGER = 4.0, 1.2
# So few messages are one request per partition; they are flushed without a pause, for this long at most, and asked for
# each millisecond: a broker that is slow for a moment need not be noticed late as well.
_FEW, _AT_ONCE_SECONDS, _ASK_MS = 2000, 0.05, 1
_FLUSH_MS, _QUIET_MS = 2, 20.0
_REMEMBERED = 100_000  # failed messages whose numbers are kept

Transactional = Literal["init", "begin", "commit", "abort"]


class KafkaFailure(Exception):
    """What librdkafka said: its error `code`, and what may be done about it."""

    def __init__(self, code: int, reason: str, *, retriable: bool = False, abortable: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.retriable = retriable
        self.abortable = abortable
        # Of a failure that concerns messages: their numbers and sizes, their topic, and the size that is allowed.
        self.messages: dict[int, int] = {}
        self.topic = ""
        self.limit: int | None = None


@dataclass(frozen=True, slots=True)
class Messages:
    """What one `Producer.send` takes: as many keys as values; `topic_of` and `headers_of` are indexes per message.

    `row_headers` are added to a message's set of headers, which must not be empty then; a null leaves one out.
    `numbers` come back with messages that failed.
    """

    values: pa.LargeBinaryArray
    keys: pa.LargeBinaryArray
    topics: Sequence[int]
    topic_of: np.ndarray[Any, np.dtype[np.int64]]
    headers: Sequence[int]
    headers_of: np.ndarray[Any, np.dtype[np.uint8]]
    row_headers: Mapping[str, pa.LargeBinaryArray] = field(default_factory=dict)
    numbers: np.ndarray[Any, np.dtype[np.uint64]] | None = None

    def sizes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Bytes of value and key, which is what librdkafka compares with its limit."""
        return np.diff(kernel.buffers(self.values)[1]) + np.diff(kernel.buffers(self.keys)[1])


class Producer(ABC):
    """One librdkafka producer, for one thread, in the process that made it: its own threads do not survive a fork."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.pid = os.getpid()
        self.last_problem: tuple[int, str] = (0, "")
        self._closed = False
        self._failed = 0
        self._failure = (0, "")
        self._failed_messages: dict[int, int] = {}
        self._largest = int(settings.get("message.max.bytes", _MESSAGE_MAX_BYTES))

    @abstractmethod
    def topic(self, name: str) -> int:
        """A handle for `Messages.topics`; the same name gives the same handle."""

    @abstractmethod
    def headers(self, pairs: tuple[tuple[str, bytes], ...]) -> int:
        """A handle for `Messages.headers`; the same pairs give the same handle, none give `NO_HEADERS`."""

    def send(self, messages: Messages, timeout: float, *, partition: int = -1) -> None:
        """Queues all messages, in order, to `partition` or where their keys belong.

        A full queue is waited for, at most `timeout` seconds without any progress.
        """
        enqueue = self._enqueuer(messages, partition)
        done, stuck_since = 0, time.monotonic()
        while True:
            reached, code = enqueue(done)
            if code == 0:
                self._poll(0)
                return self._raise_failures()
            if code == _FATAL:
                self._poll(0)
                self._raise_failures()  # says which one
            if code != QUEUE_FULL:
                raise self._refusal(code, messages, reached)
            now = time.monotonic()
            if reached > done:
                done, stuck_since = reached, now
            elif now - stuck_since > timeout:
                raise KafkaFailure(TIMED_OUT, f"no message was taken for {timeout:.0f} s")
            else:
                self._flush(_FLUSH_MS)  # batches that are not full linger, and may be all that there is
            self._poll(20)
            self._raise_failures()

    def flush(self, timeout: float) -> None:
        """Returns when every queued message is acknowledged; raises the first failure otherwise.

        An idempotent producer has one request on its way to a partition. While that is so and the partition has more,
        librdkafka's thread does not sleep during a flush: it calls `poll` without a pause until the broker answers. So
        only a small delivery is flushed from beginning to end. Of a large one the full batches leave by themselves, and
        short flushes from time to time send the rest.
        """
        left, stuck_since = self._count_queued(), time.monotonic()
        few = left <= _FEW
        at_once = stuck_since + _AT_ONCE_SECONDS if few else 0.0
        # Success is silent: librdkafka's flush wakes up for failures only, and counts what is left each 10 ms at most.
        wait = _FIRST_MS
        while left:
            if time.monotonic() < at_once:
                self._flush(_ASK_MS)
            else:
                self._flush(_FLUSH_MS)
                if self._count_queued():
                    self._poll(int(wait))
                wait = min(wait * _LONGER, _QUIET_MS)
            self._raise_failures()
            before, left = left, self._count_queued()
            if left < before:
                stuck_since = time.monotonic()
            elif time.monotonic() - stuck_since > timeout:
                raise KafkaFailure(TIMED_OUT, f"{left} messages were not acknowledged for {timeout:.0f} s")
        self._poll(0)
        self._raise_failures()

    def init_transactions(self, timeout: float) -> None:
        self._try_transact("init", timeout)

    def begin(self) -> None:
        self._transact("begin", 0)

    def commit(self, timeout: float) -> None:
        """Flushes and commits. After a timeout the outcome is open: only a new `init_transactions` settles it."""
        self.flush(timeout)  # librdkafka's commit would flush from beginning to end
        self._try_transact("commit", timeout)
        self._raise_failures()

    def try_abort(self) -> None:
        """Ends an open transaction if that can be done soon; if not, the next `init_transactions` does it."""
        with contextlib.suppress(KafkaFailure):
            self._try_transact("abort", 5.0)

    def close(self) -> None:
        """Drops what is still queued. In a forked child the handle is only forgotten: its threads are not here."""
        if self._closed:
            return
        self._closed = True
        if self.pid == os.getpid():
            self._drop()
        else:
            self._forget()

    def _try_transact(self, what: Transactional, timeout: float) -> None:
        # Short calls, again and again, as the manual allows: failures met meanwhile are seen, signals are served.
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._transact(what, 500)
            except KafkaFailure as failure:
                self._poll(0)
                if what != "abort":
                    self._raise_failures()
                if not failure.retriable or time.monotonic() > deadline:
                    raise

    def _refusal(self, code: int, messages: Messages, at: int) -> KafkaFailure:
        """librdkafka took messages up to `at` and not that one."""
        failure = KafkaFailure(code, self._text(code))
        if code == TOO_LARGE and messages.numbers is not None:
            sizes = messages.sizes()
            # Headers count too: the one it refused may be a little below the limit without them.
            failure.limit = min(self._largest, int(sizes[at]) - 1)
            large = np.flatnonzero(sizes > failure.limit)
            failure.messages = {int(messages.numbers[row]): int(sizes[row]) for row in large}
        return failure

    def _raise_failures(self) -> None:
        fatal = self._fatal()
        if fatal is not None:
            raise KafkaFailure(*fatal)
        if self._failed:
            code, topic = self._failure
            failure = KafkaFailure(code, f'{self._failed} messages for topic "{topic}": {self._text(code)}')
            failure.topic, failure.messages = topic, self._failed_messages
            raise failure
        if self.last_problem[0] in FATAL_FOR_CLIENT:
            raise KafkaFailure(*self.last_problem)

    def _note_failed(self, code: int, topic: Callable[[], str], number: int | None, size: int) -> None:
        """A delivery report. The first one's code and topic stand for all of them."""
        if not self._failed:
            self._failure = (code, topic())
        self._failed += 1
        if number is not None and len(self._failed_messages) < _REMEMBERED:
            self._failed_messages[number] = size

    # What the two ways do differently. Times are milliseconds.

    @abstractmethod
    def _enqueuer(self, messages: Messages, partition: int) -> Callable[[int], tuple[int, int]]:
        """Queues from a message on; says which one it reached, and the error code of that one, 0 after the last."""

    @abstractmethod
    def _poll(self, milliseconds: int) -> None: ...

    @abstractmethod
    def _flush(self, milliseconds: int) -> None: ...

    @abstractmethod
    def _count_queued(self) -> int: ...

    @abstractmethod
    def _transact(self, what: Transactional, milliseconds: int) -> None:
        """Raises `KafkaFailure`."""

    @abstractmethod
    def _fatal(self) -> tuple[int, str] | None:
        """The error after which the producer is of no use."""

    @abstractmethod
    def _text(self, code: int) -> str: ...

    @abstractmethod
    def _drop(self) -> None: ...

    @abstractmethod
    def _forget(self) -> None: ...
