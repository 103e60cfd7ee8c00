"""The queue in PostgreSQL: tables, and functions that any client may call. Installed by the pgstream sink.

A group remembers a cursor, the last message it was given, and a line per message that was given and not yet acked (in
`claims`): in flight, put back for later, or, in an ordered group, parked behind an earlier message of its key. A
message at or before the cursor without such a line is acked. So a group costs nothing per message that waits, and a
pull looks at two ends of two indexes, however many messages there are.

`visible_at` says when a claim may be given (again): the end of its visibility timeout, of a nack's delay, or
`infinity` while it is parked. Whoever removes a claim of an ordered group makes its key's next one visible. That,
and moving the cursor, happens under a lock on the group's line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.sinks.pgstream import functions

if TYPE_CHECKING:
    from tidemill.sinks._shared.pg_client import Connection

VERSION = 5
_MARK = "tidemill pgstream "
_MOST_PARKED = 10_000  # messages kept back in one ordered group before it waits for acks
# Claims come and go, so statistics about them are never true: lines are looked up by index, whatever those say.
_PLANS = "SET enable_seqscan = off SET enable_bitmapscan = off"

_TABLES = """
CREATE TABLE IF NOT EXISTS {s}.streams (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    last_id bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS {s}.messages (
    stream_id integer NOT NULL,
    id bigint NOT NULL,
    "offset" bigint NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    op text NOT NULL,
    table_name text NOT NULL,
    position text,
    lsn pg_lsn,
    commit_time timestamptz,
    key bytea,
    payload bytea NOT NULL,
    content_type text NOT NULL,
    headers jsonb,
    stored_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream_id, id),
    UNIQUE (stream_id, event_id)
);
-- One for both: two of them made a tenth of the time of an insert.
CREATE INDEX IF NOT EXISTS messages_when ON {s}.messages USING brin (lsn, commit_time);
DROP INDEX IF EXISTS {s}.messages_lsn, {s}.messages_time;
CREATE TABLE IF NOT EXISTS {s}.groups (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream_id integer NOT NULL REFERENCES {s}.streams,
    name text NOT NULL,
    cursor bigint NOT NULL,
    ordered boolean NOT NULL,
    max_attempts integer NOT NULL CHECK (max_attempts > 0),
    visibility interval NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (stream_id, name)
);
CREATE TABLE IF NOT EXISTS {s}.claims (
    group_id integer NOT NULL,
    id bigint NOT NULL,
    key bytea,
    token uuid,
    consumer text,
    attempts integer NOT NULL,
    visible_at timestamptz NOT NULL,
    reason text,
    PRIMARY KEY (group_id, id)
);
CREATE INDEX IF NOT EXISTS claims_visible ON {s}.claims (group_id, visible_at);
CREATE INDEX IF NOT EXISTS claims_key ON {s}.claims (group_id, key, id) WHERE key IS NOT NULL;
CREATE INDEX IF NOT EXISTS claims_token ON {s}.claims (token) WHERE token IS NOT NULL;
CREATE TABLE IF NOT EXISTS {s}.dead_letters (
    group_id integer NOT NULL,
    id bigint NOT NULL,
    event_id text NOT NULL,
    key bytea,
    payload bytea NOT NULL,
    content_type text NOT NULL,
    headers jsonb,
    attempts integer NOT NULL,
    reason text NOT NULL,
    died_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (group_id, id)
);
"""

_GROUPS = """
CREATE OR REPLACE FUNCTION {s}.create_group(stream text, group_name text, start_at text DEFAULT 'earliest',
    ordered boolean DEFAULT false, max_attempts integer DEFAULT 10, visibility interval DEFAULT '30 seconds')
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE s {s}.streams;
BEGIN
    IF create_group.start_at NOT IN ('earliest', 'latest') THEN
        RAISE EXCEPTION 'start_at is earliest or latest' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO {s}.streams (name) VALUES (create_group.stream) ON CONFLICT (name) DO NOTHING;
    SELECT * INTO s FROM {s}.streams x WHERE x.name = create_group.stream;
    INSERT INTO {s}.groups (stream_id, name, cursor, ordered, max_attempts, visibility)
    VALUES (s.id, create_group.group_name, CASE create_group.start_at WHEN 'latest' THEN s.last_id ELSE 0 END,
            create_group.ordered, create_group.max_attempts, create_group.visibility)
    ON CONFLICT (stream_id, name) DO NOTHING;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION {s}.the_group(stream text, group_name text, locked boolean DEFAULT false)
