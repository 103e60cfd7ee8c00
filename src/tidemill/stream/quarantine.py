"""Takes poison out of a delivery: the events that its sink will never take become letters, the others go on.

In a Spark worker (batch.py). What is taken out travels beside the receipt to the driver, which stores it before the
checkpoint moves.
"""

from __future__ import annotations

import numpy as np

from tidemill.dlq import Letter
from tidemill.errors import Poisoned, Refused
from tidemill.log import codec
from tidemill.model.block import POSITION, Block, Op
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset

MOST_LETTERS = 1000
MOST_BYTES = 64 << 20  # of several; a single event may be of any size
_FIX = "This is no poison event but a sink that does not fit the data: mend the sink, then start the pipeline again."


class Quarantine:
    """One delivery to one sink. `delivery` is what is left of it."""

    def __init__(self, delivery: Delivery, sink: str) -> None:
        self.delivery = delivery
        self._whole = delivery
        self._sink = sink
        self._letters: dict[Offset, Letter] = {}

    @property
    def letters(self) -> tuple[Letter, ...]:
        return tuple(self._letters[offset] for offset in sorted(self._letters))

    def take(self, poison: Poisoned) -> None:
        """Every call takes out at least one more event, so that writing again comes to an end; else `Refused`."""
        new = {offset: reason for offset, reason in poison.reasons.items() if offset not in self._letters}
        if len(self._letters) + len(new) > MOST_LETTERS:
            raise Refused(f"more than {MOST_LETTERS} events of one delivery are refused; {poison.what}", fix=_FIX)
        found = {letter.offset: letter for letter in self._written(new)}
        if not new or len(found) < len(new):
            raise Refused(
                f"the sink names events that it was not given: {sorted(poison.reasons.keys() - found.keys())[:5]}",
                fix="That is a mistake of the sink; report it.",
            )
        self._letters |= found
        if len(self._letters) > 1 and sum(len(letter.payload) for letter in self._letters.values()) > MOST_BYTES:
            raise Refused(f"more than {MOST_BYTES} bytes of one delivery are refused; {poison.what}", fix=_FIX)
        self.delivery = self._whole.without(self._letters)

    def _written(self, reasons: dict[Offset, str]) -> list[Letter]:
        wanted = np.array(sorted(reasons), np.uint64)
        return [
            _letter(block, int(row), self._sink, self._whole.source, reasons[int(block.offsets()[row])])
            for block in self._whole
            for row in np.flatnonzero(np.isin(block.offsets(), wanted))
        ]


def _letter(block: Block, row: int, sink: str, source: str, reason: str) -> Letter:
    one = _alone(block, row)
    facts = {name: one.batch.column(name)[0].as_py() for name in ("op", "offset", "position", "ordinal")}
    position = facts["position"] or ""
    return Letter(
        sink, source, block.table.full_name, Op(facts["op"]).label, facts["offset"], position, facts["ordinal"],
        f"{source}:{position}:{facts['ordinal']}", reason, bytes(codec.dump(one)),
    )  # fmt: skip


def _alone(block: Block, row: int) -> Block:
    """The row as a block, without the other rows' positions: a dictionary is taken along whole."""
    one = block.take([row]).batch
    at = one.schema.get_field_index("position")
    position = one.column(at).dictionary_decode().dictionary_encode().cast(POSITION)
    return Block(block.table, one.set_column(at, one.schema.field(at), position))
