"""A consumer of the queue: pull messages, do something with them, ack.

    with Client("postgresql://localhost/shop") as client:
        group = client.group("orders", "billing", ordered=True)
        for message in group.pull(100, wait_seconds=5):
            charge(message.json())
            group.ack(message)

One client is one connection, for one thread. Every call is a transaction of its own: a claim holds from the moment
`pull` returns, and an ack is durable when it returns.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, cast

import orjson

from tidemill.errors import ConfigError
from tidemill.sinks._shared.pg_client import PostgresTarget, address, connect, explain_errors

if TYPE_CHECKING:
    from tidemill.sinks._shared.pg_client import Connection

_LOOK_AGAIN_SECONDS = 1.0  # a message whose visibility ends is announced by nobody


class Message(NamedTuple):
    """`id` is its number in the stream; `attempts` counts how often the group was given it, this time included.

    A tuple, because the driver makes it of a row at once; a dataclass is filled field by field."""

    id: int
    token: str
    attempts: int
    event_id: str
    op: str
    table: str
    offset: int
    position: str | None
    lsn: str | None
    commit_time: datetime.datetime | None
    key: bytes | None
    payload: bytes
    content_type: str = "application/json"
    headers: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """Without the event, which does not belong into logs."""
        return f"Message(id={self.id}, event_id={self.event_id!r}, attempts={self.attempts}, token={self.token!r})"

    def json(self) -> Any:
        return orjson.loads(self.payload)


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of an ack, nack or extend. `lost` are messages that somebody else holds by now, or that were settled
    before: their visibility ended and they were given again. Whatever was done for them may be done twice."""

    done: tuple[int, ...]
    lost: tuple[int, ...]

    def __bool__(self) -> bool:
        return not self.lost


class Client:
    def __init__(self, dsn: str, *, schema: str = "pgstream", timeout_seconds: float = 60.0) -> None:
        self.schema = schema
        self._where = f"queue {schema} at {address(dsn)}"
        self._target = PostgresTarget(dsn=dsn, statement_timeout_seconds=timeout_seconds)
        self._db: Connection | None = None
        self._calls: dict[tuple[str, int], bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    def install(self) -> None:
        """Makes the queue's schema, tables and functions, as the sink does; for consumers that come first."""
        from tidemill.sinks.pgstream.tables import install

        with explain_errors(self._where):
            install(self.db, self.schema)

    def upgrade(self) -> None:
        """Replaces functions of an earlier version, as the sink does at its start. A queue that is missing stays so."""
        from tidemill.sinks.pgstream.tables import upgrade

        with explain_errors(self._where):
            upgrade(self.db, self.schema)

    def group(
        self,
        stream: str,
        name: str,
        *,
        start: Literal["earliest", "latest"] = "earliest",
        ordered: bool = False,
        max_attempts: int = 10,
        visibility_seconds: float = 30.0,
    ) -> Group:
        """The group, made if it is missing; one that exists keeps its settings and its place."""
        visibility = datetime.timedelta(seconds=visibility_seconds)
        self.call("create_group", [stream, name, start, ordered, max_attempts, visibility])
        return Group(self, stream, name)

    def streams(self) -> list[dict[str, Any]]:
        """Every stream with its groups: how far they are, what they hold, what died."""
        found = self._rows(_STREAMS)
        for stream in found:
            stream["groups"] = self._rows(_GROUPS, [stream.pop("number")])
        return found

    def lacks_lsns(self, stream: str) -> bool:
        """It has messages, and none of them has one."""
        return bool(self._rows(_LSNS, [stream])[0]["lacking"])

    def sweep(
        self, *, acked_seconds: float | None = None, max_age_seconds: float | None = None, max_bytes: int | None = None
    ) -> dict[str, tuple[int, int]]:
        """Removes messages that all groups acked so long ago, or that are beyond a limit: {stream: (removed, of these
        not acked)}."""
        with explain_errors(self._where):
            return sweep(self.db, self.schema, acked_seconds, max_age_seconds, max_bytes)

    @property
    def db(self) -> Connection:
        if self._db is None or self._db.closed:
            self._db = connect(self._target, self._where)
        return self._db

    def call(self, function: str, arguments: list[Any]) -> list[tuple[Any, ...]]:
        """A function of the queue, as rows."""
        return self._call(self._statement(function, len(arguments), "*"), arguments, None)

    def messages(self, arguments: list[Any]) -> list[Message]:
        """A pull, in the binary form: as text, payloads would be twice as long."""
        statement = self._statement("pull", len(arguments), _MESSAGE)
        return cast("list[Message]", self._call(statement, arguments, lambda cursor: Message._make))

    def _statement(self, function: str, arguments: int, answer: str) -> bytes:
        """Composed once: a consumer calls the same few again and again."""
        from psycopg import sql

        found = self._calls.get((function, arguments))
        if found is None:
            places = sql.SQL(", ").join(sql.Placeholder() * arguments)
            name = sql.Identifier(self.schema, function)
            statement = sql.SQL("SELECT {} FROM {}({})").format(sql.SQL(answer), name, places)
            found = self._calls[function, arguments] = statement.as_bytes(self.db)
        return found

    def _call(self, statement: bytes, arguments: list[Any], factory: Any) -> list[tuple[Any, ...]]:
        import psycopg

        try:
            with explain_errors(self._where), self.db.cursor(binary=factory is not None, row_factory=factory) as cursor:
                return cursor.execute(statement, arguments).fetchall()
        except Exception as error:
            if isinstance(error.__cause__, psycopg.errors.UndefinedObject | psycopg.errors.UndefinedFunction):
                raise ConfigError(
                    error.__cause__.diag.message_primary or "the queue is not there", where=self._where,
                    fix="Name a stream and a group that exist (tidemill stream ls), or create the group first.",
                ) from error  # fmt: skip
            raise

    def wait(self, seconds: float) -> None:
        """Until a message comes to any stream, or so long."""
        from psycopg import sql

        with explain_errors(self._where):
            self.db.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.schema)))
            for _ in self.db.notifies(timeout=seconds, stop_after=1):
                pass

    def _rows(self, statement: str, arguments: list[Any] | None = None) -> list[dict[str, Any]]:
        from psycopg import sql
        from psycopg.rows import dict_row

        with explain_errors(self._where), self.db.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(sql.SQL(statement).format(s=sql.Identifier(self.schema)), arguments).fetchall()


