"""What consumers call: pull, ack, nack, extend, replay, revive; and the removal of old messages.

`tables` says how they fit together, and installs them. `{s}` is the queue's schema.
"""

from __future__ import annotations

PULL = """
-- Of versions before max_bytes: both would answer the same call.
DROP FUNCTION IF EXISTS {s}.pull(text, text, integer, interval, text);
DROP FUNCTION IF EXISTS {s}.pull_ordered({s}.groups, integer, uuid, timestamptz, text);

CREATE OR REPLACE FUNCTION {s}.size_of(m {s}.messages)
RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    -- What a consumer is sent; of a payload out of line only the length is read.
    SELECT octet_length(m.payload) + coalesce(octet_length(m.key), 0) + octet_length(m.event_id)
        + octet_length(m.table_name) + coalesce(octet_length(m.headers::text), 0) + 100
$$;

CREATE OR REPLACE FUNCTION {s}.pull(stream text, group_name text, batch integer DEFAULT 10,
    visibility interval DEFAULT NULL, consumer text DEFAULT NULL, max_bytes bigint DEFAULT NULL)
RETURNS TABLE (id bigint, token uuid, attempts integer, event_id text, op text, table_name text, "offset" bigint,
    "position" text, lsn pg_lsn, commit_time timestamptz, key bytea, payload bytea, content_type text, headers jsonb)
LANGUAGE plpgsql {plans} AS $$
#variable_conflict use_column
DECLARE
    g {s}.groups := {s}.the_group(pull.stream, pull.group_name);
    mine uuid := gen_random_uuid();
    moment timestamptz;
    until timestamptz;
    due bigint[];
    spent bigint[];
    places tid[];
    fitting bigint[];
    left_over bigint;
    is_full boolean := false;
    given bigint[] := ARRAY[]::bigint[];
    room integer;
    bytes bigint := pull.max_bytes;  -- that are left; NULL: any number
    reached bigint;
BEGIN
    IF g.ordered THEN
        g := {s}.the_group(pull.stream, pull.group_name, true);
    END IF;
    moment := clock_timestamp();  -- a variable: no index is searched with a function that answers anew for each line
    until := moment + coalesce(pull.visibility, g.visibility);
    -- What was given before and not acked, or was put back.
    LOOP
        SELECT array_agg(d.id) FILTER (WHERE d.attempts < g.max_attempts),
               array_agg(d.id) FILTER (WHERE d.attempts >= g.max_attempts),
               array_agg(d.ctid) FILTER (WHERE d.attempts < g.max_attempts)
        INTO due, spent, places
        FROM (SELECT c.ctid, c.id, c.attempts FROM {s}.claims c
              WHERE c.group_id = g.id AND c.visible_at <= moment
              ORDER BY c.visible_at, c.id LIMIT pull.batch - cardinality(given) FOR UPDATE SKIP LOCKED) d;
        EXIT WHEN due IS NULL AND spent IS NULL;
        IF bytes IS NOT NULL AND due IS NOT NULL THEN
            -- In the order in which they became due, as far as there is room; the first message of a pull always fits.
            SELECT array_agg(f.id), array_agg(f.place), bytes - coalesce(max(f.held), 0)
            INTO fitting, places, left_over
            FROM (SELECT x.id, x.place, x.number, sum(coalesce({s}.size_of(m), 0)) OVER (ORDER BY x.number) AS held
                  FROM unnest(due, places) WITH ORDINALITY x (id, place, number)
                  LEFT JOIN {s}.messages m ON m.stream_id = g.stream_id AND m.id = x.id) f
            WHERE f.held <= bytes OR (f.number = 1 AND cardinality(given) = 0);
            is_full := cardinality(due) > coalesce(cardinality(fitting), 0);
            due := fitting;
            bytes := left_over;
        END IF;
        UPDATE {s}.claims c SET token = mine, consumer = pull.consumer, attempts = c.attempts + 1, visible_at = until
        WHERE c.ctid = ANY (places);  -- they are locked
        given := given || coalesce(due, ARRAY[]::bigint[]);
        EXIT WHEN spent IS NULL;
        PERFORM {s}.bury(g, spent);  -- may make others visible, and leaves room for more
        EXIT WHEN is_full;
    END LOOP;
    room := CASE WHEN is_full OR bytes <= 0 THEN 0 ELSE pull.batch - cardinality(given) END;
    IF room > 0 AND g.ordered THEN
        given := given || {s}.pull_ordered(g, room, mine, until, pull.consumer, bytes, cardinality(given) = 0);
    END IF;
    IF cardinality(given) > 0 THEN
        RETURN QUERY
            SELECT m.id, c.token, c.attempts, m.event_id, m.op, m.table_name, m."offset", m.position, m.lsn,
                   m.commit_time, m.key, m.payload, m.content_type, m.headers
            FROM unnest(given) x (id) JOIN {s}.claims c ON c.group_id = g.id AND c.id = x.id
            JOIN {s}.messages m ON m.stream_id = g.stream_id AND m.id = x.id ORDER BY m.id;
    END IF;
    IF room > 0 AND NOT g.ordered THEN
        SELECT x.cursor INTO reached FROM {s}.groups x WHERE x.id = g.id FOR UPDATE;
        IF bytes IS NOT NULL THEN
            SELECT count(*) INTO room
            FROM (SELECT m.id, sum({s}.size_of(m)) OVER (ORDER BY m.id) AS held
                  FROM {s}.messages m WHERE m.stream_id = g.stream_id AND m.id > reached ORDER BY m.id LIMIT room) f
            WHERE f.held <= bytes;
            IF cardinality(given) = 0 THEN room := greatest(room, 1); END IF;
        END IF;
        -- All of them are behind the cursor, and so behind those that were given again.
        RETURN QUERY
            WITH next AS MATERIALIZED (
                SELECT m.id, m.event_id, m.op, m.table_name, m."offset", m.position, m.lsn, m.commit_time, m.key,
                       m.payload, m.content_type, m.headers
                FROM {s}.messages m WHERE m.stream_id = g.stream_id AND m.id > reached ORDER BY m.id LIMIT room
            ), taken AS (
                INSERT INTO {s}.claims (group_id, id, token, consumer, attempts, visible_at)
                SELECT g.id, n.id, mine, pull.consumer, 1, until FROM next n
            ), moved AS (
                UPDATE {s}.groups x SET cursor = n.last FROM (SELECT max(id) AS last FROM next) n
                WHERE x.id = g.id AND n.last IS NOT NULL
            )
            SELECT n.id, mine, 1, n.event_id, n.op, n.table_name, n."offset", n.position, n.lsn, n.commit_time, n.key,
                   n.payload, n.content_type, n.headers
            FROM next n ORDER BY n.id;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {s}.pull_ordered(g {s}.groups, room integer, mine uuid, until timestamptz, consumer text,
    bytes bigint, is_first boolean)
RETURNS bigint[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    given bigint[] := ARRAY[]::bigint[];
    fresh bigint[];
    window_end bigint;
    parked integer;
    reached bigint := g.cursor;
BEGIN
    LOOP
        SELECT count(*) INTO parked FROM (
            SELECT 1 FROM {s}.claims c WHERE c.group_id = g.id AND c.visible_at = 'infinity' LIMIT {most_parked}) p;
        EXIT WHEN parked >= {most_parked};
        -- A window of the stream: of each key that has no claim yet, the first message.
        WITH w AS MATERIALIZED (
            SELECT m.id, {s}.order_key(m.table_name, m.key) AS key,
                   CASE WHEN bytes IS NULL THEN 0 ELSE {s}.size_of(m) END AS size
            FROM {s}.messages m WHERE m.stream_id = g.stream_id AND m.id > reached
            ORDER BY m.id LIMIT greatest(2 * (room - cardinality(given)), 100)
        ), wanted AS MATERIALIZED (
            SELECT f.id, f.size FROM (
                SELECT w.id, w.key, w.size, row_number() OVER (PARTITION BY w.key ORDER BY w.id) AS place FROM w) f
            WHERE f.key IS NULL OR (f.place = 1 AND NOT EXISTS (
                SELECT 1 FROM {s}.claims c WHERE c.group_id = g.id AND c.key = f.key))
            ORDER BY f.id LIMIT room - cardinality(given)
        ), free AS MATERIALIZED (
            -- As far as there is room; the first message of a pull always fits.
            SELECT f.id, f.size FROM (
                SELECT w.id, w.size, sum(w.size) OVER by_id AS held, row_number() OVER by_id AS place
                FROM wanted w WINDOW by_id AS (ORDER BY w.id)) f
            WHERE f.held <= coalesce(bytes, 0) OR (f.place = 1 AND is_first AND cardinality(given) = 0)
        ), last AS (
            SELECT CASE WHEN (SELECT count(*) FROM wanted) = room - cardinality(given)
                          OR (SELECT count(*) FROM free) < (SELECT count(*) FROM wanted)
                        THEN (SELECT max(id) FROM free) ELSE (SELECT max(id) FROM w) END AS id
        ), claimed AS (
            INSERT INTO {s}.claims (group_id, id, key, token, consumer, attempts, visible_at)
            SELECT g.id, w.id, w.key, CASE WHEN f.id IS NOT NULL THEN mine END,
                   CASE WHEN f.id IS NOT NULL THEN consumer END, (f.id IS NOT NULL)::integer,
                   CASE WHEN f.id IS NOT NULL THEN until ELSE 'infinity' END
            FROM w LEFT JOIN free f ON f.id = w.id, last WHERE w.id <= last.id RETURNING 1
        )
        SELECT (SELECT array_agg(id) FROM free), (SELECT id FROM last),
               bytes - (SELECT coalesce(sum(size), 0) FROM free)
        INTO fresh, window_end, bytes;
        EXIT WHEN window_end IS NULL;
        reached := window_end;
        given := given || coalesce(fresh, ARRAY[]::bigint[]);
        EXIT WHEN cardinality(given) >= room;
    END LOOP;
    UPDATE {s}.groups x SET cursor = reached WHERE x.id = g.id AND x.cursor <> reached;
    RETURN given;
END $$;
"""

