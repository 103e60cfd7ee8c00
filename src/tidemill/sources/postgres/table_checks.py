"""What `tidemill doctor` says of the tables and the publication: what capture would find, and what it may change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from tidemill.contracts import Check, Outcome, Resting
from tidemill.errors import TidemillError
from tidemill.model.snapshot import SnapshotMode
from tidemill.sources.postgres import errors, setup
from tidemill.sources.postgres.publication.notices import list_notices
from tidemill.sources.postgres.publication.published import Published, Unit
from tidemill.sources.postgres.publication.watch import PublicationState, recall

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig


def check_tables(db: psycopg.Connection, config: PostgresConfig, resting: Resting | None) -> Iterator[Check]:
    try:
        with errors.translate(""):
            now = Published.read(db, config)
            wanted = [unit for unit in now.units.values() if unit.wanted]
            lacking = [i for i in setup.identities(db, [u.found for u in wanted]) if not i.usable]
            toasted = _find_toasted(db, wanted)
            hidden = _find_hidden(db, wanted)
            seen = recall(resting.recall) if resting else None
    except TidemillError as error:
        yield Check("tables", Outcome.FAIL, error.what, error.fix)
        return
    yield Check("tables", Outcome.PASS, f"{len(wanted)} found")
    for unmatched in now.unmatched:
        yield Check("tables", Outcome.WARN, unmatched.what, unmatched.fix)
    yield _identity(config, now, lacking)
    if toasted:
        yield Check(
            "large values", Outcome.WARN, f"an update that leaves them alone does not send them: {few(toasted)}",
            "Sinks with partial updates keep them; for whole rows always, ALTER TABLE ... REPLICA IDENTITY FULL.",
        )  # fmt: skip
    if hidden:
        copies = config.snapshot is not None and config.snapshot.mode is not SnapshotMode.NEVER
        outcome = Outcome.FAIL if copies else Outcome.WARN
        what = f"policies hide rows from the role, so that no snapshot can read them: {few(hidden)}"
        yield Check("row level security", outcome, what, errors.ROW_SECURITY)
    yield from _publication(db, config, now, seen, resting)
    for mark in seen.marks if seen else ():
        notice = mark.notice()
        yield Check(f"{notice.code} {notice.subject}", Outcome.WARN, notice.what, notice.fix)


def _identity(config: PostgresConfig, now: Published, lacking: Sequence[setup.ReplicaIdentity]) -> Check:
    if not lacking:
        return Check("replica identity", Outcome.PASS, "every table has one")
    detail = f"none on {few([f'{i.schema}.{i.name}' for i in lacking])}"
    if config.replica_identity == "keep":
        return Check("replica identity", Outcome.FAIL, detail, "Add a primary key, or set replica_identity: auto.")
    foreign = [i for i in lacking if not now.units[i.table.oid].table.ours]
    if foreign:
        tables = [sql.Identifier(i.schema, i.name).as_string() for i in foreign]
        fix = f"Run as their owner: {'; '.join(f'ALTER TABLE {table} REPLICA IDENTITY FULL' for table in tables)}."
        return Check("replica identity", Outcome.FAIL, f"{detail}, and the role may not set it", fix)
    fix = "The setup will set it to FULL, which logs whole rows; add a primary key to avoid that."
    return Check("replica identity", Outcome.WARN, detail, fix)


def _publication(
    db: psycopg.Connection,
    config: PostgresConfig,
    now: Published,
    seen: PublicationState | None,
    resting: Resting | None,
) -> Iterator[Check]:
    name = config.publication_name
    if now.publication is None and resting is not None:
        yield Check("publication", Outcome.FAIL, f'"{name}" is gone, and what happened without it too', errors.RECOVER)
        return
    if now.publication is None:
        yield _creatable(db, config, now)
        return
    if seen and seen.published.publication and seen.published.publication.oid != now.publication.oid:
        detail = f'"{name}" was dropped and made anew: what happened in between was left out'
        yield Check("publication", Outcome.FAIL, detail, errors.RECOVER)
        return
    try:
        setup.check_via_root(now, config)
    except TidemillError as error:
        yield Check("publication", Outcome.FAIL, error.what, error.fix)
        return
    addable = [u for u in now.lacking if u.table.ours and now.publication.ours]
    foreign = [u for u in now.lacking if u not in addable]
    if foreign:
        statement = setup.addition(config, [u.found for u in foreign]).as_string()
        detail = f'"{name}" lacks {few([u.name for u in foreign])}, and the role may not add them'
        yield Check("publication", Outcome.FAIL, detail, f"Run as the owner of both: {statement}.")
    if addable:
        detail = f'"{name}" lacks {few([u.name for u in addable])}'
        yield Check("publication", Outcome.WARN, detail, "They will be added; what changed before is not captured.")
    partial = [n for n in list_notices(config, now, {}) if n.code in ("publication-partial", "table-filtered")]
    for notice in partial:
        detail = notice.what if notice.code == "publication-partial" else f"{notice.subject}: {notice.what}"
        yield Check("publication", Outcome.WARN, detail, notice.fix)
    if not (addable or foreign or partial):
        yield Check("publication", Outcome.PASS, f'"{name}" has every table')


def _creatable(db: psycopg.Connection, config: PostgresConfig, now: Published) -> Check:
    """Whether the setup can make it: that takes CREATE on the database, and to own every table."""
    name, wanted = config.publication_name, [u for u in now.units.values() if u.wanted]
    row = db.execute("SELECT has_database_privilege(current_database(), 'CREATE'), current_user").fetchone()
    allowed, role = row or (False, "")
    owners = _owners(db, [u.table.oid for u in wanted if not u.table.ours])
    if allowed and not owners:
        return Check("publication", Outcome.PASS, f'"{name}" does not exist yet, the setup makes it')
    grants = [] if allowed else [f"GRANT CREATE ON DATABASE {_quote(db.info.dbname)} TO {_quote(role)}"]
    grants += [f"GRANT {_quote(owner)} TO {_quote(role)}" for owner in owners]
    foreign = few([u.name for u in wanted if not u.table.ours])
    why = " and ".join(
        [*(["has no CREATE on the database"] if not allowed else []), *([f"does not own {foreign}"] if owners else [])]
    )
    made = setup.creation(db, config, [u.found for u in wanted]).as_string()
    return Check(
        "publication", Outcome.FAIL, f'"{name}" does not exist, and the role may not make it: it {why}',
        f"Run: {'; '.join(grants)}. Or make it as the tables' owner: {made}.",
    )  # fmt: skip


def _owners(db: psycopg.Connection, tables: list[int]) -> list[str]:
    rows = db.execute(
        "SELECT DISTINCT pg_get_userbyid(relowner)::text FROM pg_class WHERE oid = ANY (%s) ORDER BY 1", [tables]
    )
    return [owner for (owner,) in rows]


def _quote(name: str) -> str:
    return sql.Identifier(name).as_string()


def _find_toasted(db: psycopg.Connection, wanted: Sequence[Unit]) -> list[str]:
    """Columns whose values may be stored out of line, in tables that log only the key of old rows."""
    rows = db.execute(
        """
        SELECT n.nspname || '.' || c.relname || '.' || a.attname
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.oid = ANY (%s) AND c.relreplident IN ('d', 'i') AND a.attnum > 0 AND NOT a.attisdropped
          AND a.attlen = -1 AND a.attstorage IN ('x', 'e') AND (a.atttypmod = -1 OR a.atttypmod > 2000) ORDER BY 1
        """,
        [[u.table.oid for u in wanted]],
    )
    return [name for (name,) in rows]


def _find_hidden(db: psycopg.Connection, wanted: Sequence[Unit]) -> list[str]:
    """Tables of which the role does not see every row. The stream has them all."""
    rows = db.execute(
        "SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = ANY (%s) AND row_security_active(c.oid) ORDER BY 1",
        [[oid for unit in wanted for oid in (unit.table.oid, *unit.leaves)]],
    )
    return [name for (name,) in rows]


def few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