@dataclass(frozen=True, slots=True)
class Group:
    """One consumer group of one stream. Any number of consumers, in any number of processes, may share it."""

    client: Client
    stream: str
    name: str

    def pull(
        self,
        limit: int = 10,
        *,
        visibility_seconds: float | None = None,
        wait_seconds: float = 0.0,
        consumer: str | None = None,
        max_bytes: int | None = None,
        hung_up: Callable[[], bool] = lambda: False,
    ) -> list[Message]:
        """Messages that are nobody else's for `visibility_seconds`; then they are given again. At most `limit`, and as
        many as `max_bytes` hold; one that is larger comes alone. Empty if none came within `wait_seconds`, or if who
        waits for them has `hung_up`."""
        visibility = None if visibility_seconds is None else datetime.timedelta(seconds=visibility_seconds)
        deadline = time.monotonic() + wait_seconds
        while True:
            if hung_up():
                return []
            bound = [] if max_bytes is None else [max_bytes]  # which a queue of an earlier version does not know
            messages = self.client.messages([self.stream, self.name, limit, visibility, consumer, *bound])
            left = deadline - time.monotonic()
            if messages or left <= 0:
                return messages
            self.client.wait(min(left, _LOOK_AGAIN_SECONDS))

    def ack(self, *messages: Message) -> Claimed:
        """They are done with. Only the claim that holds a message may ack it."""
        return self._settle("ack", messages)

    def nack(self, *messages: Message, delay_seconds: float = 0.0, reason: str | None = None) -> Claimed:
        """They are given again after the delay, or go to the dead letters if that was the last attempt."""
        return self._settle("nack", messages, datetime.timedelta(seconds=delay_seconds), reason)

    def extend(self, *messages: Message, visibility_seconds: float | None = None) -> Claimed:
        """Holds them for so long from now on."""
        seconds = None if visibility_seconds is None else datetime.timedelta(seconds=visibility_seconds)
        return self._settle("extend", messages, seconds)

    def replay(
        self,
        *,
        lsn: str | None = None,
        time: datetime.datetime | None = None,
        offset: int | None = None,
        id: int | None = None,
    ) -> int:
        """Goes back: everything from there on is given again, also what was acked. How many messages that are; 0 if the
        group was not that far yet. An `lsn` only for events that come from PostgreSQL."""
        given = [v for v in (lsn, time, offset, id) if v is not None]
        if len(given) != 1:
            raise ConfigError("a replay begins at one place", fix="Give one of lsn, time, offset, id.")
        count = int(self.client.call("replay", [self.stream, self.name, lsn, time, offset, id])[0][0])
        if lsn is not None and not count and self.client.lacks_lsns(self.stream):
            raise ConfigError(
                f'the messages of stream "{self.stream}" have no LSN: their events do not come from PostgreSQL',
                fix="Nothing was changed. Give a time (--since) or an offset (--offset) instead.",
            )
        return count

    def revive(self, *ids: int) -> int:
        """Gives dead letters again, all of them or those of these numbers, with fresh attempts."""
        return int(self.client.call("revive", [self.stream, self.name, list(ids) or None])[0][0])

    def dead_letters(self, limit: int = 100) -> list[dict[str, Any]]:
        return self.client._rows(_DEAD, [self.stream, self.name, limit])

    def settle(
        self, function: Literal["ack", "nack", "extend"], token: str, ids: Iterable[int] | None, *more: Any
    ) -> Claimed:
        """For those who kept a token and numbers instead of messages; no numbers mean all of the pull."""
        wanted = None if ids is None else set(ids)
        # An array as text: the driver would look at each number for its own.
        listed = None if wanted is None else "{" + ",".join(map(str, wanted)) + "}"
        ((done,),) = self.client.call(function, [self.stream, self.name, token, listed, *more])
        return Claimed(tuple(sorted(done)), tuple(sorted((wanted or set()).difference(done))))

    def _settle(self, function: Literal["ack", "nack", "extend"], messages: tuple[Message, ...], *more: Any) -> Claimed:
        done: list[int] = []
        lost: list[int] = []
        for token in dict.fromkeys(message.token for message in messages):
            found = self.settle(function, token, {m.id for m in messages if m.token == token}, *more)
            done += found.done
            lost += found.lost
        return Claimed(tuple(done), tuple(lost))