SETTLE = """
CREATE OR REPLACE FUNCTION {s}.stretch(claim uuid, ids bigint[], OUT first bigint, OUT last bigint, OUT whole boolean)
LANGUAGE plpgsql AS $$
BEGIN
    -- Where the claim's messages are, and whether all between are meant: they mostly follow one another, and a stretch
    -- of an index is read faster than numbers are looked for.
    IF ids IS NULL THEN
        SELECT min(c.id), max(c.id), true INTO first, last, whole FROM {s}.claims c WHERE c.token = claim;
    ELSE
        SELECT min(i), max(i), max(i) - min(i) + 1 = count(DISTINCT i) INTO first, last, whole FROM unnest(ids) i;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION {s}.claimed(g {s}.groups, claim uuid, ids bigint[])
RETURNS bigint[] LANGUAGE sql AS $$
    -- Those of the messages that this claim still holds: only the claimant may settle them.
    SELECT coalesce(array_agg(c.id), ARRAY[]::bigint[]) FROM (
        SELECT c.id FROM {s}.stretch(claim, ids) w, {s}.claims c
        WHERE c.group_id = (g).id AND c.id BETWEEN w.first AND w.last AND (c.token = claim) IS TRUE
          AND (w.whole OR c.id = ANY (ids))
        ORDER BY c.id FOR UPDATE OF c) c
$$;

CREATE OR REPLACE FUNCTION {s}.ack(stream text, group_name text, claim uuid, ids bigint[] DEFAULT NULL)
RETURNS bigint[] LANGUAGE plpgsql {plans} AS $$
DECLARE
    g {s}.groups := {s}.the_group(ack.stream, ack.group_name);
    mine bigint[];
    w record;
BEGIN
    IF g.ordered THEN
        g := {s}.the_group(ack.stream, ack.group_name, true);
        mine := {s}.claimed(g, ack.claim, ack.ids);
        PERFORM {s}.let_go(g, mine);
        RETURN mine;
    END IF;
    -- Nothing waits behind them, so one statement finds and removes them.
    w := {s}.stretch(ack.claim, ack.ids);
    WITH gone AS (
        DELETE FROM {s}.claims c
        WHERE c.group_id = g.id AND c.id BETWEEN w.first AND w.last AND (c.token = ack.claim) IS TRUE
          AND (w.whole OR c.id = ANY (ack.ids)) RETURNING c.id
    ) SELECT array_agg(gone.id) INTO mine FROM gone;
    RETURN coalesce(mine, ARRAY[]::bigint[]);
END $$;

CREATE OR REPLACE FUNCTION {s}.nack(stream text, group_name text, claim uuid, ids bigint[] DEFAULT NULL,
    delay interval DEFAULT '0', why text DEFAULT NULL)
RETURNS bigint[] LANGUAGE plpgsql {plans} AS $$
DECLARE
    g {s}.groups := {s}.the_group(nack.stream, nack.group_name);
    mine bigint[];
    spent bigint[];
BEGIN
    IF g.ordered THEN g := {s}.the_group(nack.stream, nack.group_name, true); END IF;
    mine := {s}.claimed(g, nack.claim, nack.ids);
    UPDATE {s}.claims c
    SET token = NULL, visible_at = clock_timestamp() + nack.delay, reason = coalesce(nack.why, 'nacked')
    WHERE c.group_id = g.id AND c.id = ANY (mine);
    SELECT array_agg(c.id) INTO spent FROM {s}.claims c
    WHERE c.group_id = g.id AND c.id = ANY (mine) AND c.attempts >= g.max_attempts;
    IF spent IS NOT NULL THEN PERFORM {s}.bury(g, spent); END IF;
    RETURN mine;
END $$;

CREATE OR REPLACE FUNCTION {s}.extend(stream text, group_name text, claim uuid, ids bigint[] DEFAULT NULL,
    visibility interval DEFAULT NULL)
RETURNS bigint[] LANGUAGE plpgsql {plans} AS $$
DECLARE
    g {s}.groups := {s}.the_group(extend.stream, extend.group_name);
    mine bigint[] := {s}.claimed(g, extend.claim, extend.ids);
BEGIN
    UPDATE {s}.claims c SET visible_at = clock_timestamp() + coalesce(extend.visibility, g.visibility)
    WHERE c.group_id = g.id AND c.id = ANY (mine);
    RETURN mine;
END $$;

CREATE OR REPLACE FUNCTION {s}.replay(stream text, group_name text, from_lsn pg_lsn DEFAULT NULL,
    from_time timestamptz DEFAULT NULL, from_offset bigint DEFAULT NULL, from_id bigint DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    g {s}.groups := {s}.the_group(replay.stream, replay.group_name, true);
    first bigint;
BEGIN
    IF num_nonnulls(from_lsn, from_time, from_offset, from_id) <> 1 THEN
        RAISE EXCEPTION 'give one of from_lsn, from_time, from_offset, from_id'
        USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT min(m.id) INTO first FROM {s}.messages m WHERE m.stream_id = g.stream_id
        AND (from_lsn IS NULL OR m.lsn >= from_lsn) AND (from_time IS NULL OR m.commit_time >= from_time)
        AND (from_offset IS NULL OR m."offset" >= from_offset) AND (from_id IS NULL OR m.id >= from_id);
    -- Never forward: what the group has not seen stays before it.
    IF first IS NULL OR first > g.cursor THEN RETURN 0; END IF;
    DELETE FROM {s}.claims c WHERE c.group_id = g.id AND c.id >= first;
    UPDATE {s}.groups x SET cursor = first - 1 WHERE x.id = g.id;
    RETURN (SELECT count(*) FROM {s}.messages m WHERE m.stream_id = g.stream_id AND m.id BETWEEN first AND g.cursor);
END $$;

CREATE OR REPLACE FUNCTION {s}.revive(stream text, group_name text, ids bigint[] DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    g {s}.groups := {s}.the_group(revive.stream, revive.group_name, true);
    counted bigint;
BEGIN
    -- Dead letters are given again, with all their attempts, if retention still has their messages.
    WITH back AS (
        DELETE FROM {s}.dead_letters d USING {s}.messages m
        WHERE d.group_id = g.id AND (revive.ids IS NULL OR d.id = ANY (revive.ids))
          AND m.stream_id = g.stream_id AND m.id = d.id AND m.id <= g.cursor
        RETURNING d.id, CASE WHEN g.ordered THEN {s}.order_key(m.table_name, m.key) END AS key
    ), put AS (
        INSERT INTO {s}.claims (group_id, id, key, attempts, visible_at)
        SELECT g.id, b.id, b.key, 0,
            CASE WHEN b.key IS NOT NULL AND (EXISTS (
                SELECT 1 FROM {s}.claims c WHERE c.group_id = g.id AND c.key = b.key)
                OR EXISTS (SELECT 1 FROM back o WHERE o.key = b.key AND o.id < b.id))
            THEN 'infinity' ELSE '-infinity' END::timestamptz
        FROM back b ON CONFLICT DO NOTHING RETURNING 1
    )
    SELECT count(*) INTO counted FROM put;
    RETURN counted;
END $$;
"""

