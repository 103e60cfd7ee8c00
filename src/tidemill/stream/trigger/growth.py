"""How many lanes stand in an epoch where nobody asked for a number: one, and one for each core over a backlog (ADR 67).

A lane that stands costs a slot and a process, so an idle pipeline has one. Other lanes come with another epoch, which
takes about half a second: worth it where one lane would deliver for longer than that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# A backlog is this much, and more than the lanes deliver in so many seconds.
_EVENTS = 100_000
_SECONDS = 2.0


@dataclass(slots=True)
class Lanes:
    """`count` stand in this epoch, of `most` that may. Where they are equal nothing ever grows."""

    least: int
    most: int
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = self.least

    @classmethod
    def of(cls, asked: int | None, cores: int, *, standing: bool, ample: bool) -> Lanes:
        """Where somebody asked, so many. Else a micro-batch may have one for each core; of those that stand more than
        one need `ample` slots."""
        if asked:
            return cls(asked, asked)
        return cls(1, cores if ample else 1) if standing else cls(cores, cores)

    def begin(self, backlog: int) -> None:
        """A new epoch: what is there says how many stand."""
        self.count = self.most if backlog >= _EVENTS else self.least

    def rule(self) -> dict[str, Any]:
        """Of admission: those that stand are used, as if somebody had asked for them."""
        return {"count": self.count, "asked": True}

    def are_too_few(self, backlog: int, delivered: int, seconds: float) -> bool:
        """After a batch: whether the epoch is worth ending, so that the next one has more of them."""
        return self.count < self.most and backlog >= _EVENTS and backlog * seconds > delivered * _SECONDS