RETURNS {s}.groups LANGUAGE plpgsql AS $$
DECLARE g {s}.groups;
BEGIN
    IF locked THEN
        SELECT x.* INTO g FROM {s}.groups x JOIN {s}.streams y ON y.id = x.stream_id
        WHERE y.name = the_group.stream AND x.name = the_group.group_name FOR UPDATE OF x;
    ELSE
        SELECT x.* INTO g FROM {s}.groups x JOIN {s}.streams y ON y.id = x.stream_id
        WHERE y.name = the_group.stream AND x.name = the_group.group_name;
    END IF;
    IF g.id IS NULL THEN
        RAISE EXCEPTION 'stream "%" has no group "%"', the_group.stream, the_group.group_name
        USING ERRCODE = 'undefined_object', HINT = 'Create it with create_group().';
    END IF;
    RETURN g;
END $$;

CREATE OR REPLACE FUNCTION {s}.order_key(table_name text, key bytea)
RETURNS bytea LANGUAGE sql STABLE AS $$
    -- Two tables may have the same key; NULL where there is none, as for TRUNCATE. STABLE as convert_to is, or it would
    -- not be inlined.
    SELECT convert_to(table_name || ' ', 'UTF8') || key
$$;

CREATE OR REPLACE FUNCTION {s}.let_go(g {s}.groups, ids bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    places tid[] := ARRAY(
        SELECT c.ctid FROM unnest(ids) w (id),
            LATERAL (SELECT x.ctid FROM {s}.claims x WHERE x.group_id = (g).id AND x.id = w.id OFFSET 0) c);
    keys bytea[];
BEGIN
    -- Removes claims, which the caller has locked. In an ordered group each key's next message becomes visible. Lines
    -- are looked up one by one: joined, or searched for in a list, they would cost the square of their number.
    WITH gone AS (
        DELETE FROM {s}.claims c WHERE c.ctid = ANY (places) RETURNING c.key
    ) SELECT array_agg(DISTINCT gone.key) INTO keys FROM gone WHERE gone.key IS NOT NULL;
    IF keys IS NULL THEN RETURN; END IF;
    places := ARRAY(
        SELECT c.ctid FROM unnest(keys) w (key), LATERAL (
            SELECT x.ctid, x.visible_at FROM {s}.claims x WHERE x.group_id = (g).id AND x.key = w.key
            ORDER BY x.id LIMIT 1) c
        WHERE c.visible_at = 'infinity');
    UPDATE {s}.claims c SET visible_at = '-infinity' WHERE c.ctid = ANY (places);
END $$;

CREATE OR REPLACE FUNCTION {s}.bury(g {s}.groups, ids bigint[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {s}.dead_letters (group_id, id, event_id, key, payload, content_type, headers, attempts, reason)
    SELECT g.id, m.id, m.event_id, m.key, m.payload, m.content_type, m.headers, c.attempts,
           coalesce(c.reason, 'not acked within its visibility timeout')
    FROM {s}.claims c JOIN {s}.messages m ON m.stream_id = g.stream_id AND m.id = c.id
    WHERE c.group_id = g.id AND c.id = ANY (ids)
    ON CONFLICT (group_id, id) DO UPDATE SET attempts = EXCLUDED.attempts, reason = EXCLUDED.reason, died_at = now();
    PERFORM {s}.let_go(g, ids);
END $$;
"""


def install(db: Connection, schema: str) -> None:
    """Idempotent, and safe when several do it at once. Tables stay, functions are replaced by this version's."""
    from psycopg import sql

    name = sql.Identifier(schema)
    marker = f"{_MARK}{VERSION}"
    if _marker(db, schema) == marker:
        return
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(hashtextextended('tidemill pgstream', 0))")
        if _marker(db, schema) == marker:
            return
        if not db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]).fetchone():
            db.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        for part in (_TABLES, _GROUPS, functions.PULL, functions.SETTLE, functions.SWEEP):
            db.execute(sql.SQL(part).format(s=name, most_parked=sql.Literal(_MOST_PARKED), plans=sql.SQL(_PLANS)))
        db.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(name, sql.Literal(marker)))


def upgrade(db: Connection, schema: str) -> None:
    """`install`, where an earlier version did so before."""
    if (_marker(db, schema) or "").startswith(_MARK):
        install(db, schema)


def _marker(db: Connection, schema: str) -> str | None:
    row = db.execute("SELECT obj_description(oid, 'pg_namespace') FROM pg_namespace WHERE nspname = %s", [schema])
    found = row.fetchone()
    return None if found is None else found[0]
