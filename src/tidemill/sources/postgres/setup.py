"""Makes a database ready for capture, in order, each step its own error; what is ready already is left alone.

    server and privileges -> REPLICA IDENTITY -> publication -> missing tables added -> a note of it -> slot

The slot comes last: from its first moment on, all that it keeps can be decoded. Once there is a position nothing is
made anew and no table is added here: that is the watch's (`watch`), which says what may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from tidemill.contracts import Schemas
from tidemill.model.position import Position
from tidemill.sources.postgres import errors, resume
from tidemill.sources.postgres import identity as server_identity
from tidemill.sources.postgres.lsn import format_lsn
from tidemill.sources.postgres.publication import keys
from tidemill.sources.postgres.publication.published import Published, PublishedRelation
from tidemill.sources.postgres.tables import PARTITIONS, FoundTable

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig


@dataclass(frozen=True, slots=True)
class PreparedPostgres:
    """`did` says what was changed in the database (empty the second time), `notes` what a person may want to know."""

    tables: tuple[str, ...]
    slot: str
    publication: str
    position: Position
    did: tuple[str, ...]
    notes: tuple[str, ...]


def prepare(
    db: psycopg.Connection,
    config: PostgresConfig,
    after: Position | None,
    schemas: Schemas | None,
    before_slot: Callable[[], None],
) -> PreparedPostgres:
    did: list[str] = []
    notes: list[str] = []
    with errors.translate(config.where):
        # Two processes that set up the same source at once take turns.
        db.execute("SELECT pg_advisory_lock(hashtext('tidemill'), hashtext(%s))", [config.slot_name])
        check_version(db, config)
        if after is not None and schemas is not None:
            server_identity.check(db, config, schemas.recall)
        check_wal_level(db, config)
        slot = resume.read(db, config.slot_name)
        if slot is None and after is not None:
            raise errors.SlotLost(
                f'replication slot "{config.slot_name}" is gone',
                where=f"{config.where}, last position {after}",
                fix=errors.RECOVER,
            )
        if slot is None:
            check_free_slot(db, config)
        check_privilege(db, config)
        published = Published.read(db, config)
        if published.publication is None and after is not None:
            raise errors.publication_lost_error(config, "is gone", f"last position {after}")
        check_via_root(published, config)
        if slot is None and schemas is not None:
            keys.note(db, config.slot_name, published.units, schemas, afresh=True)
        if config.replica_identity != "keep":
            did.extend(
                set_identities(db, config, [u.found for u in published.units.values() if u.wanted and u.published])
            )
        if after is None:
            _publish(db, config, published, did)
        _describe(db, published, notes)
        if slot is None:
            before_slot()
            resume.create(db, config)
            did.append(f'created replication slot "{config.slot_name}"')
            slot = resume.read(db, config.slot_name)
        assert slot is not None
        resume.verify(db, slot, config)
        db.execute("SELECT pg_advisory_unlock_all()")
    names = tuple(sorted(unit.name for unit in published.units.values() if unit.wanted))
    return PreparedPostgres(names, config.slot_name, config.publication_name, format_lsn(slot.confirmed), tuple(did),
                    tuple(notes))  # fmt: skip


def check_version(db: psycopg.Connection, config: PostgresConfig) -> None:
    if db.info.server_version < 140000:
        raise errors.ServerTooOld(
            f"PostgreSQL {db.info.server_version // 10000} is too old",
            where=config.where,
            fix="Upgrade it to 14 or newer.",
        )


def check_wal_level(db: psycopg.Connection, config: PostgresConfig) -> None:
    level = setting(db, "wal_level")
    if level != "logical":
        raise errors.WalLevelTooLow(
            f"wal_level is {level}, not logical", where=config.where,
            fix="ALTER SYSTEM SET wal_level = logical, then restart PostgreSQL"
                " (on Amazon RDS: rds.logical_replication = 1).",
        )  # fmt: skip


def check_free_slot(db: psycopg.Connection, config: PostgresConfig) -> None:
    limit, used = int(setting(db, "max_replication_slots")), _count(db, "pg_replication_slots")
    if used >= limit:
        idle = [r[0] for r in db.execute("SELECT slot_name FROM pg_replication_slots WHERE NOT active ORDER BY 1")]
        hint = f" Unused now: {', '.join(idle[:5])}." if idle else ""
        raise errors.NoFreeSlot(
            f"all {limit} replication slots are taken", where=config.where,
            fix=f"Drop a slot that nobody needs, or raise max_replication_slots and restart PostgreSQL.{hint}",
        )  # fmt: skip
    if _count(db, "pg_stat_replication") >= int(setting(db, "max_wal_senders")):
        raise errors.no_free_sender(config.where)


def check_privilege(db: psycopg.Connection, config: PostgresConfig) -> None:
    # Amazon RDS grants replication through membership of a role of its own.
    row = db.execute(
        """
        SELECT r.rolreplication OR r.rolsuper OR EXISTS (
            SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(r.oid, m.oid, 'member'))
        FROM pg_roles r WHERE r.rolname = current_user
        """
    ).fetchone()
    if not row or not row[0]:
        raise errors.privilege_error(config.where)


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """What a table, or one partition of it, logs of old rows. `usable` means that UPDATE and DELETE work once it is
    published: without an identity the server refuses them, to everybody."""

    table: FoundTable
    schema: str
    name: str
    setting: str
    usable: bool


_USABLE = """
    CASE c.relreplident WHEN 'f' THEN true WHEN 'n' THEN false ELSE EXISTS (
        SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END) END"""


def identities(db: psycopg.Connection, found: Sequence[FoundTable]) -> list[ReplicaIdentity]:
    """Of every table and every partition: a partition does not inherit the setting of its parent."""
    by_oid = {t.oid: t for t in found}
    rows = db.execute(
        f"""
        WITH RECURSIVE {PARTITIONS}
        SELECT t.root, n.nspname, c.relname, c.relreplident::text,
               {_USABLE}
        FROM parts t JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') ORDER BY 2, 3
        """.encode(),
        [list(by_oid)],
    )
    return [ReplicaIdentity(by_oid[root], schema, name, value, ok) for root, schema, name, value, ok in rows]


def without_identity(db: psycopg.Connection, config: PostgresConfig, tables: Sequence[int]) -> dict[int, bool]:
    """Which of these have not the identity that is configured, each with whether it has a usable one. Waits for no lock
    on them."""
    rows = db.execute(
        f"""
        SELECT oid, usable FROM (
            SELECT c.oid, c.relreplident <> 'f' AS partly, {_USABLE} AS usable
            FROM pg_class c WHERE c.oid = ANY (%s) AND c.relkind = 'r') t
        WHERE NOT usable OR (partly AND %s) ORDER BY 1
        """.encode(),
        [list(tables), config.replica_identity == "full"],
    )
    return {oid: bool(usable) for oid, usable in rows}


def full_identity(schema: str, name: str) -> sql.Composed:
    return sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(sql.Identifier(schema, name))


def set_full(db: psycopg.Connection, config: PostgresConfig, schema: str, name: str) -> None:
    statement = full_identity(schema, name)
    remedy = f"Run as the table's owner: {statement.as_string(db)}"
    with errors.translate(config.where, errors.NoReplicaIdentity, remedy):
        db.execute(statement)


def set_identities(db: psycopg.Connection, config: PostgresConfig, found: Sequence[FoundTable]) -> list[str]:
    """What was done, so that updates and deletes go on working once the tables are published."""
    did: list[str] = []
    for identity in identities(db, found):
        name = f"{identity.schema}.{identity.name}"
        if config.replica_identity == "keep":
            if identity.usable:
                continue
            raise errors.NoReplicaIdentity(
                f"{name} has no key and no replica identity: once published, its updates and deletes would fail",
                where=config.where,
                fix=f"Add a primary key, or run: {full_identity(identity.schema, identity.name).as_string(db)};"
                    " or set replica_identity: auto.",
            )  # fmt: skip
        if identity.setting == "f" or (identity.usable and config.replica_identity == "auto"):
            continue
        set_full(db, config, identity.schema, identity.name)
        did.append(f"set replica identity of {name} to full")
    return did


def check_via_root(published: Published, config: PostgresConfig) -> None:
    publication = published.publication
    if publication is None or publication.via_root == config.publish_via_partition_root:
        return
    if any(unit.table.kind == "p" for unit in published.units.values()):
        wanted = str(config.publish_via_partition_root).lower()
        raise errors.PublicationProblem(
            f'publication "{config.publication_name}" has publish_via_partition_root ='
            f" {str(publication.via_root).lower()}, the configuration says {wanted}",
            where=config.where,
            fix=f"Run as its owner: {set_option(config, f'publish_via_partition_root = {wanted}')};"
                " or change publish_via_partition_root of the source. Changes that came under the other names meanwhile"
                f" are not captured under these: {errors.RECOVER}",
        )  # fmt: skip


def set_option(config: PostgresConfig, option: str) -> str:
    """The statement that a person can run."""
    return sql.SQL("ALTER PUBLICATION {} SET ({})").format(
        sql.Identifier(config.publication_name), sql.SQL(option)
    ).as_string()  # fmt: skip


def _publish(db: psycopg.Connection, config: PostgresConfig, published: Published, did: list[str]) -> None:
    lacking = [unit.found for unit in published.lacking]
    did.extend(set_identities(db, config, lacking))
    if published.publication is None:
        _change(db, config, creation(db, config, lacking))
        did.append(f'created publication "{config.publication_name}" for {len(lacking)} tables')
    elif lacking:
        _change(db, config, addition(config, lacking))
        did.append(f'added to publication "{config.publication_name}": {", ".join(t.full_name for t in lacking)}')


def include(db: psycopg.Connection, config: PostgresConfig, table: FoundTable) -> None:
    """A table that came later, alone, so that what keeps one out does not keep out the others."""
    set_identities(db, config, [table])
    _change(db, config, addition(config, [table]))


def creation(db: psycopg.Connection, config: PostgresConfig, found: Sequence[FoundTable]) -> sql.Composed:
    tables = sql.SQL(" FOR TABLE {}").format(_list(found)) if found else sql.SQL("")
    return sql.SQL("CREATE PUBLICATION {}{} WITH ({})").format(
        sql.Identifier(config.publication_name), tables, _options(db, config)
    )


def addition(config: PostgresConfig, found: Sequence[FoundTable]) -> sql.Composed:
    return sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(config.publication_name), _list(found))


def _describe(db: psycopg.Connection, published: Published, notes: list[str]) -> None:
    notes.extend(unmatched.what for unmatched in published.unmatched)
    publication = published.publication
    if publication is None:
        return
    extra = sorted(r.full_name for r in published.relations.values() if r.member and not _wanted(published, r))
    if extra:
        notes.append(f"the publication has more tables, which are captured too: {', '.join(extra)}")
    if publication.missing_kinds:
        notes.append(f"the publication leaves out: {', '.join(publication.missing_kinds)}")
    if db.info.server_version >= 180000 and not publication.generated:
        notes.append("the publication leaves out generated columns (publish_generated_columns = none)")


def _wanted(published: Published, relation: PublishedRelation) -> bool:
    unit = published.units.get(relation.oid)
    return unit is None or unit.wanted


def _options(db: psycopg.Connection, config: PostgresConfig) -> sql.Composable:
    # Before 18, pgoutput never sent generated columns.
    generated = ", publish_generated_columns = stored" if db.info.server_version >= 180000 else ""
    via_root = "true" if config.publish_via_partition_root else "false"
    return sql.SQL(f"publish_via_partition_root = {via_root}{generated}")


def _change(db: psycopg.Connection, config: PostgresConfig, statement: sql.Composed) -> None:
    text = statement.as_string(db)
    remedy = f"Run as the tables' owner with CREATE on the database (or a superuser): {text}"
    with errors.translate(config.where, errors.PublicationProblem, remedy):
        db.execute(statement)


def _list(found: Sequence[FoundTable]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(t.schema, t.name) for t in found)


def setting(db: psycopg.Connection, name: str) -> str:
    row = db.execute("SELECT setting FROM pg_settings WHERE name = %s", [name]).fetchone()
    return str(row[0]) if row else ""


def _count(db: psycopg.Connection, view: str) -> int:
    row = db.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier("pg_catalog", view))).fetchone()
    return int(row[0]) if row else 0
