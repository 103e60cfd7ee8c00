"""Makes dead-letter records: of each event that a sink says it will never take, what is kept in the event's place.

In a Spark worker (deliver.py). Records travel beside the receipt to the driver, which stores them, and then sends the
delivery again without their events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tidemill.dlq import DELIVER, DeadLetterRecord
from tidemill.errors import Poisoned, Refused
from tidemill.log import codec
from tidemill.model.block import POSITION, Block, Op
from tidemill.model.delivery import Delivery

MOST_DEAD_LETTERS = 1000
MOST_BYTES = 64 << 20  # of several; a single event may be of any size
_FIX = "This is no poison event but a sink that does not fit the data: mend the sink, then start the pipeline again."


def dead_letters_of(
    poison: Poisoned, delivery: Delivery, sink: str, *, before: int = 0, stages: Mapping[int, str] | None = None
) -> tuple[DeadLetterRecord, ...]:
    """At least one, so that sending again without them comes to an end; else `Refused`.

    `delivery` is what the sink was given, or, where processors stand before it, what they were given: a dead letter
    keeps the captured event. `before` is how many of its events were taken out by then. `stages` says of events, by
    offset, which processor failed on them; those not in it were refused by the sink.
    """
    if before + len(poison.reasons) > MOST_DEAD_LETTERS:
        raise Refused(f"more than {MOST_DEAD_LETTERS} events of one delivery are refused; {poison.what}", fix=_FIX)
    wanted = np.array(sorted(poison.reasons), np.uint64)
    dead_letters = [
        replace(
            _dead_letter(block, int(row), sink, delivery.source, poison.reasons[int(block.offsets()[row])]),
            stage=(stages or {}).get(int(block.offsets()[row]), DELIVER),
        )
        for block in delivery
        for row in np.flatnonzero(np.isin(block.offsets(), wanted))
    ]
    strangers = poison.reasons.keys() - {dead_letter.offset for dead_letter in dead_letters}
    if strangers:
        raise Refused(
            f"the sink names events that it was not given: {sorted(strangers)[:5]}",
            fix="That is a mistake of the sink; report it.",
        )
    if len(dead_letters) > 1 and sum(len(dead_letter.payload) for dead_letter in dead_letters) > MOST_BYTES:
        raise Refused(f"more than {MOST_BYTES} bytes of one delivery are refused; {poison.what}", fix=_FIX)
    return tuple(sorted(dead_letters, key=lambda dead_letter: dead_letter.offset))


def _dead_letter(block: Block, row: int, sink: str, source: str, reason: str) -> DeadLetterRecord:
    one = _alone(block, row)
    facts = {name: one.batch.column(name)[0].as_py() for name in ("op", "offset", "position", "ordinal")}
    position = facts["position"] or ""
    return DeadLetterRecord(
        sink, source, block.table.full_name, Op(facts["op"]).label, facts["offset"], position, facts["ordinal"],
        f"{source}:{position}:{facts['ordinal']}", reason, b"".join(codec.dump(one)),
    )  # fmt: skip


def _alone(block: Block, row: int) -> Block:
    """The row as a block, without the other rows' positions: a dictionary is taken along whole."""
    one = block.take([row]).batch
    at = one.schema.get_field_index("position")
    position = one.column(at).dictionary_decode().dictionary_encode().cast(POSITION)
    return Block(block.table, one.set_column(at, one.schema.field(at), position))