def sweep(
    db: Connection, schema: str, acked: float | None, age: float | None, size: int | None
) -> dict[str, tuple[int, int]]:
    """A bounded number of messages at a time, each time a transaction, so that nobody waits for long."""
    from psycopg import sql

    if acked is None and age is None and size is None:
        return {}
    removed: dict[str, tuple[int, int]] = {}
    streams = db.execute(
        sql.SQL("SELECT name FROM {} ORDER BY id").format(sql.Identifier(schema, "streams"))
    ).fetchall()
    statement = sql.SQL("SELECT * FROM {}(%s, %s, %s, %s)").format(sql.Identifier(schema, "sweep"))
    for (stream,) in streams:
        more = True
        while more:
            ((count, unacked, more),) = db.execute(statement, [stream, _interval(acked), _interval(age), size])
            before = removed.get(stream, (0, 0))
            removed[stream] = (before[0] + count, before[1] + unacked)
    return {stream: counts for stream, counts in removed.items() if counts[0]}


def _interval(seconds: float | None) -> datetime.timedelta | None:
    return None if seconds is None else datetime.timedelta(seconds=seconds)


_MESSAGE = """
id, token::text, attempts, event_id, op, table_name, "offset", "position", lsn::text, commit_time, key, payload,
content_type, headers
"""
_STREAMS = """
SELECT s.id AS number, s.name AS stream, s.last_id, s.bytes,
       (SELECT count(*) FROM {s}.messages m WHERE m.stream_id = s.id) AS messages
FROM {s}.streams s ORDER BY s.name
"""
_LSNS = """
SELECT count(*) > 0 AND count(m.lsn) = 0 AS lacking FROM {s}.messages m JOIN {s}.streams s ON s.id = m.stream_id
WHERE s.name = %s
"""
_GROUPS = """
SELECT g.name AS group, g.cursor, g.ordered, g.max_attempts,
       (SELECT count(*) FROM {s}.messages m WHERE m.stream_id = g.stream_id AND m.id > g.cursor) AS waiting,
       count(c.id) FILTER (WHERE c.token IS NOT NULL AND c.visible_at > now()) AS in_flight,
       count(c.id) FILTER (WHERE c.visible_at < 'infinity' AND (c.token IS NULL OR c.visible_at <= now())) AS put_back,
       count(c.id) FILTER (WHERE c.visible_at = 'infinity') AS parked,
       (SELECT count(*) FROM {s}.dead_letters d WHERE d.group_id = g.id) AS dead
FROM {s}.groups g LEFT JOIN {s}.claims c ON c.group_id = g.id
WHERE g.stream_id = %s GROUP BY g.id ORDER BY g.name
"""
_DEAD = """
SELECT d.id, d.event_id, d.attempts, d.reason, d.died_at, d.key, d.payload, d.content_type
FROM {s}.dead_letters d JOIN {s}.groups g ON g.id = d.group_id JOIN {s}.streams s ON s.id = g.stream_id
WHERE s.name = %s AND g.name = %s ORDER BY d.id LIMIT %s
"""
