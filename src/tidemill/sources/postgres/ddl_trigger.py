"""The event triggers that write each change of a table into the stream: `ddl: {capture: trigger}`.

What is made, in one transaction and in a schema of its own:

    tidemill_ddl.tables             how each table was described last: what a change is compared with. UNLOGGED, so that
                                    no publication has it; after a crash of the server the next start fills it again
    tidemill_ddl.describe(oid)      a table as JSON, from the catalog
    tidemill_ddl.emit_commands()    of event trigger tidemill_ddl_commands, ON ddl_command_end
    tidemill_ddl.emit_drops()       of event trigger tidemill_ddl_drops, ON sql_drop
    tidemill_ddl.secret             the token that each message carries, because anybody may write a message with our
                                    prefix; the schema's comment has its hash. A materialized view, which no publication
                                    has either and a crash leaves

Each writes a transactional message (`pg_logical_emit_message`), so that it stands in the stream between the rows around
the statement, and is gone if the transaction is rolled back. A failure in them is a WARNING of the session, and never
that of the statement: then the stream's own announcement tells the new structure, as without triggers.
All sources of a database share them.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from tidemill.contracts import Check, Notice, Outcome
from tidemill.decoders.pgoutput import STATEMENT, WITNESS
from tidemill.errors import SetupError
from tidemill.sources.postgres.errors import translate
from tidemill.telemetry.events import warn

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig

SCHEMA = "tidemill_ddl"
COMMANDS, DROPS = f"{SCHEMA}_commands", f"{SCHEMA}_drops"
_LONGEST_TEXT = 100_000

_DESCRIBE = """
CREATE OR REPLACE FUNCTION tidemill_ddl.describe(relation oid) RETURNS json LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp SET "DateStyle" = 'ISO, YMD' SET "IntervalStyle" = 'iso_8601'
SET "TimeZone" = 'UTC' SET extra_float_digits = 3 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $describe$
SELECT json_build_object(
    'oid', c.oid::int8, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind, 'partition', c.relispartition,
    'identity', c.relreplident, 'comment', obj_description(c.oid, 'pg_class'),
    'server', current_setting('server_version_num')::int,
    'columns', (
        SELECT coalesce(json_agg(json_build_object(
            'number', a.attnum, 'name', a.attname, 'type', a.atttypid::int8, 'typmod', a.atttypmod,
            'printed', format_type(a.atttypid, a.atttypmod), 'not_null', a.attnotnull, 'generated', a.attgenerated,
            'identity', a.attidentity, 'default', pg_get_expr(d.adbin, d.adrelid),
            'comment', col_description(c.oid, a.attnum), 'has_missing', a.atthasmissing,
            'missing', CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END) ORDER BY a.attnum), '[]')
        FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    'key', (
        SELECT to_json((i.indkey::int2[])[0:i.indnkeyatts - 1]) FROM pg_index i
        WHERE i.indrelid = c.oid AND i.indisprimary),
    'identifying', (
        SELECT to_json((i.indkey::int2[])[0:i.indnkeyatts - 1]) FROM pg_index i
        WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
          AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END),
    'indexes', (
        SELECT coalesce(json_object_agg(k.relname, pg_get_indexdef(i.indexrelid) ORDER BY k.relname), '{{}}')
        FROM pg_index i JOIN pg_class k ON k.oid = i.indexrelid WHERE i.indrelid = c.oid AND NOT i.indisprimary),
    'publications', (
        SELECT coalesce(json_object_agg(p.pubname, json_build_object(
            'columns', {columns}, 'generated', {generated}, 'root', p.pubviaroot)), '{{}}')
        FROM pg_publication p LEFT JOIN pg_publication_rel m ON m.prpubid = p.oid AND m.prrelid = c.oid
        WHERE p.puballtables OR m.oid IS NOT NULL OR {schemas} OR EXISTS (
            SELECT FROM pg_publication_rel x WHERE x.prpubid = p.oid
            AND x.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid)))))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = relation
