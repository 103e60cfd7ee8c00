"""What a source promises to the capture loop, and what it may keep across restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pydantic import Field

from tidemill.contracts.check import Check, Notice
from tidemill.model.change import Change
from tidemill.model.config import Config
from tidemill.model.position import Ordering, Position
from tidemill.model.table import Table


class Schemas(Protocol):
    """Numbers table versions, and keeps what a source must remember of its server. Kept across restarts."""

    def register(self, table: Table, position: Position) -> Table: ...

    def together(self) -> AbstractContextManager[None]:
        """What is registered and remembered in it becomes durable together, at its end; after an error nothing of it is
        there. For many tables at once: each alone waits for the disk."""

    def newest(self, name: str) -> Table | None:
        """The last registered version of a table."""

    def in_force(self, name: str) -> Table | None:
        """The version of a table that was last registered: not the newest where an earlier structure came back."""

    def versions(self, name: str) -> list[Table]:
        """Every registered version of a table, oldest first."""

    def recall(self, name: str) -> bytes | None:
        """The document that was last remembered under `name`."""

    def remember(self, name: str, document: bytes | None) -> None:
        """What a source must know of its server across restarts, in words of its own (identity, members of a
        publication, tables with gaps). Durable when it returns; None forgets it."""


@dataclass(frozen=True, slots=True)
class Resting:
    """Where a pipeline that has run before will go on: after `after`, or after `confirmed` where the source says that
    this is further. `since`: when its capture last gave a sign of life, seconds since 1970. `recall`: as in
    `Schemas`."""

    after: Position
    confirmed: Position | None
    since: float
    recall: Callable[[str], bytes | None] = lambda name: None


@dataclass(frozen=True, slots=True)
class Passage:
    """What an operator gives up: the changes of `what`, in words. The stream goes on after `to`."""

    to: Position
    what: str


class Source(Protocol):
    """A database's change stream. Lives in the capture process, used by one thread.

    `open` begins it, and `changes` is asked again and again until `close`. After a `ConnectionLost` it is closed and
    opened again. Sources that read a socket share `ByteStreamSource`.
    """

    @property
    def began(self) -> Position:
        """Where the stream that `open` made begins."""

    def setup(self, after: Position | None = None, schemas: Schemas | None = None) -> object:
        """Prepares the database; idempotent. `SetupError` says what is missing and who can grant it. With `after`, what
        an earlier run prepared must still be there: made anew, it would skip changes (invariant 7). What `schemas`
        remember of the server is compared before anything else is said of it. A source that must tell later what has
        changed since then notes in `schemas` how it is now."""

    def other_server(self, after: Position, schemas: Schemas) -> str:
        """For a person who is about to give up what follows `after`: says so if this is not the server that was
        captured (the dsn may be wrong), else empty."""

    def open(self, after: Position | None, schemas: Schemas, *, confirmed: Position | None, mark_events: int) -> None:
        """Begins to stream what committed after `after`. `confirmed` is the last position this pipeline acknowledged: a
        source that was moved beyond both has lost changes, which is a `PositionLost` (invariant 7)."""

    def changes(self, wait: float) -> Iterator[Change]:
        """What has come since the last call, in order; ends when there is no more for now. Waits up to `wait` seconds
        for a first change, then ends without one: between two calls the loop acknowledges, and may stop. A call that
        was not exhausted is followed by `close` and `open`, never by another call."""

    def compare(self, a: Position, b: Position) -> Ordering | None:
        """How `a` stands to `b`; None where neither follows from the other: positions of two servers or two kinds, or
        of histories that parted. Connects to nothing. `ConfigError` if one is no position of this source."""

    def renew(self, schemas: Schemas | None = None) -> Position:
        """Forgets the position at the database and begins a new one, now; answers it. Only an operator asks for this:
        what happened in between is not captured (invariant 7). What it remembers of its server in `schemas` begins
        anew too: the gap covers whatever it said about tables."""

    def pass_over(
        self, after: Position, through: Position | None, schemas: Schemas, *, confirmed: Position | None
    ) -> Passage:
        """What is lost, and where the stream goes on, when an operator gives up everything after `after` and up to
        `through`; without that, the one transaction that comes next. The database stays as it is: the log is told to
        go on there, and `schemas` may keep that it was an operator who said so, which holds only if the log does.
        `ConfigError` if the database does not have that position, `PositionLost` if it cannot go on after `after`."""

    def accept(self, subject: str, schemas: Schemas) -> tuple[Notice, ...]:
        """An operator has dealt with what notices of `subject` say happened: they are forgotten, durably. Answers them.
        A notice of something that is still so is not of that kind: it goes when it is no longer true."""

    def due(self, delivered: Position | None, *, caught_up: bool) -> Position | None:
        """The position to confirm to the database now; None while there is none, or one was confirmed just before.

        Never beyond `delivered` (invariant 2), except that a source which is `caught_up` (everything decoded so far is
        delivered) and idle may move on, so that the database need not keep its log for nothing."""

    def acknowledge(self, position: Position) -> None:
        """Tells the database that it may forget what is before `position`, as returned by `due`."""

    def notices(self) -> tuple[Notice, ...]:
        """What an operator must know now although the stream goes on. Cheap: asked with every progress report."""

    def lag_bytes(self) -> int | None:
        """How much of its log the database still keeps for us, if it says."""

    def doctor(self, resting: Resting | None = None) -> Iterable[Check]:
        """With `resting`, also whether the database still has all that follows it, and for how long."""

    def close(self) -> None: ...


@runtime_checkable
class SlotHolder(Protocol):
    """A source for which its database keeps a part of its log, and says how much."""

    def slot_bytes(self) -> int | None:
        """None before it was looked at."""


@runtime_checkable
class Fencing(Protocol):
    """A source whose database lets one connection at a time read, and keeps that of a process that is gone or cut off
    for as long as it has not noticed."""

    takes_over: bool
    """The process before us lost the pipeline's lease and never gave it back: what it left connected is ended, not
    waited for. Set before `open`."""


@runtime_checkable
class Triggered(Protocol):
    """A source that can have its database tell changes of tables, by triggers that an administrator must allow."""

    def trigger_script(self) -> str:
        """The SQL that makes them, for who may."""

    def remove_triggers(self) -> list[str]:
        """Drops them, for all sources of the database; says what was there. No position is lost."""


@runtime_checkable
class Removable(Protocol):
    """A source that makes something in its database which it can take out again."""

    def uninstall(self) -> list[str]:
        """Drops what is there for this source and no other; says what that was. The position is lost with it."""


class SourceConfig(Config):
    """The field every source has; each source's model extends it."""

    id: str = Field(
        min_length=1,
        description="Name of the source, part of every event's id: no other pipeline has one of this name.",
    )

    @property
    def announces_changes(self) -> bool:
        """Whether sinks are to follow changes of tables; else they keep the tables that they have."""
        return True