SWEEP = """
CREATE OR REPLACE FUNCTION {s}.sweep(stream text, acked_age interval DEFAULT NULL, max_age interval DEFAULT NULL,
    max_bytes bigint DEFAULT NULL, most integer DEFAULT 10000)
RETURNS TABLE (deleted bigint, unacked bigint, more boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    s {s}.streams;
    done bigint;
    cut bigint;
BEGIN
    -- At most `most` of the oldest messages. What some group has not acked goes only by max_age or max_bytes.
    SELECT * INTO s FROM {s}.streams x WHERE x.name = sweep.stream FOR UPDATE;
    SELECT min(least(g.cursor, coalesce(
        (SELECT min(c.id) - 1 FROM {s}.claims c WHERE c.group_id = g.id), g.cursor))) INTO done
    FROM {s}.groups g WHERE g.stream_id = s.id;
    SELECT max(o.id) INTO cut FROM (
        SELECT m.id, m.stored_at,
               s.bytes - sum(octet_length(m.payload)) OVER (ORDER BY m.id) + octet_length(m.payload) AS held
        FROM {s}.messages m WHERE m.stream_id = s.id ORDER BY m.id LIMIT most) o
    WHERE (o.id <= done AND o.stored_at <= now() - sweep.acked_age)
       OR o.stored_at <= now() - sweep.max_age OR o.held > sweep.max_bytes;
    IF cut IS NULL THEN
        RETURN QUERY SELECT 0::bigint, 0::bigint, false;
        RETURN;
    END IF;
    PERFORM 1 FROM {s}.groups g WHERE g.stream_id = s.id AND g.ordered ORDER BY g.id FOR UPDATE;
    DELETE FROM {s}.claims c USING {s}.groups g WHERE g.stream_id = s.id AND c.group_id = g.id AND c.id <= cut;
    IF FOUND THEN
        -- Messages of an ordered group may wait behind one that is gone now, which nobody will ack.
        UPDATE {s}.claims c SET visible_at = '-infinity' FROM (
            SELECT w.group_id, min(w.id) AS id FROM {s}.claims w JOIN {s}.groups g ON g.id = w.group_id
            WHERE g.stream_id = s.id AND g.ordered AND w.key IS NOT NULL GROUP BY w.group_id, w.key) next
        WHERE c.group_id = next.group_id AND c.id = next.id AND c.visible_at = 'infinity';
    END IF;
    RETURN QUERY
        WITH gone AS (
            DELETE FROM {s}.messages m WHERE m.stream_id = s.id AND m.id <= cut
            RETURNING m.id, octet_length(m.payload) AS size
        ), freed AS (
            UPDATE {s}.streams x SET bytes = x.bytes - (SELECT coalesce(sum(size), 0) FROM gone)
            WHERE x.id = s.id RETURNING 1
        )
        SELECT count(*), count(*) FILTER (WHERE gone.id > done), count(*) >= most FROM gone, freed;
END $$;
"""
