"""The one idea of every `resume.py`: what was delivered is known at the destination, and nowhere else.

A worker that dies has not reported how far it came, so a batch comes again, from another worker, maybe cut or dealt
otherwise. A sink that promises `effectively once` then asks its destination two things, in `write`, of a `Resumption`:

    fresh    what of this is there already, and is it of this log: `Refused` if it is not, or if we come too late
    note     that it is there now, in a way that cannot come apart from the events themselves

How they are answered differs, since each system has another way to make two writes one: `RESUME` of each `resume.py`
says it in the same words (ADR 27).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Unit = TypeVar("Unit")


class Resumption(Protocol[Unit]):
    """One delivery: which of its events the destination lacks, and the note that they are there.

    A `Unit` is what the sink writes next: a block; a block and its table; events that are encoded, where nothing
    before says where they go. Each passes `fresh`, in order, before any of it is written. `note` is called once, after
    the last one, and before or together with what makes the events visible. Dead letters that are sent again pass too,
    although they are older than what is there, or have a way of their own.
    """

    @property
    def skipped(self) -> int:
        """Events that `fresh` has left out."""

    def fresh(self, unit: Unit, /) -> Unit | None:
        """What of it the destination lacks; None if that is nothing. `Refused` if what it has is of another log. Where
        a note must be there before the first event, it is when this returns."""

    def note(self) -> None:
        """Nothing, where no event was fresh; where each event carries its own note (a version, an id, a header), only
        what is still to be proven of those that were left out. A dead letter that is sent again leaves the note of the
        last batch as it is."""


def fresh_units(units: Iterable[Unit], resumption: Resumption[Unit]) -> Iterator[Unit]:
    """What of a delivery is to be written."""
    return (fresh for unit in units if (fresh := resumption.fresh(unit)) is not None)


@dataclass(frozen=True, slots=True)
class ResumeScheme:
    kept_in: str
    """Where at the destination."""
    bound_by: str
    """What keeps note and events together, whatever is killed when."""
    replay: str
    """What becomes of an event that comes again."""
    resumption: type[Resumption[Any]]
    """Of whom `write` asks both."""
