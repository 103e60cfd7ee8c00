"""A dead letter: one event, whole, with the sink that will never take it and that sink's reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa

from tidemill.model.position import Offset

DELIVER = "deliver"


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """`sink` and `event_id` together name it: a replayed batch makes the same dead letters again (invariant 4).

    `payload` is a block of one row as the log writes blocks, so that exactly this event can be delivered again.
    `number`, `attempts` and the times are the store's: 0 and empty until it has the dead letter. `superseded` is empty,
    `partly` or `wholly`: its row has newer events at the sink, the last one at `superseded_by` (stream/superseded.py).
    `followed_from` is the offset from which events were compared with it; None where none were yet. `stage` is who
    refused it: `deliver` for the sink, `processor:<id>` for a processor before it.
    """

    sink: str
    source: str
    table: str
    op: str
    offset: Offset
    position: str
    ordinal: int
    event_id: str
    reason: str
    payload: bytes
    number: int = 0
    attempts: int = 1
    first_at: str = ""
    last_at: str = ""
    superseded: str = ""
    superseded_by: Offset | None = None
    followed_from: Offset | None = None
    stage: str = DELIVER


def pack(dead_letters: Sequence[DeadLetterRecord]) -> bytes:
    """As they travel beside a receipt; empty for none."""
    if not dead_letters:
        return b""
    table = pa.Table.from_pylist([asdict(dead_letter) for dead_letter in dead_letters])
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return bytes(out.getvalue())


def unpack(data: bytes) -> tuple[DeadLetterRecord, ...]:
    if not data:
        return ()
    with pa.ipc.open_stream(data) as stream:
        return tuple(DeadLetterRecord(**row) for row in stream.read_all().to_pylist())
