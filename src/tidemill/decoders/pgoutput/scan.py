"""One pass over the replication stream: finds frames, transactions and tuples, touches no value.

`scan` walks CopyData frames (protocol manual 54.4 and 54.9) and notes, for every row change, where its tuples
start. It returns to Python only for what is rare: relation and type descriptions, pieces of streamed transactions,
and server messages outside CopyData. Transactions of one row are therefore as cheap as one of a million.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.decoders._shared.calendar import NO_TIME
from tidemill.model.barrier import Barrier

# Slots of the state vector, which lives as long as the connection.
POS = 0  # next byte to look at
ROWS = 1  # rows noted since the last reset
TXS = 2  # transactions noted since the last reset
OPEN = 3  # 1 between Begin and Commit
OPEN_AT = 4  # where the open transaction's Begin frame starts
OPEN_ROW = 5  # its first row
STREAM = 6  # xid of the streamed transaction whose piece we are in, or 0
SPILLING = 7  # 1 when rows of the open transaction were already handed on
WAL_END = 8  # newest position of the server, by its keepalives
REPLY = 9  # 1 when the server asked for an answer
FRAME_END = 10  # end of the frame that made us stop
BARRIER = 11  # the kinds of `Barrier` among the rows: a TRUNCATE, an unsplit key change, a table's new shape
AFTER = 12  # rows of transactions that commit before it are known already, and are not noted again
KNOWN = 13  # 1 inside such a transaction
MUTE = 14  # 1 when logical messages are not wanted
DDL = 15  # 1 when messages about changed tables are read, 0 when they are left out
ALONE = 16  # 1 when the transactions noted so far must leave before another one begins: a table changed among them
SENT = 17  # when the server sent the last frame of its log, by its clock
STATE_SIZE = 18

# Why `scan` returned.
MORE = 0  # the rest of the buffer is an unfinished frame
FULL = 1  # no room for another row: take the rows and call again
CONTROL = 2  # a message for Python, from POS to FRAME_END
SERVER = 3  # a frame that is not CopyData, from POS to FRAME_END
BAD_FRAME = -1
BAD_MESSAGE = -2
UNKNOWN_RELATION = -3
BROKEN = {
    BAD_FRAME: "a frame of the replication stream is malformed",
    BAD_MESSAGE: "a replication message does not follow the protocol",
    UNKNOWN_RELATION: "a row belongs to a relation that was never announced",
}

OP_INSERT, OP_UPDATE, OP_DELETE, OP_TRUNCATE, OP_MESSAGE, OP_DDL = 1, 2, 3, 4, 5, 6
MESSAGE_SLOT = 0  # the pseudo relation of logical messages
#: Prefix of the messages that a source of ours writes to have a transaction to remember; no event is made of them.
WITNESS = "tidemill.witness"
#: Prefix of the messages that our event triggers write where a table changes.
STATEMENT = "tidemill.ddl"

_ABSENT = np.int64(-1)
_TRUNCATE, _KEY_CHANGE = int(Barrier.TRUNCATE), int(Barrier.KEY_CHANGE)
_WITNESS = np.frombuffer(WITNESS.encode() + b"\0", np.uint8)
_STATEMENT = np.frombuffer(STATEMENT.encode() + b"\0", np.uint8)
_LARGEST_FRAME = 0x3FFFFFFF  # PQ_LARGE_MESSAGE_LIMIT: waiting for more than a server ever sends would be for ever


@njit(cache=True, nogil=True, inline="always")
def _be16(b: Any, p: Any) -> Any:
    return (np.int64(b[p]) << 8) | np.int64(b[p + 1])


@njit(cache=True, nogil=True, inline="always")
def _be32(b: Any, p: Any) -> Any:
    return (np.int64(b[p]) << 24) | (np.int64(b[p + 1]) << 16) | (np.int64(b[p + 2]) << 8) | np.int64(b[p + 3])


@njit(cache=True, nogil=True, inline="always")
def _be64(b: Any, p: Any) -> Any:
    return (_be32(b, p) << 32) | _be32(b, p + 4)


@njit(cache=True, nogil=True)
def skip_tuple(b: Any, p: Any, end: Any, columns: Any) -> Any:
    """The byte after a tuple that starts (with its column count) at `p`, or -1 if it does not fit its message."""
    if p + 2 > end or _be16(b, p) != columns:
        return _ABSENT
    p += 2
    for _j in range(columns):
        if p >= end:
            return _ABSENT
        kind = b[p]
        if kind == 116:  # t; b is never sent, because we never ask for `binary`
            if p + 5 > end:
                return _ABSENT
            p += 5 + _be32(b, p + 1)
            if p > end:
                return _ABSENT
        elif kind == 110 or kind == 117:  # n, u
            p += 1
        else:
            return _ABSENT
    return p


@njit(cache=True, nogil=True)
def _compare_keys(b: Any, old: Any, new: Any, columns: Any, keys: Any) -> Any:
    """(key differs, new row has values that neither tuple carries). Both tuples were walked before.

    The old key also comes, unchanged, when a part of it is stored out of line.
    """
    p, q = old + 2, new + 2
    differs = False
    missing = False
    for j in range(columns):
        k, m = b[p], b[q]
        lp = _be32(b, p + 1) if k == 116 else np.int64(-1)
        lq = _be32(b, q + 1) if m == 116 else np.int64(-1)
        if m == 117 and k != 116:
            missing = True
        if keys[j] and m != 117:
            if lp != lq:
                differs = True
            else:
                for i in range(lp):
                    if b[p + 5 + i] != b[q + 5 + i]:
                        differs = True
                        break
        p += 1 if lp < 0 else 5 + lp
        q += 1 if lq < 0 else 5 + lq
    return differs, missing


@njit(cache=True, nogil=True)
def _has_prefix(b: Any, p: Any, end: Any, prefix: Any) -> Any:
    """Whether the prefix of a logical message, from `p` on, is this one."""
    same, i = end - p >= len(prefix), 0
    while same and i < len(prefix):
        same = b[p + i] == prefix[i]
        i += 1
    return same


@njit(cache=True, nogil=True)
def scan(
    b: Any, n: Any, s: Any, oids: Any, slot_of: Any, width: Any, keys: Any,
    op: Any, slot: Any, old: Any, new: Any, fill: Any, full: Any, end_of: Any, tx: Any, sub: Any,
    tx_lsn: Any, tx_end: Any, tx_time: Any, tx_id: Any, tx_row: Any,
) -> Any:  # fmt: skip
    """Notes rows until something needs Python. `oids` is sorted; `slot_of` names the slot of each.

    Row arrays: op, slot, start of the old and the new tuple (-1: none), `fill` (an old tuple that completes unchanged
    columns of the new one), `full` (the old tuple is a whole row), end of its message, transaction, subtransaction.
    Transaction arrays: commit LSN, end LSN, commit time, xid, first row.
    """
    cap = len(op)
    p = s[POS]
    r = s[ROWS]
    t = s[TXS]
    while True:
        if p + 5 > n:
            s[POS], s[ROWS], s[TXS] = p, r, t
            return MORE
        size = _be32(b, p + 1)
        end = p + 1 + size
        if size < 4 or size > _LARGEST_FRAME:
            s[POS], s[ROWS], s[TXS] = p, r, t
            return BAD_FRAME
        if end > n:
            s[POS], s[ROWS], s[TXS] = p, r, t
            return MORE
        if r + 2 > cap or t + 2 > len(tx_lsn):
            s[POS], s[ROWS], s[TXS] = p, r, t
            return FULL
        if b[p] != 100:  # d
            s[POS], s[ROWS], s[TXS], s[FRAME_END] = p, r, t, end
            return SERVER
        q = p + 5
        kind = b[q] if q < end else 0
        if kind == 107:  # k: keepalive
            if end - q < 18:
                s[POS], s[ROWS], s[TXS] = p, r, t
                return BAD_FRAME
            s[WAL_END] = max(s[WAL_END], _be64(b, q + 1))
            if b[q + 17]:
                s[REPLY] = 1
            p = end
            continue
        if kind != 119 or end - q < 26:  # w
            s[POS], s[ROWS], s[TXS] = p, r, t
            return BAD_FRAME
        s[SENT] = _be64(b, q + 17)
        m = q + 25
        c = b[m]
        m += 1
        status = MORE
        if c == 66:  # B: final LSN, commit time, xid
            if s[OPEN] or s[STREAM] or end - m != 20:
                status = BAD_MESSAGE
            elif s[ALONE]:
                status = FULL
            else:
                tx_lsn[t], tx_time[t], tx_id[t] = _be64(b, m), _be64(b, m + 8), _be32(b, m + 16)
                tx_row[t] = r
                s[OPEN], s[OPEN_AT], s[OPEN_ROW] = 1, p, r
                s[KNOWN] = 1 if tx_lsn[t] < s[AFTER] else 0
                t += 1
        elif c == 67:  # C: flags, commit LSN, end LSN, commit time
            if not s[OPEN] or s[STREAM] or end - m != 25:
                status = BAD_MESSAGE
            elif s[SPILLING]:
                status = CONTROL
            else:
                tx_end[t - 1] = _be64(b, m + 9)
                s[OPEN] = 0
        elif c == 73 or c == 85 or c == 68 or c == 84 or c == 77:  # I U D T M
            xid = np.int64(0)
            if s[STREAM]:
                if end - m < 4:
                    status = BAD_MESSAGE
                else:
                    xid = _be32(b, m)
                    m += 4
            elif not s[OPEN] and c != 77:
                status = BAD_MESSAGE
            if status == MORE and s[OPEN] and s[KNOWN]:
                p = end
                continue
            if status == MORE and c == 77:
                if end - m < 14:  # flags, LSN, at least an empty prefix, content length
                    status = BAD_MESSAGE
                elif s[ALONE] and not s[OPEN] and not s[STREAM]:
                    status = FULL
                else:
                    if not s[OPEN] and not s[STREAM]:
                        # A message outside any transaction is one of its own. Resuming one byte after it skips it.
                        tx_lsn[t], tx_end[t] = _be64(b, m + 1), _be64(b, m + 1) + 1
                        tx_time[t], tx_id[t], tx_row[t] = NO_TIME, 0, r
                        s[KNOWN] = 1 if tx_lsn[t] < s[AFTER] else 0
                        t += 1
                    known = s[KNOWN] and not s[STREAM]
                    inside = s[OPEN] or s[STREAM]  # ours are transactional
                    if not known and inside and _has_prefix(b, m + 9, end, _STATEMENT):
                        if s[DDL]:
                            status = CONTROL
                    elif not known and not s[MUTE] and not _has_prefix(b, m + 9, end, _WITNESS):
                        op[r], slot[r], old[r], new[r], fill[r], full[r] = OP_MESSAGE, MESSAGE_SLOT, -1, m, -1, 0
                        end_of[r], tx[r], sub[r] = end, t - 1, xid
                        r += 1
            elif status == MORE and c == 84:
                count = _be32(b, m) if end - m >= 5 else np.int64(-1)
                if count < 0 or end - m != 5 + 4 * count:
                    status = BAD_MESSAGE
                elif r + count > cap and r > 0:
                    s[POS], s[ROWS], s[TXS] = p, r, t
                    return FULL
                elif count > cap:
                    status = BAD_MESSAGE
                else:
                    for i in range(count):
                        at = np.searchsorted(oids, _be32(b, m + 5 + 4 * i))
                        if at == len(oids) or oids[at] != _be32(b, m + 5 + 4 * i):
                            status = UNKNOWN_RELATION
                            break
                        at_row = r + i
                        op[at_row], slot[at_row], full[at_row] = OP_TRUNCATE, slot_of[at], 0
                        old[at_row], new[at_row], fill[at_row] = -1, -1, -1
                        end_of[at_row], tx[at_row], sub[at_row] = end, t - 1, xid
                    if status == MORE:  # else it is looked at again, once its relation is known
                        s[BARRIER] |= _TRUNCATE
                        r += count
            elif status == MORE:
                if end - m < 5:
                    status = BAD_MESSAGE
                else:
                    oid = _be32(b, m)
                    at = np.searchsorted(oids, oid)
                    if at == len(oids) or oids[at] != oid:
                        status = UNKNOWN_RELATION
                    else:
                        k = slot_of[at]
                        old_at, new_at, whole = np.int64(-1), np.int64(-1), 0
                        m += 4
                        tag = b[m]
                        if c != 73 and (tag == 75 or tag == 79):  # K, O
                            old_at, whole = m + 1, 1 if tag == 79 else 0
                            m = skip_tuple(b, m + 1, end, width[k])
                            tag = b[m] if 0 <= m < end else 0
                        if m >= 0 and c != 68:
                            if tag == 78:  # N
                                new_at = m + 1
                                m = skip_tuple(b, m + 1, end, width[k])
                            else:
                                m = _ABSENT
                        if m != end or (c == 68 and old_at < 0):
                            status = BAD_MESSAGE
                        else:
                            what = OP_INSERT if c == 73 else (OP_UPDATE if c == 85 else OP_DELETE)
                            moved, missing = False, False
                            if what == OP_UPDATE and old_at >= 0:
                                moved, missing = _compare_keys(b, old_at, new_at, width[k], keys[k])
                            if moved and not missing:
                                # One key leaves, another arrives; each must be in order with its own key's rows.
                                op[r], slot[r], old[r], new[r], fill[r], full[r] = OP_DELETE, k, old_at, -1, -1, whole
                                end_of[r], tx[r], sub[r] = end, t - 1, xid
                                r += 1
                                op[r], slot[r], old[r], new[r], fill[r], full[r] = OP_INSERT, k, -1, new_at, old_at, 0
                            else:
                                if moved:
                                    s[BARRIER] |= _KEY_CHANGE
                                op[r], slot[r], old[r], new[r], fill[r], full[r] = (
                                    what,
                                    k,
                                    old_at,
                                    new_at,
                                    old_at,
                                    whole,
                                )
                            end_of[r], tx[r], sub[r] = end, t - 1, xid
                            r += 1
        elif c == 79:  # O: where a forwarded transaction came from
            status = MORE
        else:
            status = CONTROL
        if status != MORE:
            s[POS], s[ROWS], s[TXS], s[FRAME_END] = p, r, t, end
            return status
        p = end
