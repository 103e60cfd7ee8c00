"""Whether librdkafka may be called directly: its version, its functions, its error codes and the layout of its structs.

The layouts are shown by messages that are queued and thrown away again in a client without brokers: what comes back in
their delivery reports must be what was sent. That takes a few milliseconds, once per process, and no network. Of a
version that we do not know nothing is called at all. Where the probe says no, `library` serves: slower, the same to
every consumer.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
import time
from collections.abc import Mapping
from ctypes import c_char_p, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import ConfigError
from tidemill.sinks.kafka import librdkafka
from tidemill.sinks.kafka.client import QUEUE_FULL, TIMED_OUT, TOO_LARGE, Messages, Producer
from tidemill.sinks.kafka.library import LibraryProducer

log = logging.getLogger("tidemill.sinks.kafka")

#: "library" calls confluent_kafka's produce() whatever the probe says; empty or "probe" leaves it to the probe.
VARIABLE = "TIDEMILL_KAFKA_PRODUCER"

_OLDEST, _NEWEST = 0x01060000, 0x02FFFFFF  # rd_kafka_produceva came with 1.6; 3 may be anything
_PURGED = -152
_CODES = {
    QUEUE_FULL: "_QUEUE_FULL", TIMED_OUT: "_TIMED_OUT", TOO_LARGE: "MSG_SIZE_TOO_LARGE", -169: "_AUTHENTICATION",
    -144: "_FENCED", -150: "_FATAL", _PURGED: "_PURGE_QUEUE",
}  # fmt: skip
_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Way:
    """How producers are made, and why so, in words for `doctor`."""

    producer: type[Producer]
    direct: bool
    reason: str


def choose() -> Way:
    wish = os.environ.get(VARIABLE, "")
    if wish == "library":
        return Way(LibraryProducer, False, f"{VARIABLE}=library")
    if wish not in ("", "probe"):
        raise ConfigError(f"{VARIABLE} is {wish!r}", fix='Say "library" or "probe", or unset it.')
    problem = find_problem()
    if problem:
        return Way(LibraryProducer, False, problem)
    return Way(librdkafka.DirectProducer, True, f"librdkafka {_version(librdkafka.load().rd_kafka_version())}")


def open_producer(settings: Mapping[str, str]) -> Producer:
    return choose().producer(settings)


@functools.cache
def find_problem() -> str:
    """Why librdkafka is not to be called directly; empty if it may be. Asked once per process."""
    found = _problem()
    if found:
        log.warning("librdkafka is called through confluent_kafka, which is slower: %s", found)
    return found


def _problem() -> str:
    if ctypes.sizeof(c_void_p) != 8 or sys.byteorder != "little":
        return "this machine is not one with 64 bits, little end first"
    try:
        lib = librdkafka.load()
    except librdkafka.MissingSymbol as missing:
        return f"this librdkafka does not show {missing}"
    from confluent_kafka import libversion

    number = lib.rd_kafka_version()
    if number != libversion()[1]:
        return f"two librdkafkas are loaded: {_version(number)} and {libversion()[0]}"
    if not _OLDEST <= number <= _NEWEST:
        return f"librdkafka {_version(number)} is not known to us"
    for code, name in _CODES.items():
        if lib.rd_kafka_err2name(code) != name.encode():
            return f"librdkafka's error {code} is not {name}"
    return _round_trip(lib)


def _version(number: int) -> str:
    return f"{number >> 24}.{number >> 16 & 0xFF}.{number >> 8 & 0xFF}"


@dataclass(frozen=True, slots=True)
class _Report:
    """A delivery report, copied out of librdkafka's memory."""

    code: int
    topic: bytes | None
    partition: int
    key: bytes | None
    value: bytes | None
    private: int | None
    headers: tuple[tuple[bytes | None, bytes], ...]


def _round_trip(lib: Any) -> str:
    reports: list[_Report] = []

    def on_report(_: int, message: Any, __: int) -> None:
        reports.append(_copy(lib, message))

    callbacks = (librdkafka.DeliveryReport(on_report), librdkafka.LogLine(lambda *_: None))
    conf, problem = lib.rd_kafka_conf_new(), ctypes.create_string_buffer(512)
    lib.rd_kafka_conf_set(conf, b"message.max.bytes", b"1000", problem, 512)
    lib.rd_kafka_conf_set_dr_msg_cb(conf, callbacks[0])
    lib.rd_kafka_conf_set_log_cb(conf, callbacks[1])
    handle = lib.rd_kafka_new(0, conf, problem, 512)
    if not handle:
        lib.rd_kafka_conf_destroy(conf)
        return f"librdkafka makes no client without brokers: {problem.value.decode(errors='replace')}"
    topic = lib.rd_kafka_topic_new(handle, b"probe", None)
    headers = lib.rd_kafka_headers_new(1)
    lib.rd_kafka_header_add(headers, b"fixed", -1, b"one", 3)
    try:
        return _exchange(lib, handle, topic, headers, reports)
    finally:
        lib.rd_kafka_headers_destroy(headers)
        lib.rd_kafka_topic_destroy(topic)
        lib.rd_kafka_destroy(handle)


def _exchange(lib: Any, handle: int, topic: int, headers: int, reports: list[_Report]) -> str:
    """Two messages go and come back, the third is refused for its size."""
    large = pa.large_binary()
    messages = Messages(
        pa.array([b"a value", None, b"x" * 2000], large), pa.array([b"a key", None, b"k"], large),
        [topic], np.zeros(3, np.int64), [0, headers], np.array([1, 0, 0], np.uint8),
        {"varying": pa.array([b"two", None, None], large)}, np.array([41, 42, 43], np.uint64),
    )  # fmt: skip
    if librdkafka.MessageSlots().enqueue(handle, messages, 3)(0) != (2, TOO_LARGE):
        return "librdkafka does not refuse a message as its manual says"
    lib.rd_kafka_purge(handle, librdkafka.PURGE_ALL)
    deadline = time.monotonic() + _SECONDS
    while len(reports) < 2 and time.monotonic() < deadline:
        lib.rd_kafka_poll(handle, 50)
    sent = [
        _Report(_PURGED, b"probe", 3, b"a key", b"a value", 42, ((b"fixed", b"one"), (b"varying", b"two"))),
        _Report(_PURGED, b"probe", 3, None, None, 43, ()),
    ]
    return "" if reports == sent else "messages came back from librdkafka other than they were sent"


def _copy(lib: Any, message: Any) -> _Report:
    it = message.contents
    headers: list[tuple[bytes | None, bytes]] = []
    found, name, value, size = c_void_p(), c_char_p(), c_void_p(), c_size_t()
    if lib.rd_kafka_message_headers(message, found) == 0:
        while lib.rd_kafka_header_get_all(found, len(headers), name, value, size) == 0:
            headers.append((name.value, _bytes(value.value, size.value) or b""))
    return _Report(
        it.err, lib.rd_kafka_topic_name(it.rkt) if it.rkt else None, it.partition, _bytes(it.key, it.key_len),
        _bytes(it.payload, it.len), it.private, tuple(headers),
    )  # fmt: skip


def _bytes(at: int | None, size: int) -> bytes | None:
    """What a wrong layout took for a size is not followed."""
    return ctypes.string_at(at, size) if at and size < 4096 else None
