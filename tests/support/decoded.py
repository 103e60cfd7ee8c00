"""What a decoder made of a stream, as plain rows.

`rows` does to the changes what the log does (offsets, spilled transactions, rolled-back subtransactions), so that
tests compare rows and not how they were cut up.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tidemill.contracts import Decoder
from tidemill.model.block import Block, Op, Side
from tidemill.model.change import Change, Committed, SpillAborted, SpillCommitted, Spilled

Row = dict[str, Any]


def fed(decoder: Decoder, stream: bytes, chunks: Iterable[int] = ()) -> list[Change]:
    """All changes of the stream, fed as capture does: what was not consumed comes again with the next chunk, and when a
    change is looked at, its bytes are no longer where they were.

    `chunks` are the sizes of the reads; what they leave over comes in one.
    """
    changes: list[Change] = []
    consumed = received = 0
    sizes = iter(chunks)
    while received < len(stream):
        received = min(len(stream), received + next(sizes, len(stream)))
        buffer = bytearray(stream[consumed:received])
        changes.extend(decoder.feed(memoryview(buffer)))
        consumed += decoder.consumed
        buffer[:] = b"\xaa" * len(buffer)
    return changes


def rows(changes: Iterable[Change]) -> list[Row]:
    """The events in order, as plain values. Spilled transactions appear where they committed."""
    done: list[Row] = []
    spilled: dict[int, list[Row]] = {}
    for change in changes:
        match change:
            case Committed():
                done += _flat(change.blocks)
            case Spilled():
                spilled.setdefault(change.transaction, []).extend(_flat(change.blocks))
            case SpillAborted():
                del spilled[change.transaction]
            case SpillCommitted():
                kept = [r for r in spilled.pop(change.transaction) if r.pop("subtx") not in change.aborted]
                for ordinal, row in enumerate(kept):
                    row |= {"position": change.position, "tx_id": change.tx_id, "commit_time": change.commit_time}
                    row["ordinal"] = ordinal
                done += kept
    assert not spilled, f"transactions left open: {sorted(spilled)}"
    return done


def _flat(blocks: Sequence[Block]) -> list[Row]:
    follow_each_other(blocks)
    found = sorted((row for block in blocks for row in _of_block(block)), key=lambda row: row["offset"])
    first = found[0]["offset"] if found else 0
    assert [row.pop("offset") for row in found] == list(range(first, first + len(found)))
    return found


def follow_each_other(blocks: Iterable[Block]) -> None:
    """Blocks of one table do not overlap in offsets: what the log asks of every decoder."""
    ends: dict[str, int] = {}
    for block in sorted((block for block in blocks if block.rows), key=lambda block: int(block.offsets()[0])):
        name, offsets = block.table.full_name, block.offsets()
        assert int(offsets[0]) >= ends.get(name, 0), f"blocks of {name} overlap"
        ends[name] = int(offsets[-1]) + 1


def _of_block(block: Block) -> Iterator[Row]:
    batch = block.batch
    batch.validate(full=True)
    names = [c.name for c in block.table.columns]
    time_at = batch.schema.get_field_index("commit_time")
    if time_at >= 0:  # microseconds: Python's clock ends with the year 9999
        batch = batch.set_column(time_at, "commit_time", batch.column(time_at).cast("int64"))
    for row in batch.to_pylist():
        row["table"], row["op"] = block.table.full_name, Op(row["op"]).label
        if unchanged := row.pop("unchanged", None):
            row["unchanged"] = [names[i] for i in unchanged]
        if odd := row.pop("odd", None):
            row["odd"] = {f"{Side(o['side']).name.lower()}.{names[o['column']]}": o["text"] for o in odd}
        for image in ("key", "before", "after"):
            if (values := row.pop(image, None)) is not None:
                row[image] = {name: plain(value) for name, value in values.items()}
        yield row


def plain(value: Any) -> Any:
    """As JSON has it."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case decimal.Decimal():
            return format(value, "f")
        case float() if not math.isfinite(value):
            return str(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case list():
            return [plain(item) for item in value]
        case _:
            return value
