"""librdkafka's public C API, called without a Python object per message. Used by the kafka sink only.

`confluent_kafka` brings the library and serves for everything that is not hot (consumers, admin). Its `produce` costs
about 1 µs per message, with headers twice that, all under the GIL, on top of turning Arrow values into `bytes`. Here a
compiled loop reads keys and values where Arrow has them and calls `rd_kafka_produceva` for each: 0.4 µs, GIL free.

Success is silent: with `delivery.report.only.error` librdkafka reports failed messages only, so the rule is "the queue
is empty and nothing was reported".
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import time
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa

from tidemill.errors import ConfigError, EnvironmentProblem
from tidemill.sinks.kafka import kernel

log = logging.getLogger("tidemill.sinks.kafka")

QUEUE_FULL = -184
TOO_LARGE = 10
TIMED_OUT = -185
_PURGE_ALL = 1 | 2 | 4  # in queue, in flight, without waiting for either
_NO_HEADERS = 0
_MESSAGE_MAX_BYTES = 1_000_000  # librdkafka's default
_REMEMBERED = 100_000  # failed messages whose numbers are kept


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


class _Message(ctypes.Structure):
    """rd_kafka_message_t, as far as a delivery report needs it."""

    _fields_ = [
        ("err", c_int), ("rkt", c_void_p), ("partition", c_int32), ("payload", c_void_p), ("len", c_size_t),
        ("key", c_void_p), ("key_len", c_size_t), ("offset", c_int64), ("private", c_void_p),
    ]  # fmt: skip


_DeliveryReport = ctypes.CFUNCTYPE(None, c_void_p, POINTER(_Message), c_void_p)
_ErrorReport = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
_LogLine = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)

_SIGNATURES: dict[str, tuple[Any, ...]] = {  # result first, then the arguments
    "rd_kafka_conf_new": (c_void_p,),
    "rd_kafka_conf_destroy": (None, c_void_p),
    "rd_kafka_conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "rd_kafka_conf_set_dr_msg_cb": (None, c_void_p, _DeliveryReport),
    "rd_kafka_conf_set_error_cb": (None, c_void_p, _ErrorReport),
    "rd_kafka_conf_set_log_cb": (None, c_void_p, _LogLine),
    "rd_kafka_new": (c_void_p, c_int, c_void_p, c_char_p, c_size_t),
    "rd_kafka_set_log_queue": (c_int, c_void_p, c_void_p),
    "rd_kafka_destroy": (None, c_void_p),
    "rd_kafka_topic_new": (c_void_p, c_void_p, c_char_p, c_void_p),
    "rd_kafka_topic_destroy": (None, c_void_p),
    "rd_kafka_topic_name": (c_char_p, c_void_p),
    "rd_kafka_headers_new": (c_void_p, c_size_t),
    "rd_kafka_header_add": (c_int, c_void_p, c_char_p, c_ssize_t, c_char_p, c_ssize_t),
    "rd_kafka_headers_copy": (c_void_p, c_void_p),
    "rd_kafka_headers_destroy": (None, c_void_p),
    "rd_kafka_produceva": (c_void_p, c_void_p, c_void_p, c_size_t),
    "rd_kafka_poll": (c_int, c_void_p, c_int),
    "rd_kafka_flush": (c_int, c_void_p, c_int),
    "rd_kafka_purge": (c_int, c_void_p, c_int),
    "rd_kafka_outq_len": (c_int, c_void_p),
    "rd_kafka_err2str": (c_char_p, c_int),
    "rd_kafka_fatal_error": (c_int, c_void_p, c_char_p, c_size_t),
    "rd_kafka_init_transactions": (c_void_p, c_void_p, c_int),
    "rd_kafka_begin_transaction": (c_void_p, c_void_p),
    "rd_kafka_commit_transaction": (c_void_p, c_void_p, c_int),
    "rd_kafka_abort_transaction": (c_void_p, c_void_p, c_int),
    "rd_kafka_error_code": (c_int, c_void_p),
    "rd_kafka_error_string": (c_char_p, c_void_p),
    "rd_kafka_error_is_retriable": (c_int, c_void_p),
    "rd_kafka_error_txn_requires_abort": (c_int, c_void_p),
    "rd_kafka_error_destroy": (None, c_void_p),
}


def _load() -> Any:
    """The library that `confluent_kafka` is linked with, functions typed. Looked up once per process."""
    try:
        from confluent_kafka import cimpl
    except ImportError as error:
        raise EnvironmentProblem("the kafka sink needs confluent-kafka", fix="pip install 'tidemill[kafka]'") from error
    library = ctypes.CDLL(cimpl.__file__)  # dlsym looks into a library's own dependencies too
    for name, (result, *arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise EnvironmentProblem(
                f"this confluent-kafka does not show librdkafka's {name}",
                fix="Install its wheel: pip install -U confluent-kafka",
            ) from error
        function.restype, function.argtypes = result, arguments
    for name in kernel.IN_KERNEL:
        address = ctypes.cast(getattr(library, name), c_void_p).value
        llvmlite.binding.add_symbol(name, address)
    return library


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


class Producer:
    """One librdkafka producer, for one thread, in the process that made it: its own threads do not survive a fork."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.pid = os.getpid()
        self.last_problem: tuple[int, str] = (0, "")
        self._lib = _load()
        self._failed = 0
        self._failure = (0, "")
        self._failed_messages: dict[int, int] = {}
        self._largest = int(settings.get("message.max.bytes", _MESSAGE_MAX_BYTES))
        self._topics: dict[str, int] = {}
        self._headers: dict[tuple[tuple[str, bytes], ...], int] = {(): _NO_HEADERS}
        # librdkafka keeps bare pointers to these: they live as long as the handle.
        self._callbacks = (_DeliveryReport(self._on_failed), _ErrorReport(self._on_error), _LogLine(_on_log))
        self._handle = self._create({**settings, "delivery.report.only.error": "true", "log.queue": "true"})

    def _create(self, settings: Mapping[str, str]) -> int:
        lib, problem = self._lib, ctypes.create_string_buffer(512)
        conf = lib.rd_kafka_conf_new()
        for name, value in settings.items():
            if lib.rd_kafka_conf_set(conf, name.encode(), value.encode(), problem, 512):
                lib.rd_kafka_conf_destroy(conf)
                raise ConfigError(problem.value.decode(errors="replace"), fix=f'Mend "{name}" in client_conf.')
        on_failed, on_error, on_log = self._callbacks
        lib.rd_kafka_conf_set_dr_msg_cb(conf, on_failed)
        lib.rd_kafka_conf_set_error_cb(conf, on_error)
        lib.rd_kafka_conf_set_log_cb(conf, on_log)
        handle = lib.rd_kafka_new(0, conf, problem, 512)
        if not handle:
            lib.rd_kafka_conf_destroy(conf)
            raise ConfigError(problem.value.decode(errors="replace"), fix="Mend client_conf.")
        lib.rd_kafka_set_log_queue(handle, None)  # log lines come with poll, in our thread
        return int(handle)

    def topic(self, name: str) -> int:
        """A handle for `Messages.topics`; the same name gives the same handle."""
        if name not in self._topics:
            self._topics[name] = self._lib.rd_kafka_topic_new(self._handle, name.encode(), None)
        return self._topics[name]

    def headers(self, pairs: tuple[tuple[str, bytes], ...]) -> int:
        """A handle for `Messages.headers`: made once, copied in C for each message."""
        if pairs not in self._headers:
            handle = self._lib.rd_kafka_headers_new(len(pairs))
            for name, value in pairs:
                self._lib.rd_kafka_header_add(handle, name.encode(), -1, value, len(value))
            self._headers[pairs] = handle
        return self._headers[pairs]

    def send(self, messages: Messages, patience: float, *, partition: int = -1) -> None:
        """Queues all messages, in order, to `partition` or where their keys belong.

        A full queue is waited for, at most `patience` seconds without any progress.
        """
        values, keys = messages.values, messages.keys
        value_at, value_offsets = kernel.buffers(values)
        key_at, key_offsets = kernel.buffers(keys)
        no_key, no_value = kernel.absent(keys), kernel.absent(values)
        numbers = np.zeros(len(values), np.int64) if messages.numbers is None else messages.numbers.astype(np.int64) + 1
        extra, there, _alive = kernel.row_headers(messages.row_headers, len(values))
        topics = np.array(messages.topics, np.int64)
        headers = np.array(messages.headers, np.int64)
        slots = np.zeros(9 * 7, np.int64)
        done, stuck_since = 0, time.monotonic()
        while True:
            reached, code = kernel.enqueue(
                self._handle, value_at, value_offsets, no_value, key_at, key_offsets, no_key, topics,
                messages.topic_of, headers, messages.headers_of, extra, there, numbers, partition, done, len(values),
                slots, slots.ctypes.data,
            )  # fmt: skip
            if code == 0:
                self._lib.rd_kafka_poll(self._handle, 0)
                return self._raise_failures()
            if code != QUEUE_FULL:
                raise self._refusal(code, messages, reached)
            now = time.monotonic()
            if reached > done:
                done, stuck_since = reached, now
            elif now - stuck_since > patience:
                raise KafkaFailure(TIMED_OUT, f"no message was taken for {patience:.0f} s")
            self._lib.rd_kafka_poll(self._handle, 20)
            self._raise_failures()

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

    def flush(self, patience: float) -> None:
        """Returns when every queued message is acknowledged; raises the first failure otherwise."""
        left, stuck_since = self._lib.rd_kafka_outq_len(self._handle), time.monotonic()
        while left:
            self._lib.rd_kafka_flush(self._handle, 200)
            self._raise_failures()
            before, left = left, self._lib.rd_kafka_outq_len(self._handle)
            if left < before:
                stuck_since = time.monotonic()
            elif time.monotonic() - stuck_since > patience:
                raise KafkaFailure(TIMED_OUT, f"{left} messages were not acknowledged for {patience:.0f} s")
        self._lib.rd_kafka_poll(self._handle, 0)
        self._raise_failures()

    def init_transactions(self, patience: float) -> None:
        self._transactional("init", self._lib.rd_kafka_init_transactions, patience)

    def begin(self) -> None:
        self._raise_for(self._lib.rd_kafka_begin_transaction(self._handle))

    def commit(self, patience: float) -> None:
        """Flushes and commits. After a timeout the outcome is open: only a new `init_transactions` settles it."""
        self._transactional("commit", self._lib.rd_kafka_commit_transaction, patience)
        self._raise_failures()

    def try_abort(self) -> None:
        """Ends an open transaction if that can be done soon; if not, the next `init_transactions` does it."""
        with contextlib.suppress(KafkaFailure):
            self._transactional("abort", self._lib.rd_kafka_abort_transaction, 5.0)

    def _transactional(self, what: str, call: Any, patience: float) -> None:
        # Short calls, again and again, as the manual allows: failures met meanwhile are seen, signals are served.
        deadline = time.monotonic() + patience
        while True:
            try:
                return self._raise_for(call(self._handle, 500))
            except KafkaFailure as failure:
                self._lib.rd_kafka_poll(self._handle, 0)
                if what != "abort":
                    self._raise_failures()
                if not failure.retriable or time.monotonic() > deadline:
                    raise

    def close(self) -> None:
        """Drops what is still queued. In a forked child the handle is only forgotten: its threads are not here."""
        if not self._handle or self.pid != os.getpid():
            self._handle = 0
            return
        lib, handle = self._lib, self._handle
        self._handle = 0
        lib.rd_kafka_purge(handle, _PURGE_ALL)
        lib.rd_kafka_flush(handle, 100)
        for headers in filter(None, self._headers.values()):
            lib.rd_kafka_headers_destroy(headers)
        for topic in self._topics.values():
            lib.rd_kafka_topic_destroy(topic)
        lib.rd_kafka_destroy(handle)

    def _raise_for(self, error: int | None) -> None:
        if not error:
            return
        lib = self._lib
        failure = KafkaFailure(
            lib.rd_kafka_error_code(error),
            lib.rd_kafka_error_string(error).decode(errors="replace"),
            retriable=bool(lib.rd_kafka_error_is_retriable(error)),
            abortable=bool(lib.rd_kafka_error_txn_requires_abort(error)),
        )
        lib.rd_kafka_error_destroy(error)
        raise failure

    def _raise_failures(self) -> None:
        text = ctypes.create_string_buffer(512)
        fatal = self._lib.rd_kafka_fatal_error(self._handle, text, 512)
        if fatal:
            raise KafkaFailure(fatal, text.value.decode(errors="replace"))
        if self._failed:
            code, topic = self._failure
            failure = KafkaFailure(code, f'{self._failed} messages for topic "{topic}": {self._text(code)}')
            failure.topic, failure.messages = topic, self._failed_messages
            raise failure
        if self.last_problem[0] in FATAL_FOR_CLIENT:
            raise KafkaFailure(*self.last_problem)

    def _text(self, code: int) -> str:
        return self._lib.rd_kafka_err2str(code).decode()

    def _on_failed(self, _: int, message: Any, __: int) -> None:
        failed = message.contents
        if not self._failed:
            topic = self._lib.rd_kafka_topic_name(failed.rkt) if failed.rkt else b""
            self._failure = (failed.err, topic.decode())
        self._failed += 1
        if failed.private and len(self._failed_messages) < _REMEMBERED:
            self._failed_messages[failed.private - 1] = failed.len + failed.key_len

    def _on_error(self, _: int, code: int, reason: bytes, __: int) -> None:
        self.last_problem = (code, reason.decode(errors="replace"))


FATAL_FOR_CLIENT = frozenset({-169})  # _AUTHENTICATION: librdkafka would retry wrong credentials until messages expire


def _on_log(_: int, level: int, facility: bytes, line: bytes) -> None:
    # Whatever matters comes back as an error too; lost and restored connections are normal work.
    log.debug("%s (%d): %s", facility.decode(), level, line.decode(errors="replace"))
