"""The one idea of every `resume.py`: what was delivered is known at the destination, and nowhere else.

A worker that dies has not reported how far it came, so a batch comes again, from another worker, maybe cut or dealt
otherwise. A sink that promises `effectively once` then asks two things of the place it writes to:

    already    what of this delivery is there, and is it of this log: `Refused` if it is not, or if we come too late
    note       that it is there now, in a way that cannot come apart from the events themselves

How they are answered differs, since each system has another way to make two writes one. Each `resume.py` says it in
these words as `RESUME`. Where both are about a delivery's blocks, the sink asks them of a `Resumption`. Where they are
not (a table's versions, a stream's ids) there is none: ADR 27.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tidemill.model.block import Block


class Resumption(Protocol):
    """One delivery: which of its events the destination lacks, and the note that they are there.

    `fresh` is called with each block, in order, before any of it is written; `note` once, after the last block, and
    before or together with what makes the events visible.
    """

    @property
    def skipped(self) -> int:
        """Events that `fresh` has left out."""

    def fresh(self, block: Block) -> Block | None:
        """The block without what the destination has already; None if nothing is left. `Refused` if what it has is of
        another log."""

    def note(self) -> None:
        """Nothing, where no event was fresh. A dead letter that is sent again leaves the note of the last batch as it
        is."""


def fresh_blocks(blocks: Iterable[Block], resumption: Resumption) -> Iterator[Block]:
    """What of a delivery is to be written."""
    return (fresh for block in blocks if (fresh := resumption.fresh(block)) is not None)


@dataclass(frozen=True, slots=True)
class ResumeScheme:
    kept_in: str
    """Where at the destination."""
    bound_by: str
    """What keeps note and events together, whatever is killed when."""
    replay: str
    """What becomes of an event that comes again."""
    already: Callable[..., Any]
    note: Callable[..., Any]
    resumption: type[Resumption] | None = None
    """How the sink asks both; None where they are not about blocks."""
