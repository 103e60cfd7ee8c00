"""What an operator gives up so that capture can go on: everything up to an LSN, or the one transaction that comes next.

Called by `tidemill recover --after` and `--skip-transaction`. The slot stays as it is: a stream that is asked for from
a later position leaves out what was committed before it.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tidemill.contracts import Passage
from tidemill.decoders.pgoutput import Cursor
from tidemill.errors import ConfigError
from tidemill.model.position import Position
from tidemill.sources.postgres import resume
from tidemill.sources.postgres.client import connect
from tidemill.sources.postgres.errors import RECOVER, SlotLost, translate
from tidemill.sources.postgres.lsn import format_lsn, parse_lsn

if TYPE_CHECKING:
    from tidemill.sources.postgres import PostgresSource
    from tidemill.sources.postgres.config import PostgresConfig

_TWO_THOUSAND = datetime(2000, 1, 1, tzinfo=UTC)
_FRAME, _XLOG = 5, 25  # bytes before a message: of the frame, and of XLogData in it


def up_to(config: PostgresConfig, after: Position, wanted: Position, confirmed: Position | None) -> Passage:
    lsn = parse_lsn(wanted)
    begin, end = _reach(config, after, confirmed)
    if not begin < lsn <= end:
        raise ConfigError(
            f'{wanted} is not in what slot "{config.slot_name}" has for us: after {format_lsn(begin)}, up to'
            f" {format_lsn(end)}",
            where=config.where,
            fix="Choose a position in that range.",
        )
    return Passage(format_lsn(lsn), f"what was committed after {format_lsn(begin)} and up to {format_lsn(lsn)}")


def next_transaction(source: PostgresSource, after: Position, confirmed: Position | None) -> Passage:
    """`source` is one of our own, that does not let the server stream open transactions: they come in commit order."""
    config = source.config
    _, end = _reach(config, after, confirmed)
    source.start(after, confirmed)
    begun: tuple[int, datetime, int] | None = None
    filled = False
    tables: list[str] = []
    while True:
        view, at = source.read(), 0
        while len(view) - at >= _FRAME and len(view) - at >= (size := 1 + struct.unpack_from(">I", view, at + 1)[0]):
            kind, body = chr(view[at]), bytes(view[at + _FRAME : at + size])
            at += size
            if kind != "d":
                source.server_message(kind, body)
                continue
            if body[:1] == b"k":
                if begun is None and struct.unpack_from(">Q", body, 1)[0] >= end:
                    raise ConfigError(
                        f"no transaction of the captured tables was committed after {after}", where=config.where,
                        fix="There is nothing to leave out.",
                    )  # fmt: skip
                continue
            message = Cursor(body[_XLOG + 1 :])
            match chr(body[_XLOG]):
                case "B":
                    lsn, time, xid = message.number("Q"), message.number("q"), message.number("I")
                    begun, filled = (lsn, _TWO_THOUSAND + timedelta(microseconds=time), xid), False
                case "R":
                    _oid, schema, name = message.number("I"), message.text(), message.text()
                    tables.append(f"{schema}.{name}")
                case "I" | "U" | "D" | "T" | "M":
                    filled = True
                case "C" if not filled:  # before PostgreSQL 15: nothing in it is ours
                    begun = None
                case "C" if begun is not None:
                    _flags, _lsn, through = message.number("B"), message.number("Q"), message.number("Q")
                    lsn, when, xid = begun
                    changed = f", which changed {', '.join(sorted(set(tables)))}" if tables else ""
                    what = f"transaction {xid} at {format_lsn(lsn)}, committed {when:%Y-%m-%d %H:%M:%S} UTC{changed}"
                    return Passage(format_lsn(through), what)
                case _:
                    pass
        source.consumed(at)


def _reach(config: PostgresConfig, after: Position, confirmed: Position | None) -> tuple[int, int]:
    """From where to where the slot can be read."""
    with connect(config) as db, translate(config.where):
        slot = resume.read(db, config.slot_name)
        if slot is None:
            raise SlotLost(f'replication slot "{config.slot_name}" is gone', where=config.where, fix=RECOVER)
        resume.verify(db, slot, config)
        end = resume.wal_end(db)
        return resume.resume(slot, after, confirmed, end, config), end
