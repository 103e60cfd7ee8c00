"""librdkafka's public C interface, called without a Python object per message.

`confluent_kafka` brings the library and serves for everything that is not hot (consumers, admin). Its `produce` costs
about 1 µs per message, with headers twice that, all under the GIL, on top of turning Arrow values into `bytes`. Here a
compiled loop reads keys and values where Arrow has them and calls `rd_kafka_produceva` for each: 0.4 µs, GIL free.

Nobody checks such calls: `probe` shows first, without a broker, that the library is the one these declarations fit.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable, Mapping
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from typing import Any

import llvmlite.binding
import numpy as np

from tidemill.errors import ConfigError, EnvironmentProblem
from tidemill.sinks.kafka import kernel
from tidemill.sinks.kafka.client import NO_HEADERS, KafkaFailure, Messages, Producer, Transactional

log = logging.getLogger("tidemill.sinks.kafka")

PURGE_ALL = 1 | 2 | 4  # in queue, in flight, without waiting for either


class MissingSymbol(Exception):
    """The library does not show a function that we call."""


class LibMessage(ctypes.Structure):
    """rd_kafka_message_t, as far as a delivery report needs it."""

    _fields_ = [
        ("err", c_int), ("rkt", c_void_p), ("partition", c_int32), ("payload", c_void_p), ("len", c_size_t),
        ("key", c_void_p), ("key_len", c_size_t), ("offset", c_int64), ("private", c_void_p),
    ]  # fmt: skip


DeliveryReport = ctypes.CFUNCTYPE(None, c_void_p, POINTER(LibMessage), c_void_p)
ErrorReport = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
LogLine = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)

_SIGNATURES: dict[str, tuple[Any, ...]] = {  # result first, then the arguments
    "rd_kafka_version": (c_int,),
    "rd_kafka_conf_new": (c_void_p,),
    "rd_kafka_conf_destroy": (None, c_void_p),
    "rd_kafka_conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "rd_kafka_conf_set_dr_msg_cb": (None, c_void_p, DeliveryReport),
    "rd_kafka_conf_set_error_cb": (None, c_void_p, ErrorReport),
    "rd_kafka_conf_set_log_cb": (None, c_void_p, LogLine),
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
    "rd_kafka_err2name": (c_char_p, c_int),
    "rd_kafka_message_headers": (c_int, POINTER(LibMessage), POINTER(c_void_p)),
    "rd_kafka_header_get_all": (
        c_int,
        c_void_p,
        c_size_t,
        POINTER(c_char_p),
        POINTER(c_void_p),
        POINTER(c_size_t),
    ),
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


@functools.cache
def load() -> Any:
    """The library that `confluent_kafka` is linked with, functions typed. `MissingSymbol` if one is not there."""
    try:
        from confluent_kafka import cimpl
    except ImportError as error:
        raise EnvironmentProblem("the kafka sink needs confluent-kafka", fix="pip install 'tidemill[kafka]'") from error
    library = ctypes.CDLL(cimpl.__file__)  # dlsym looks into a library's own dependencies too
    for name, (result, *arguments) in _SIGNATURES.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise MissingSymbol(name) from error
        function.restype, function.argtypes = result, arguments
    for name in kernel.IN_KERNEL:
        llvmlite.binding.add_symbol(name, ctypes.cast(getattr(library, name), c_void_p).value)
    return library


class MessageSlots:
    """Memory for the arguments of one `rd_kafka_produceva`: seven rd_kafka_vu_t of nine words."""

    def __init__(self) -> None:
        self._words = np.zeros(9 * 7, np.int64)

    def enqueue(self, handle: int, messages: Messages, partition: int) -> Callable[[int], tuple[int, int]]:
        """`kernel.enqueue` with everything but the first message; see `Producer._enqueuer`."""
        values, keys = messages.values, messages.keys
        value_at, value_offsets = kernel.buffers(values)
        key_at, key_offsets = kernel.buffers(keys)
        no_key, no_value = kernel.absent(keys), kernel.absent(values)
        numbers = np.zeros(len(values), np.int64) if messages.numbers is None else messages.numbers.astype(np.int64) + 1
        extra, there, alive = kernel.row_headers(messages.row_headers, len(values))
        topics = np.array(messages.topics, np.int64)
        headers = np.array(messages.headers, np.int64)
        words = self._words

        def enqueue(first: int, _alive: object = (messages, alive)) -> tuple[int, int]:
            return kernel.enqueue(
                handle, value_at, value_offsets, no_value, key_at, key_offsets, no_key, topics, messages.topic_of,
                headers, messages.headers_of, extra, there, numbers, partition, first, len(values), words,
                words.ctypes.data,
            )  # fmt: skip

        return enqueue


class DirectProducer(Producer):
    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._lib = load()
        self._slots = MessageSlots()
        self._topics: dict[str, int] = {}
        self._headers: dict[tuple[tuple[str, bytes], ...], int] = {(): NO_HEADERS}
        # librdkafka keeps bare pointers to these: they live as long as the handle.
        self._callbacks = (DeliveryReport(self._on_failed), ErrorReport(self._on_error), LogLine(_on_log))
        self._handle = self._create({**settings, "delivery.report.only.error": "true", "log.queue": "true"})
        self._transactions = {
            "init": self._lib.rd_kafka_init_transactions,
            "commit": self._lib.rd_kafka_commit_transaction,
            "abort": self._lib.rd_kafka_abort_transaction,
        }

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
        if name not in self._topics:
            self._topics[name] = self._lib.rd_kafka_topic_new(self._handle, name.encode(), None)
        return self._topics[name]

    def headers(self, pairs: tuple[tuple[str, bytes], ...]) -> int:
        """Made once, copied in C for each message."""
        if pairs not in self._headers:
            handle = self._lib.rd_kafka_headers_new(len(pairs))
            for name, value in pairs:
                self._lib.rd_kafka_header_add(handle, name.encode(), -1, value, len(value))
            self._headers[pairs] = handle
        return self._headers[pairs]

    def _enqueuer(self, messages: Messages, partition: int) -> Callable[[int], tuple[int, int]]:
        return self._slots.enqueue(self._handle, messages, partition)

    def _poll(self, milliseconds: int) -> None:
        self._lib.rd_kafka_poll(self._handle, milliseconds)

    def _flush(self, milliseconds: int) -> None:
        self._lib.rd_kafka_flush(self._handle, milliseconds)

    def _count_queued(self) -> int:
        return int(self._lib.rd_kafka_outq_len(self._handle))

    def _transact(self, what: Transactional, milliseconds: int) -> None:
        if what == "begin":
            error = self._lib.rd_kafka_begin_transaction(self._handle)
        else:
            error = self._transactions[what](self._handle, milliseconds)
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

    def _fatal(self) -> tuple[int, str] | None:
        text = ctypes.create_string_buffer(512)
        code = self._lib.rd_kafka_fatal_error(self._handle, text, 512)
        return (code, text.value.decode(errors="replace")) if code else None

    def _text(self, code: int) -> str:
        return self._lib.rd_kafka_err2str(code).decode()

    def _drop(self) -> None:
        lib, handle = self._lib, self._handle
        self._handle = 0
        lib.rd_kafka_purge(handle, PURGE_ALL)
        lib.rd_kafka_flush(handle, 100)
        for headers in filter(None, self._headers.values()):
            lib.rd_kafka_headers_destroy(headers)
        for topic in self._topics.values():
            lib.rd_kafka_topic_destroy(topic)
        lib.rd_kafka_destroy(handle)

    def _forget(self) -> None:
        self._handle = 0

    def _on_failed(self, _: int, message: Any, __: int) -> None:
        failed = message.contents

        def topic() -> str:
            return (self._lib.rd_kafka_topic_name(failed.rkt) if failed.rkt else b"").decode()

        number = failed.private - 1 if failed.private else None
        self._note_failed(failed.err, topic, number, failed.len + failed.key_len)

    def _on_error(self, _: int, code: int, reason: bytes, __: int) -> None:
        self.last_problem = (code, reason.decode(errors="replace"))


def _on_log(_: int, level: int, facility: bytes, line: bytes) -> None:
    # Whatever matters comes back as an error too; lost and restored connections are normal work.
    log.debug("%s (%d): %s", facility.decode(), level, line.decode(errors="replace"))