$describe$
"""

# The second message stands for nothing and is left out. PostgreSQL (15 to 18) gives a message the LSN where its record
# ends, which is that of the next record: a row of the outer transaction would come before the message of a
# subtransaction, which this is by its EXCEPTION or a savepoint (logicalmsg_decode, ReorderBufferIterCompare).
_EMIT = """
CREATE OR REPLACE FUNCTION tidemill_ddl.emit(relation oid, made bool, tag text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $emit$
DECLARE
    before json;
    after json := tidemill_ddl.describe(relation);
BEGIN
    IF NOT made THEN
        SELECT described INTO before FROM tidemill_ddl.tables t WHERE t.oid = relation;
    END IF;
    INSERT INTO tidemill_ddl.tables VALUES (relation, after)
    ON CONFLICT (oid) DO UPDATE SET described = excluded.described;
    PERFORM pg_logical_emit_message(true, '{prefix}', json_build_object(
        'version', 1, 'token', (SELECT token FROM tidemill_ddl.secret),
        'event', CASE WHEN made THEN 'create' ELSE 'alter' END, 'tag', tag,
        'text', left(current_query(), {longest}), 'before', before, 'after', after)::text);
    PERFORM pg_logical_emit_message(true, '{end}', '');
END
$emit$
"""

_COMMANDS = """
CREATE OR REPLACE FUNCTION tidemill_ddl.emit_commands() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $commands$
DECLARE
    changed record;
BEGIN
    FOR changed IN
        SELECT c.oid, bool_or(f.made) AS made FROM (
            SELECT CASE
                       WHEN d.object_type IN ('table', 'table column') THEN d.objid
                       WHEN d.object_type = 'index' THEN (SELECT indrelid FROM pg_index WHERE indexrelid = d.objid)
                       WHEN d.object_type = 'table constraint' THEN (
                           SELECT conrelid FROM pg_constraint WHERE oid = d.objid)
                   END AS relation,
                   CASE WHEN d.command_tag = 'ALTER SCHEMA' THEN d.objid END AS namespace,
                   d.object_type = 'table'
                   AND d.command_tag IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') AS made, d.place
            FROM pg_event_trigger_ddl_commands() WITH ORDINALITY AS d (
                classid, objid, objsubid, command_tag, object_type, schema_name, object_identity, in_extension,
                command, place)
        ) f JOIN pg_class c ON c.oid = f.relation OR c.relnamespace = f.namespace
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
          AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
        GROUP BY c.oid ORDER BY min(f.place), c.oid
    LOOP
        PERFORM tidemill_ddl.emit(changed.oid, changed.made, tg_tag);
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'this change was not written into the stream for Tidemill: %', sqlerrm;
END
$commands$
"""

_DROPS = """
CREATE OR REPLACE FUNCTION tidemill_ddl.emit_drops() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $drops$
DECLARE
    gone record;
    before json;
BEGIN
    FOR gone IN
        SELECT objid, schema_name, object_name FROM pg_event_trigger_dropped_objects()
        WHERE object_type = 'table' AND NOT is_temporary
    LOOP
        before := NULL;
        DELETE FROM tidemill_ddl.tables t WHERE t.oid = gone.objid RETURNING described INTO before;
        PERFORM pg_logical_emit_message(true, '{prefix}', json_build_object(
            'version', 1, 'token', (SELECT token FROM tidemill_ddl.secret), 'event', 'drop', 'tag', tg_tag,
            'text', left(current_query(), {longest}), 'before', before,
            'schema', gone.schema_name, 'name', gone.object_name, 'oid', gone.objid::int8)::text);
        PERFORM pg_logical_emit_message(true, '{end}', '');
    END LOOP;
    IF tg_tag <> 'ALTER TABLE' THEN  -- what went alone, or with something else: no command names its table
        FOR gone IN
            WITH o AS MATERIALIZED (
                SELECT * FROM pg_event_trigger_dropped_objects() WHERE NOT is_temporary
            ), found AS (
                SELECT CASE WHEN object_type = 'table column' THEN objid ELSE
                    to_regclass(format('%I.%I', address_names[1], address_names[2])) END AS oid
                FROM o WHERE object_type IN ('table column', 'default value', 'table constraint')
                UNION SELECT t.oid  -- the catalog no longer says whose index it was
                FROM tidemill_ddl.tables t, json_object_keys(t.described -> 'indexes') k (name), o
                WHERE EXISTS (SELECT FROM o WHERE object_type = 'index') AND tg_tag <> 'DROP TABLE'
                  AND o.object_type = 'index' AND o.object_name = k.name AND o.schema_name = t.described ->> 'schema'
            )
            SELECT c.oid FROM found JOIN pg_class c ON c.oid = found.oid
            WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' ORDER BY 1
        LOOP
            IF EXISTS (
                SELECT FROM tidemill_ddl.tables t
                WHERE t.oid = gone.oid AND t.described::text = tidemill_ddl.describe(gone.oid)::text
            ) THEN
                CONTINUE;  -- a constraint that is not described
            END IF;
            PERFORM tidemill_ddl.emit(gone.oid, false, tg_tag);
        END LOOP;
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'this change was not written into the stream for Tidemill: %', sqlerrm;
END
$drops$
"""

_FILL = """
INSERT INTO tidemill_ddl.tables SELECT c.oid, tidemill_ddl.describe(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
  AND NOT EXISTS (SELECT FROM tidemill_ddl.tables t WHERE t.oid = c.oid)
ON CONFLICT (oid) DO NOTHING
"""

_TAGS = (
    "'ALTER INDEX', 'ALTER SCHEMA', 'ALTER TABLE', 'COMMENT', 'CREATE INDEX', 'CREATE SCHEMA', 'CREATE TABLE',"
    " 'CREATE TABLE AS', 'SELECT INTO'"
)


def script(version: int) -> str:
    """What a superuser runs: idempotent, and replaces what an earlier version made."""
    statements = _statements(version)
    return ";\n".join(["BEGIN", *(each.strip() for each in statements), _seal(statements), "COMMIT"]) + ";\n"


class Fault(enum.StrEnum):
    """What may be the matter with the triggers."""

    ABSENT = "event triggers that tell changes of tables are not there"
    DISABLED = "event triggers that tell changes of tables are disabled"
    OTHER_VERSION = "event triggers that tell changes of tables are of another version"
    OTHER_TOKEN = "event triggers that tell changes of tables have another token"


@dataclass(frozen=True, slots=True)
class Untriggered:
    """A fault that stays, and what an operator is told of it."""

    fault: Fault
    notice: Notice


def ensure(db: psycopg.Connection, config: PostgresConfig) -> tuple[tuple[str, ...], Untriggered | None]:
    """Makes the triggers if they are not there as this version makes them: says what was made, or why it was not."""
    with translate(config.where):
        if (fault := _find_fault(db) or _find_broken_seal(db)) is None:
            _fill(db)
            return (), None
    try:
        with translate(config.where), db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(hashtext('tidemill'), hashtext('ddl'))")
            _refuse_foreign_schema(db, config)
            statements = _statements(db.info.server_version)
            for statement in (*statements, _seal(statements)):
                db.execute(statement.encode())
    except SetupError as error:
        return (), _make_untriggered(config, fault, f"{fault}, and could not be made: {error.what}")
    return (f'made event triggers "{COMMANDS}" and "{DROPS}" and schema "{SCHEMA}"',), None


def remove(db: psycopg.Connection, config: PostgresConfig) -> list[str]:
    """Drops all of it. Says what was there."""
    with translate(config.where, remedy=f"Run as a superuser: {'; '.join(_DROP)}."), db.transaction():
        rows = db.execute(
            "SELECT evtname FROM pg_event_trigger WHERE evtname IN (%s, %s) ORDER BY 1", [COMMANDS, DROPS]
        )
        found = [f'event trigger "{name}"' for (name,) in rows]
        rows = db.execute("SELECT nspname FROM pg_namespace WHERE nspname = %s", [SCHEMA])
        found += [f'schema "{name}"' for (name,) in rows]
        for statement in _DROP if found else ():
            db.execute(statement.encode())
    return found


def check(db: psycopg.Connection, config: PostgresConfig) -> Check:
    """A line of `doctor`; changes nothing."""
    if config.ddl.capture != "trigger":
        there = db.execute("SELECT FROM pg_event_trigger WHERE evtname = %s", [COMMANDS]).fetchone()
        unused = f'; event trigger "{COMMANDS}" is there, and is not used by this source' if there else ""
        return Check("schema changes", Outcome.PASS, f"ddl.capture is {config.ddl.capture}{unused}")
    if (fault := _find_fault(db)) is None:
        return Check("schema changes", Outcome.PASS, f'event triggers "{COMMANDS}" and "{DROPS}" of schema "{SCHEMA}"')
    row = db.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    if row and row[0]:
        return Check("schema changes", Outcome.PASS, f"{fault}; the setup will make them")
    return Check("schema changes", Outcome.WARN, f"{fault}, and the role may not be allowed to make them", _FIX)


def watch(db: psycopg.Connection, config: PostgresConfig, known: Untriggered | None) -> Untriggered | None:
    """What is the matter with the triggers of a stream that runs: `known`, if that is still so."""
    if config.ddl.capture != "trigger" or (fault := _find_fault(db)) is None:
        return None
    if known is not None and known.fault is fault:
        return known
    warn("source.not_triggered", what=fault, where=config.where)
    return _make_untriggered(config, fault, fault)


def _make_untriggered(config: PostgresConfig, fault: Fault, what: str) -> Untriggered:
    return Untriggered(fault, Notice("ddl-not-triggered", config.id, what, _FIX))


def read_seal(db: psycopg.Connection) -> str:
    """SHA-256 of the token of true messages, in hexadecimal; empty without triggers. Any role may read it."""
    row = db.execute("SELECT obj_description(to_regnamespace(%s), 'pg_namespace')", [SCHEMA]).fetchone()
    return (row[0] or "").rpartition(" ")[2] if row else ""


_FIX = (
    "Until then changes are told from what the stream announces (ddl: {capture: relation}). Let a superuser run what"
    ' "tidemill source trigger FILE --sql" prints, then start the pipeline again.'
)
_HASH = f"(SELECT encode(sha256(convert_to(token, 'UTF8')), 'hex') FROM {SCHEMA}.secret)"
_DROP = (
    f"DROP EVENT TRIGGER IF EXISTS {COMMANDS}",
    f"DROP EVENT TRIGGER IF EXISTS {DROPS}",
    f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE",
)


def _statements(version: int) -> list[str]:
    lists, generated = version >= 150000, version >= 180000
    schemas = "EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"
    names = {"prefix": STATEMENT, "end": WITNESS, "longest": str(_LONGEST_TEXT)}
    return [
        f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
        f"REVOKE ALL ON SCHEMA {SCHEMA} FROM PUBLIC",
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS {SCHEMA}.secret AS SELECT gen_random_uuid()::text AS token",
        f"CREATE UNLOGGED TABLE IF NOT EXISTS {SCHEMA}.tables (oid oid PRIMARY KEY, described json NOT NULL)",
        _DESCRIBE.format(
            columns="to_json(m.prattrs::int2[])" if lists else "NULL", schemas=schemas if lists else "false",
            generated="p.pubgencols = 's'" if generated else "false",
        ),
        _EMIT.format(**names),
        _COMMANDS,
        _DROPS.format(**names),
        f"DROP EVENT TRIGGER IF EXISTS {COMMANDS}",
        f"DROP EVENT TRIGGER IF EXISTS {DROPS}",
        f"CREATE EVENT TRIGGER {COMMANDS} ON ddl_command_end WHEN TAG IN ({_TAGS}) EXECUTE FUNCTION"
        f" {SCHEMA}.emit_commands()",
        f"CREATE EVENT TRIGGER {DROPS} ON sql_drop EXECUTE FUNCTION {SCHEMA}.emit_drops()",
        # Also where session_replication_role is replica: such a session changes tables like any other.
        f"ALTER EVENT TRIGGER {COMMANDS} ENABLE ALWAYS",
        f"ALTER EVENT TRIGGER {DROPS} ENABLE ALWAYS",
        _FILL,
    ]  # fmt: skip


def _seal(statements: list[str]) -> str:
    """The comment that says which version made it, and by which token its messages are known."""
    return (
        f"DO $seal$ BEGIN EXECUTE format('COMMENT ON SCHEMA {SCHEMA} IS %L', '{_digest(statements)} ' || {_HASH});"
        " END $seal$"
    )


def _digest(statements: list[str]) -> str:
    return f"tidemill {hashlib.sha256(';'.join(statements).encode()).hexdigest()[:16]}"


def _find_fault(db: psycopg.Connection) -> Fault | None:
    """None if all is there as this version makes it."""
    rows = db.execute("SELECT evtname, evtenabled::text FROM pg_event_trigger WHERE evtname IN (%s, %s)",
                      [COMMANDS, DROPS]).fetchall()  # fmt: skip
    if len(rows) < 2:
        return Fault.ABSENT
    if any(enabled != "A" for _, enabled in rows):
        return Fault.DISABLED
    row = db.execute(
        "SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", [SCHEMA]
    ).fetchone()
    if row is None or (row[0] or "").rpartition(" ")[0] != _digest(_statements(db.info.server_version)):
        return Fault.OTHER_VERSION
    return None


def _find_broken_seal(db: psycopg.Connection) -> Fault | None:
    """A restored dump has the comment of the other database, and a token of its own. Who may not read it goes on: its
    messages are then refused."""
    if not _may(db, "secret", "SELECT"):
        return None
    row = db.execute(f"SELECT {_HASH}".encode()).fetchone()
    return None if row and row[0] == read_seal(db) else Fault.OTHER_TOKEN


def _may(db: psycopg.Connection, relation: str, privilege: str) -> bool:
    row = db.execute(
        "SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, %s)"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
        [privilege, SCHEMA, relation],
    ).fetchone()
    return bool(row and row[0])


def _fill(db: psycopg.Connection) -> None:
    """What a crash of the server emptied. A role that may not is no harm: the next change of a table fills its row."""
    row = db.execute("SELECT pg_is_in_recovery()").fetchone()
    if row == (False,) and _may(db, "tables", "INSERT"):
        db.execute(_FILL.encode())


def _refuse_foreign_schema(db: psycopg.Connection, config: PostgresConfig) -> None:
    """Our functions run with our rights, over a table that must not be somebody else's."""
    row = db.execute(
        "SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner"
        " WHERE n.nspname = %s AND NOT r.rolsuper AND r.rolname <> current_user",
        [SCHEMA],
    ).fetchone()
    if row is not None:
        raise SetupError(
            f'schema "{SCHEMA}" belongs to "{row[0]}"',
            where=config.where,
            fix=f"Let a superuser drop it: DROP SCHEMA {SCHEMA}.",
        )
