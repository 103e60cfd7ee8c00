"""The compiled loop that gives librdkafka one message after the other. Used by `client` only.

Keys, values and headers are read where Arrow has them; librdkafka copies them, so nothing need live on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit, types

from tidemill.encoding.memory import load_i64

# The compiled loop finds these by name when its cached code is linked, so no address is baked into the cache.
IN_KERNEL = ("rd_kafka_produceva", "rd_kafka_headers_copy", "rd_kafka_headers_destroy", "rd_kafka_header_add",
              "rd_kafka_error_code", "rd_kafka_error_destroy")  # fmt: skip
_produceva = types.ExternalFunction("rd_kafka_produceva", types.intp(types.intp, types.intp, types.uintp))
_headers_copy = types.ExternalFunction("rd_kafka_headers_copy", types.intp(types.intp))
_headers_destroy = types.ExternalFunction("rd_kafka_headers_destroy", types.void(types.intp))
_header_add = types.ExternalFunction(
    "rd_kafka_header_add", types.int32(types.intp, types.intp, types.intp, types.intp, types.intp)
)
_error_code = types.ExternalFunction("rd_kafka_error_code", types.int32(types.intp))
_error_destroy = types.ExternalFunction("rd_kafka_error_destroy", types.void(types.intp))


def buffers(array: pa.LargeBinaryArray) -> tuple[int, np.ndarray[Any, np.dtype[np.int64]]]:
    _, offsets, data = array.buffers()
    at = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return (data.address if data is not None else 0), at


def absent(array: pa.LargeBinaryArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)


def row_headers(
    headers: Mapping[str, pa.LargeBinaryArray], rows: int
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.bool_]], list[Any]]:
    """Per header: address and size of its name, address of its values and of their offsets; which rows have it; and
    what must live as long as the addresses are used."""
    table = np.zeros((len(headers), 4), np.int64)
    there = np.ones((len(headers), rows), np.bool_)
    alive: list[Any] = []
    for line, (name, values) in enumerate(headers.items()):
        text = np.frombuffer(name.encode(), np.uint8)
        data, offsets = buffers(values)
        table[line] = (text.ctypes.data, len(text), data, offsets.ctypes.data)
        there[line] = ~absent(values)
        alive += [text, values, offsets]
    return table, there, alive


@njit(cache=True, nogil=True)
def enqueue(
    handle: int, value_at: int, value_offsets: Any, no_value: Any, key_at: int, key_offsets: Any, no_key: Any,
    topics: Any, topic_of: Any, headers: Any, headers_of: Any, extra: Any, there: Any, numbers: Any, partition: int,
    first: int, last: int, slots: Any, slots_at: int,
) -> tuple[int, int]:  # fmt: skip
    """Gives librdkafka a copy of each message from `first`; returns where it stopped and the error code, 0 for none.

    `slots` is an array of rd_kafka_vu_t: nine 64-bit words each, the kind first, then its arguments.
    """
    slots[0] = 2  # RD_KAFKA_VTYPE_RKT
    slots[9] = 4  # RD_KAFKA_VTYPE_VALUE
    slots[18] = 5  # RD_KAFKA_VTYPE_KEY
    slots[27] = 7  # RD_KAFKA_VTYPE_MSGFLAGS
    slots[28] = 2  # RD_KAFKA_MSG_F_COPY: the block may go when we return
    slots[36] = 3  # RD_KAFKA_VTYPE_PARTITION
    slots[37] = partition
    slots[45] = 6  # RD_KAFKA_VTYPE_OPAQUE
    slots[54] = 10  # RD_KAFKA_VTYPE_HEADERS
    for i in range(first, last):
        slots[1] = topics[topic_of[i]]
        slots[10] = 0 if no_value[i] else value_at + value_offsets[i]
        slots[11] = 0 if no_value[i] else value_offsets[i + 1] - value_offsets[i]
        slots[19] = 0 if no_key[i] else key_at + key_offsets[i]
        slots[20] = 0 if no_key[i] else key_offsets[i + 1] - key_offsets[i]
        slots[46] = numbers[i]
        prepared = headers[headers_of[i]]
        copied = 0
        if prepared != 0:
            copied = _headers_copy(prepared)
            for header in range(len(extra)):
                if there[header, i]:
                    at = extra[header, 3] + 8 * i
                    begin = load_i64(at)
                    _header_add(
                        copied, extra[header, 0], extra[header, 1], extra[header, 2] + begin, load_i64(at + 8) - begin
                    )
            slots[55] = copied
        error = _produceva(handle, slots_at, 7 if prepared != 0 else 6)
        if error != 0:
            code = _error_code(error)
            _error_destroy(error)
            if copied != 0:
                _headers_destroy(copied)  # taken over by librdkafka only on success
            return i, code
    return last, 0
