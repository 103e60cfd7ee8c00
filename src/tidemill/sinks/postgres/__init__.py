"""PostgreSQL: each table of the source as a table, always in the state that the source had.

A delivery is one transaction. A window of its rows comes down to one row per key, goes into a temporary table by COPY
and from there into the table: deletes, upserts, and updates of exactly the columns that the source sent. The next
window is made meanwhile. What was delivered is written in the same transaction (`pg_resume`), so a replay
changes nothing.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from tidemill.contracts import BaseSink, Capabilities, Check, Place, SinkConfig
from tidemill.errors import ConfigError, Poisoned, Refused
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.position import Offset
from tidemill.model.schema_change import COLUMN_KINDS, SchemaChange, SchemaChangeKind, SchemaPlan
from tidemill.model.table import Table
from tidemill.model.template import Template
from tidemill.sinks._shared.pg_client import address, connect, explain_errors, is_about_structure
from tidemill.sinks._shared.pg_resume import StateConfig
from tidemill.sinks._shared.places import database
from tidemill.sinks._shared.prefetch import prefetch
from tidemill.sinks._shared.resume_scheme import fresh_units
from tidemill.sinks._shared.unfollowed import Looks
from tidemill.sinks.postgres.audit import PostgresAudit
from tidemill.sinks.postgres.older import StructureMemories
from tidemill.sinks.postgres.recovery import Recoveries
from tidemill.sinks.postgres.resume import PlanChanged, Positions, PostgresResumption
from tidemill.sinks.postgres.tables import PostgresTables, Rules
from tidemill.sinks.postgres.target import CREATE_STATE, Target
from tidemill.sinks.postgres.target import columns as target_columns
from tidemill.sinks.postgres.windows import Window, Windows
from tidemill.sinks.postgres.write import Applier, TooMany

if TYPE_CHECKING:
    from tidemill.sinks._shared.pg_client import Connection

_AUDIT_SECONDS = 86_400.0  # one statement compares a whole table
_TURNS = 5  # of workers that change the plan at the same time


class PostgresSinkConfig(StateConfig):
    table: str = Field(
        default="${source.schema}.${source.table}",
        min_length=1,
        description="Name of the target table, a template over source.database, source.schema and source.table.",
    )
    create_tables: bool = Field(
        default=True, description="Create missing tables, and follow changes of the source's tables."
    )
    allow_destructive_ddl: bool = Field(
        default=False,
        description="Also drop columns that the source dropped, and change types where values may be lost.",
    )
    keyless: Literal["refuse", "append"] = Field(
        default="refuse", description="Tables without a key: refused, or only appended to (inserts, no updates)."
    )
    rewind: Literal["refuse", "apply"] = Field(
        default="refuse",
        description="Events from before the last batch: refused, as from a worker that woke up late, or applied again. "
        "The last batch alone is a replay, and skipped.",
    )
    types: dict[str, str] = Field(
        default_factory=dict, description="Types to create columns with, by the source's type: {datetime: text}."
    )

    @field_validator("table")
    @classmethod
    def _names_a_table(cls, value: str) -> str:
        try:
            parts = split(value)
        except ConfigError as error:
            raise ValueError(f"{error.what}. {error.fix}") from error
        if not all(part.is_constant for part in parts):
            raise ValueError("a table's name cannot depend on a row; use source.database, source.schema, source.table")
        return value

    def occupies(self) -> tuple[Place, ...]:
        name = self.table if len(split(self.table)) == 2 else f"public.{self.table}"
        where = database(self.dsn)
        return (Place(f"postgresql://{where}/{name}"),) if where else ()


def split(template: str) -> list[Template]:
    """Schema and table, or the table alone: cut at the dot between them, not at the dots inside of ${}."""
    found = [""]
    for part in re.findall(r"\$\{[^}]*\}?|\.|[^.$]+|\$", template):
        if part == ".":
            found.append("")
        else:
            found[-1] += part
    if len(found) > 2:
        raise ConfigError(f'"{template}" has {len(found)} parts', fix="Write schema.table or table.")
    return [Template(text) for text in found]


class PostgresSink(BaseSink[PostgresSinkConfig]):
    Config: ClassVar[type[SinkConfig]] = PostgresSinkConfig
    mechanism: ClassVar[str] = (
        "One transaction per lane and batch: upserts by key, and the record of what it delivered."
    )
    capabilities = Capabilities(schema_changes=COLUMN_KINDS, upsert=True)
    tier = Tier.EFFECTIVELY_ONCE
    config: PostgresSinkConfig

    def __init__(self, config: PostgresSinkConfig) -> None:
        super().__init__(config)
        self._name = split(config.table)
        self._where = f'sink "{config.id}", {address(config.dsn)}'
        self._db: Connection | None = None
        self._targets: dict[str, Target] = {}  # of each source table: the structure that came last
        self._looks = Looks()

    @classmethod
    def capabilities_of(cls, config: PostgresSinkConfig) -> Capabilities:
        if not config.create_tables:
            return cls.capabilities.without(*SchemaChangeKind)
        return (
            cls.capabilities if config.allow_destructive_ddl else cls.capabilities.without(SchemaChangeKind.DROP_COLUMN)
        )

    def plan(self, change: SchemaChange) -> SchemaPlan:
        """Looks in a transaction of its own that cannot write. A table that the source dropped stays."""
        if change.after is None:
            return SchemaPlan()
        with explain_errors(self._where), contextlib.closing(connect(self.config, self._where)) as db, db.transaction():
            db.execute("SET TRANSACTION READ ONLY")
            schema, name = self._render(change.after, change.source)
            return SchemaPlan(self._tables(db).plan(change.after, schema, name, change.offset))

    def apply(self, change: SchemaChange) -> None:
        if change.after is None:
            return
        try:
            with explain_errors(self._where):
                db = self._connection()
                with db.transaction():
                    self.target(db, change.after, change.source, change.offset, redelivered=False)
        except BaseException:
            self.close()
            raise

    def adopt(self, change: SchemaChange) -> None:
        if change.after is None:
            return
        schema, name = self._render(change.after, change.source)
        with explain_errors(self._where), contextlib.closing(connect(self.config, self._where)) as db, db.transaction():
            self._tables(db).adopt(change.after, schema, name, change.offset)

    def write(self, delivery: Delivery) -> Receipt:
        began = time.perf_counter()
        try:
            with explain_errors(self._where):
                work, resumption = self._with_a_second_look(delivery)
        except BaseException:
            # Tables and temporary tables that are known may be of the transaction that was taken back.
            self.close()
            raise
        total = time.perf_counter() - began
        return Receipt(
            self.config.id, delivery.lane, work.windows.events, work.applier.bytes, resumption.skipped,
            encode_seconds=work.encode_seconds, write_seconds=total - work.encode_seconds,
            notices=self._looks.pack(),
        )  # fmt: skip

    def _with_a_second_look(self, delivery: Delivery) -> tuple[_Work, PostgresResumption]:
        """What is known of a table may be of yesterday: somebody may have changed or dropped it since."""
        import psycopg

        known = bool(self._targets)
        try:
            return self._deliver(delivery)
        except psycopg.Error as error:
            if not (known and is_about_structure(error)):
                raise
        self.close()
        return self._deliver(delivery)

    def _deliver(self, delivery: Delivery) -> tuple[_Work, PostgresResumption]:
        db = self._connection()
        positions = Positions(
            db, self.config.state_schema, self.config.id, rewind=self.config.rewind, where=self._where
        )
        for turn in range(_TURNS):
            positions.settle(delivery)
            try:
                with db.transaction():
                    work = _Work(self, db, delivery)
                    resumption = positions.begin(delivery)
                    work.run(fresh_units(delivery, resumption))
                    resumption.note()
                return work, resumption
            except PlanChanged:
                if turn == _TURNS - 1:
                    raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None
        self._targets.clear()
        self._looks.forget()

    def audit(self, table: Table, source: str, *, values: bool = False) -> PostgresAudit:
        with explain_errors(self._where):
            db = connect(self.config.model_copy(update={"statement_timeout_seconds": _AUDIT_SECONDS}), self._where)
            try:
                schema, name = self._render(table, source)
                if others := self._others(db, table, source):
                    raise Refused(
                        f"{schema}.{name} has rows of {others} too", where=self._where,
                        fix="verify works with tables that no other table fills: which of the rows are extra is not "
                        "known.",
                    )  # fmt: skip
                there = target_columns(db, schema, name)
                return PostgresAudit(db, schema, name, table, there, self._where, values=values)
            except BaseException:
                db.close()
                raise

    def begin_recovery(self, tables: Sequence[Table], source: str, since: Offset) -> None:
        with explain_errors(self._where), contextlib.closing(connect(self.config, self._where)) as db:
            self._prepare(db)
            with db.transaction():
                recoveries = Recoveries(db, self.config.state_schema)
                for table in tables:
                    recoveries.begin(self._render(table, source), table.key, since)

    def end_recovery(self, table: Table, source: str, since: Offset, *, remove: bool) -> int:
        patient = self.config.model_copy(update={"statement_timeout_seconds": _AUDIT_SECONDS})
        with explain_errors(self._where), contextlib.closing(connect(patient, self._where)) as db:
            db.execute("SET row_security = off")  # a policy that hides rows is an error
            others = self._others(db, table, source) if remove else ""
            with db.transaction():
                recoveries = Recoveries(db, self.config.state_schema)
                place = self._render(table, source)
                removed = recoveries.end(place, since, remove=remove and not others, where=self._where)
        if others:
            raise Refused(
                f"rows that the source no longer has stay in {'.'.join(place)}, which {others} fills too",
                where=self._where,
                fix="Whose they are is not known: remove them yourself.",
            )
        if removed is None:
            raise Refused(
                f"rows that the source no longer has stay in {'.'.join(place)}, whose key changed meanwhile",
                where=self._where,
                fix="tidemill verify FILE says which; with --repair it deletes them.",
            )
        return removed

    def _others(self, db: Connection, table: Table, source: str) -> str:
        """Tables that fill the target besides this one, for people; they may be of other pipelines."""
        schema, name = self._render(table, source)
        writers = StructureMemories(db, self.config.state_schema).read(schema, name).writers
        return ", ".join(
            sorted(f'{other} of "{of}"' for of, other in writers if (of, other) != (source, table.full_name))
        )

    def doctor(self) -> Iterable[Check]:
        from tidemill.sinks.postgres.checks import run_checks

        return run_checks(self.config, self._where)

    def target(self, db: Connection, table: Table, source: str, since: Offset, *, redelivered: bool) -> Target:
        """Asked for once; a change of the table makes a new one."""
        found = self._targets.get(table.full_name)
        if found is None or not self.knows(table):
            schema, name = self._render(table, source)
            found = self._tables(db).follow(table, schema, name, since, source=source, redelivered=redelivered)
            self._targets[table.full_name] = found
            self._looks.record(table.full_name, found.notices)
        return found

    def _tables(self, db: Connection) -> PostgresTables:
        rules = Rules(
            self.config.create_tables, self.config.allow_destructive_ddl, self.config.types,
            self.config.keyless == "append", self.config.id,
        )  # fmt: skip
        return PostgresTables(db, self.config.state_schema, rules, self._where)

    def knows(self, table: Table) -> bool:
        found = self._targets.get(table.full_name)
        if found is None:
            return False
        return found.table.lineage == table.lineage

    def hope(self) -> None:
        """After a replay new rows are new again."""
        for target in self._targets.values():
            target.optimistic = True

    def _render(self, table: Table, source: str) -> tuple[str, str]:
        parts = [part.constant(table, source) for part in self._name]
        if len(parts) == 1:
            return "public", parts[0]
        # MySQL has no schemas: what it calls a database is the nearest thing.
        return parts[0] or table.database or "public", parts[1]

    def _connection(self) -> Connection:
        if self._db is None or self._db.closed:
            self._db = connect(self.config, self._where)
            self._targets.clear()
            with explain_errors(self._where):
                self._prepare(self._db)
        return self._db

    def _prepare(self, db: Connection) -> None:
        from psycopg import sql

        positions = Positions(db, self.config.state_schema, self.config.id, rewind="refuse", where=self._where)
        positions.create(
            sql.SQL(CREATE_STATE).format(table=sql.Identifier(self.config.state_schema, "tidemill_tables"))
        )
        # Keys of a window are looked up by index, however large the target and whatever its statistics say.
        db.execute("SET enable_hashjoin = off")
        db.execute("SET enable_mergejoin = off")
        db.execute("SET row_security = off")  # a policy that hides rows is an error, not a DELETE of nothing


class _Work:
    """One delivery: its windows one after another, each applied while the next one is made."""

    def __init__(self, sink: PostgresSink, db: Connection, delivery: Delivery) -> None:
        self.applier = Applier(db, Recoveries(db, sink.config.state_schema))
        self.windows = Windows(keyless=sink.config.keyless == "append")
        self.encode_seconds = 0.0  # that the server had to wait for
        self._sink = sink
        self._db = db
        self._delivery = delivery
        sink.hope()

    def run(self, blocks: Iterator[Block]) -> None:
        try:
            with contextlib.closing(prefetch(self.windows.of(blocks))) as windows:
                while (window := self._next(windows)) is not None:
                    target = self._sink.target(
                        self._db, window.table, self._delivery.source, window.since,
                        redelivered=self._delivery.redelivered,
                    )  # fmt: skip
                    self.applier.apply(target, window.stretches)
        except TooMany:
            pass
        if bad := self.windows.unwritable | self.applier.bad:
            raise Poisoned(
                bad, lacking=self.applier.lacking - self.windows.unwritable.keys(), where=self._sink._where,
                fix="Mend the rows or the target's constraints; with dead letters on, the others are delivered.",
            )  # fmt: skip

    def _next(self, windows: Iterator[Window]) -> Window | None:
        began = time.perf_counter()
        try:
            return next(windows, None)
        finally:
            self.encode_seconds += time.perf_counter() - began


component = PostgresSink
