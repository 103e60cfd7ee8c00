"""One pass over the binlog stream: finds events, transactions and row images, touches no value.

`scan` walks packets (or bare events, for what was compressed) and notes, for every changed row, where its images
start. It returns to Python only for what is rare: tables not met before, DDL, rotation, XA, and server messages.
Transactions of one row are therefore nearly as cheap as one of a million.

Event layouts: MySQL source documentation, `libs/mysql/binlog/event`; MariaDB knowledge base, "Replication Protocol".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.decoders._shared.calendar import NO_TIME
from tidemill.decoders._shared.crc32 import crc32
from tidemill.decoders.binlog.images import (
    NEW_WHOLE,
    OLD_WHOLE,
    PARTIAL,
    count_bits,
    count_moved,
    same_keys,
    skip_options,
    skip_some,
    skip_whole,
)
from tidemill.decoders.binlog.wire import le16, le24, le32, le48, le64, unpack
from tidemill.model.barrier import Barrier

# Slots of the state vector, which lives as long as the connection.
POS = 0  # next byte to look at
ROWS = 1  # rows noted since the last reset
TXS = 2  # transactions noted since the last reset
EVENTS = 3  # row events noted since the last reset
OPEN = 4  # 0 between transactions, 1 after a GTID, 2 inside a transaction
OPEN_AT = 5  # where the open transaction's first event starts
OPEN_ROW = 6  # its first row
SPILLING = 7  # 1 when rows of the open transaction were already handed on
HELD = 8  # 1 when the end of the open transaction is for Python (XA)
FRAME_END = 9  # end of the frame that made us stop
BARRIER = 10  # the kinds of `Barrier` among the rows: an unsplit key change, a table's new shape
CHECKSUM = 11  # 1 when events end with a CRC32
LOG_POS = 12  # end of the newest event in its file
FILE = 13  # name number of that file
PACKETS = 14  # 1: events come in packets; 0: one after the other, checked and without checksums
STATE_SIZE = 15

_KEY_CHANGE = int(Barrier.KEY_CHANGE)

# Why `scan` returned.
MORE = 0  # the rest of the buffer is an unfinished frame
FULL = 1  # no room for the rows of the next event: take what there is and call again
CONTROL = 2  # an event for Python, from POS to FRAME_END
SERVER = 3  # a packet that is no event, from POS to FRAME_END
EXPAND = 4  # a compressed event, or one of several packets, at POS
BAD_FRAME = -1
BAD_EVENT = -2
BAD_CHECKSUM = -3
UNKNOWN_TABLE = -4
BAD_ROW = -5

OP_INSERT, OP_UPDATE, OP_DELETE = 1, 2, 3
NOT_CAPTURED = -1
HEADER = 19
ANONYMOUS = 0  # the name number of a transaction without GTID

_QUERY, _STOP, _INTVAR, _RAND, _USER_VAR, _XID, _TABLE_MAP = 2, 3, 5, 13, 14, 16, 19
_HEARTBEAT, _IGNORABLE, _ROWS_QUERY, _GTID, _ANONYMOUS_GTID, _PREVIOUS_GTIDS = 27, 28, 29, 33, 34, 35
_TRANSACTION_CONTEXT, _VIEW_CHANGE, _PARTIAL_UPDATE, _PAYLOAD, _HEARTBEAT_2 = 36, 37, 39, 40, 41
_ANNOTATE, _CHECKPOINT, _MARIADB_GTID, _GTID_LIST, _START_ENCRYPTION = 160, 161, 162, 163, 164
_COMPRESSED_FIRST, _COMPRESSED_LAST = 165, 171
PLACE = 255  # ours: stands before what a compressed event held, for its place in the file


def _skippable() -> Any:
    kinds = np.zeros(256, np.bool_)
    kinds[[_ROWS_QUERY, _ANNOTATE, _PREVIOUS_GTIDS, _GTID_LIST, _CHECKPOINT, _START_ENCRYPTION, _STOP,
           _TRANSACTION_CONTEXT, _VIEW_CHANGE, _IGNORABLE, _INTVAR, _RAND, _USER_VAR]] = True  # fmt: skip
    return kinds


_HOLDS_NOTHING = _skippable()  # by event type: no change of a row, and nothing else that counts here


@njit(cache=True, nogil=True, inline="always")
def _is_begin(b: Any, m: Any, end: Any) -> Any:
    """1 for BEGIN, 2 for COMMIT, 0 for another statement, -1 if the event is too short."""
    if end - m < 13:
        return -1
    at = m + 13 + le16(b, m + 11) + np.int64(b[m + 8]) + 1
    size = end - at
    if size < 0:
        return -1
    if size == 5 and b[at] == 66 and b[at + 1] == 69 and b[at + 2] == 71 and b[at + 3] == 73 and b[at + 4] == 78:
        return 1
    if size == 6 and b[at] == 67 and b[at + 1] == 79 and b[at + 2] == 77 and b[at + 3] == 77 and b[at + 4] == 73:
        return 2
    return 0


@njit(cache=True, nogil=True, inline="always")
def _find_name(name_high: Any, name_low: Any, name_of: Any, high: Any, low: Any) -> Any:
    """The number of a known server or domain; -1 if it is new."""
    found = np.int64(-1)
    for k in range(len(name_high)):
        if name_high[k] == high and name_low[k] == low:
            found = name_of[k]
            break
    return found


@njit(cache=True, nogil=True)
def scan(
    b: Any, n: Any, s: Any,
    ids: Any, slot_of: Any, body_at: Any, body_size: Any, bodies: Any,
    width: Any, first_of: Any, program: Any, keys: Any, keyed: Any,
    name_high: Any, name_low: Any, name_of: Any,
    op: Any, slot: Any, old: Any, new: Any, fill: Any, event: Any, tx: Any,
    ev_old: Any, ev_new: Any, ev_flags: Any,
    tx_name: Any, tx_no: Any, tx_time: Any, tx_xid: Any, tx_end: Any, tx_file: Any, tx_row: Any,
) -> Any:  # fmt: skip
    """Notes rows until something needs Python.

    Tables: `ids` is sorted; `slot_of` names the slot of each (or NOT_CAPTURED), and `body_at`, `body_size` where in
    `bodies` the TABLE_MAP stands that it was learned from. Slots: `width` columns, whose steps and key flags begin at
    `first_of`. Names: the transaction names that the two halves stand for.
    Row arrays: op, slot, start of the old and the new image (-1: none), `fill` (an old image that completes the new
    one), number of the row event, transaction. Row event arrays: where the bitmaps of present columns are, flags.
    Transaction arrays: name number, number, commit time, XID, end in its file, the file's name number, first row.
    """
    cap = len(op)
    p = s[POS]
    r = s[ROWS]
    t = s[TXS]
    v = s[EVENTS]
    while True:
        status = MORE
        end = p
        if s[PACKETS]:
            if p + 4 > n or p + 4 + le24(b, p) > n:
                break
            size = le24(b, p)
            e = p + 5
            end = p + 4 + size
            if size == 0:
                status = BAD_FRAME
            elif b[p + 4] != 0:
                status = SERVER
            elif size == 0xFFFFFF:
                status = EXPAND
            elif size < 1 + HEADER or le32(b, e + 9) != size - 1:
                status = BAD_FRAME
        else:
            if p + HEADER > n:
                break
            e = p
            size = le32(b, e + 9)
            end = p + size
            if size < HEADER:
                status = BAD_FRAME
            elif end > n:
                break
        if status != MORE:
            s[POS], s[ROWS], s[TXS], s[EVENTS], s[FRAME_END] = p, r, t, v, end
            return status
        kind = b[e + 4]
        m = e + HEADER
        stop = end
        if r + 2 > cap or t + 2 > len(tx_name) or v + 1 > len(ev_old):
            s[POS], s[ROWS], s[TXS], s[EVENTS], s[FRAME_END] = p, r, t, v, end
            return FULL
        if kind in (4, 15, _HEARTBEAT, _HEARTBEAT_2):
            # Made up by the server as often as not; Python looks at their checksums, and heartbeats hold nothing.
            if kind in (4, 15):
                s[POS], s[ROWS], s[TXS], s[EVENTS], s[FRAME_END] = p, r, t, v, end
                return CONTROL
            p = end
            continue
        if s[PACKETS] and s[CHECKSUM]:
            stop = end - 4
            if stop < m:
                status = BAD_FRAME
            elif crc32(b, e, stop) != le32(b, stop):
                status = BAD_CHECKSUM
        if status == MORE:
            if le32(b, e + 13):
                s[LOG_POS] = le32(b, e + 13)
            commit = False
            if kind == _TABLE_MAP:
                known = False
                if stop - m >= 8:
                    number = le48(b, m)
                    at = np.searchsorted(ids, number)
                    if at < len(ids) and ids[at] == number and body_size[at] == stop - m:
                        known = True
                        o = body_at[at]
                        for k in range(stop - m):
                            if bodies[o + k] != b[m + k]:
                                known = False
                                break
                status = MORE if known else CONTROL
            elif (30 <= kind <= 32) or (23 <= kind <= 25) or kind == _PARTIAL_UPDATE:
                # Post header: table id, flags, and since v2 extra data whose length counts itself.
                q = m + 8
                if kind >= 30:
                    q = m + 8 + le16(b, m + 8) if stop - m >= 10 else stop + 1
                if q > stop or stop - m < 8 or (kind >= 30 and q < m + 10) or s[OPEN] != 2:
                    status = BAD_EVENT
                else:
                    number = le48(b, m)
                    at = np.searchsorted(ids, number)
                    if at == len(ids) or ids[at] != number:
                        # 0xFFFFFF ends a statement that changed nothing (Rows_log_event of the server).
                        status = MORE if number == 0xFFFFFF else UNKNOWN_TABLE
                    elif slot_of[at] != NOT_CAPTURED:
                        k = slot_of[at]
                        columns, q = unpack(b, q, stop)
                        bitmap = (columns + 7) >> 3
                        update = kind == 31 or kind == 24 or kind == _PARTIAL_UPDATE
                        if columns != width[k] or q + bitmap * (2 if update else 1) > stop:
                            status = BAD_EVENT
                        else:
                            first = first_of[k]
                            inserting = kind == 30 or kind == 23
                            old_bits, new_bits = q, q
                            q += bitmap
                            if update:
                                new_bits = q
                                q += bitmap
                            flags = 0
                            if count_bits(b, old_bits, columns) == columns:
                                flags |= OLD_WHOLE
                            if count_bits(b, new_bits, columns) == columns:
                                flags |= NEW_WHOLE
                            if kind == _PARTIAL_UPDATE:
                                flags |= PARTIAL
                            ev_old[v], ev_new[v], ev_flags[v] = old_bits, new_bits, flags
                            began = r
                            # An image without columns has no bytes; such an event stands for one row (the server's
                            # Rows_log_event::do_apply_event).
                            empty = q == stop and count_bits(b, old_bits, columns) == 0
                            while q < stop or (empty and r == began):
                                if r + 2 > cap:
                                    s[POS], s[ROWS], s[TXS], s[EVENTS], s[FRAME_END] = p, began, t, v, end
                                    return FULL
                                if inserting:
                                    o = np.int64(-1)
                                    w = q
                                    if flags & NEW_WHOLE:
                                        q = skip_whole(b, q, stop, program, first, columns)
                                    else:
                                        q = skip_some(b, q, stop, program, first, columns, new_bits)
                                else:
                                    o = q
                                    w = np.int64(-1)
                                    if flags & OLD_WHOLE:
                                        q = skip_whole(b, q, stop, program, first, columns)
                                    else:
                                        q = skip_some(b, q, stop, program, first, columns, old_bits)
                                    if update and q >= 0:
                                        w = q
                                        nulls = q
                                        if kind == _PARTIAL_UPDATE:
                                            nulls, _bits = skip_options(b, q, stop, program, first, columns)
                                        if nulls < 0:
                                            q = np.int64(-1)
                                        elif flags & NEW_WHOLE:
                                            q = skip_whole(b, nulls, stop, program, first, columns)
                                        else:
                                            q = skip_some(b, nulls, stop, program, first, columns, new_bits)
                                if q < 0 or (not empty and q == (w if inserting else o)):
                                    status = BAD_ROW
                                    break
                                differs, missing = False, False
                                if update and keyed[k]:
                                    if flags == OLD_WHOLE | NEW_WHOLE:
                                        differs = not same_keys(b, o, w, stop, program, keys, first, columns)
                                    else:
                                        differs, missing = count_moved(
                                            b, o, nulls, stop, program, keys, first, columns, old_bits, new_bits
                                        )
                                if differs and not missing:
                                    # One key leaves, another arrives; each must be in order with its own key's rows.
                                    op[r], slot[r], old[r], new[r], fill[r] = OP_DELETE, k, o, -1, -1
                                    event[r], tx[r] = v, t - 1
                                    r += 1
                                    op[r], slot[r], old[r], new[r], fill[r] = OP_INSERT, k, -1, w, o
                                else:
                                    if differs:
                                        s[BARRIER] |= _KEY_CHANGE
                                    op[r] = OP_INSERT if inserting else (OP_UPDATE if update else OP_DELETE)
                                    slot[r], old[r], new[r], fill[r] = k, o, w, o if update else -1
                                event[r], tx[r] = v, t - 1
                                r += 1
                            v += 1
            elif kind in (_GTID, _ANONYMOUS_GTID):
                if s[OPEN] or stop - m < 25:
                    status = BAD_EVENT
                else:
                    name = np.int64(ANONYMOUS)
                    if kind == _GTID:
                        high, low = le64(b, m + 1), le64(b, m + 9)
                        name = _find_name(name_high, name_low, name_of, high, low)
                    if name < 0:
                        status = CONTROL
                    else:
                        tx_name[t], tx_no[t], tx_time[t] = name, le64(b, m + 17), NO_TIME
                        if stop - m >= 49 and b[m + 25] == 2:
                            # When it was committed where it comes from, which comes second and only if it differs.
                            stamp = le48(b, m + 42) | np.int64(b[m + 48]) << 48
                            if stamp >> 55:
                                if stop - m >= 56:
                                    stamp = le48(b, m + 49) | np.int64(b[m + 55]) << 48
                                else:
                                    status = BAD_EVENT
                            tx_time[t] = stamp
                        tx_xid[t], tx_row[t] = 0, r
                        s[OPEN], s[OPEN_AT], s[OPEN_ROW], s[HELD] = 1, p, r, 0
                        t += 1
            elif kind == _MARIADB_GTID:
                if s[OPEN] or stop - m < 13:
                    status = BAD_EVENT
                elif b[m + 12] & 0xC0:  # XA
                    status = CONTROL
                else:
                    high, low = le32(b, m + 8), le32(b, e + 5)
                    name = _find_name(name_high, name_low, name_of, high, low)
                    if name < 0:
                        status = CONTROL
                    else:
                        tx_name[t], tx_no[t], tx_time[t] = name, le64(b, m), NO_TIME
                        tx_xid[t], tx_row[t] = 0, r
                        # It stands for BEGIN, unless a statement follows that is a transaction of its own.
                        s[OPEN], s[OPEN_AT], s[OPEN_ROW], s[HELD] = 1 if b[m + 12] & 1 else 2, p, r, 0
                        t += 1
            elif kind == _QUERY:
                what = _is_begin(b, m, stop)
                if what < 0:
                    status = BAD_EVENT
                elif what == 1:
                    if s[OPEN] == 0:  # before MySQL 5.7 nothing announces a transaction
                        tx_name[t], tx_no[t], tx_time[t], tx_xid[t], tx_row[t] = ANONYMOUS, 0, NO_TIME, 0, r
                        s[OPEN_AT], s[OPEN_ROW], s[HELD] = p, r, 0
                        t += 1
                    s[OPEN] = 2
                elif what == 2:
                    commit = True
                else:
                    status = CONTROL
            elif kind == _XID:
                if stop - m < 8:
                    status = BAD_EVENT
                else:
                    commit = True
            elif kind == _PAYLOAD or _COMPRESSED_FIRST <= kind <= _COMPRESSED_LAST:
                status = EXPAND if s[PACKETS] else BAD_EVENT
            elif kind == PLACE and not s[PACKETS]:
                status = MORE
            elif not _HOLDS_NOTHING[kind]:
                status = CONTROL
            if commit and status == MORE:
                if s[OPEN] != 2:
                    status = BAD_EVENT
                elif s[SPILLING] or s[HELD]:
                    status = CONTROL
                else:
                    tx_xid[t - 1] = le64(b, m) if kind == _XID else 0
                    if tx_time[t - 1] == NO_TIME:
                        tx_time[t - 1] = le32(b, e) * 1_000_000
                    tx_end[t - 1], tx_file[t - 1] = s[LOG_POS], s[FILE]
                    if tx_name[t - 1] == ANONYMOUS:
                        tx_name[t - 1], tx_no[t - 1] = s[FILE], s[LOG_POS]
                    s[OPEN] = 0
        if status != MORE:
            s[POS], s[ROWS], s[TXS], s[EVENTS], s[FRAME_END] = p, r, t, v, end
            return status
        p = end
    s[POS], s[ROWS], s[TXS], s[EVENTS] = p, r, t, v
    return MORE
