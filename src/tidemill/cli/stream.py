"""`tidemill stream`: pull from the queue of a pgstream sink, ack, go back, look."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
import typer

from tidemill.cli import target, terminal
from tidemill.errors import ConfigError
from tidemill.service.units import human_bytes

if TYPE_CHECKING:
    from tidemill.service.pgstream_queue import Claimed, Client, Group, Message

app = terminal.commands("Consume the message queue of a pgstream sink, and look after it.")

Where = Annotated[
    str,
    typer.Argument(
        help="A pipeline file with a pgstream sink, or postgresql://...", show_default=False,
        callback=target.check_place,
    ),
]  # fmt: skip
Stream = Annotated[str, typer.Argument(help="The stream's name.", show_default=False)]
Name = Annotated[str, typer.Option("--group", "-g", help="The consumer group.", show_default=False)]
Token = Annotated[str, typer.Option("--token", help="What `pull` gave with the messages.", show_default=False)]
Ids = Annotated[
    list[int] | None, typer.Argument(metavar="ID", help="Messages; all of that pull if left out.", show_default=False)
]
Sink = Annotated[str | None, typer.Option("--sink", help="Which sink, if the file has several of pgstream.")]
Schema = Annotated[str | None, typer.Option("--schema", help="Schema of the queue.", show_default="pgstream")]


@app.command("ls")
def list_(where: Where, sink: Sink = None, schema: Schema = None, as_json: terminal.AsJson = False) -> None:
    """List streams and their groups: what waits, is held, has died."""
    with _client(where, sink, schema) as client:
        streams = client.streams()
    if as_json:
        terminal.show_json({"streams": streams})
        return
    names = ("group", "waiting", "in_flight", "put_back", "parked", "dead")
    rows = [
        (s["stream"], s["messages"], human_bytes(s["bytes"]), *(g[n] for n in names))
        for s in streams
        for g in s["groups"] or [dict.fromkeys(names, "")]
    ]
    terminal.show_table(
        ("stream", "messages", "size", *(n.replace("_", " ") for n in names)), rows, empty="There are no streams."
    )


@app.command()
def pull(
    where: Where,
    stream: Stream,
    group: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many messages at most.")] = 10,
    visibility: Annotated[
        float | None, typer.Option(help="Seconds during which nobody else gets them.", show_default="the group's")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait if there is none.")] = 0.0,
    start: Annotated[Literal["earliest", "latest"], typer.Option(help="Where a new group begins.")] = "earliest",
    ordered: Annotated[bool, typer.Option("--ordered", help="A new group keeps the order of each key.")] = False,
    ack_now: Annotated[bool, typer.Option("--ack", help="Ack them once they are printed.")] = False,
    sink: Sink = None,
    schema: Schema = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Take messages for a group, which is made if it is missing."""
    with _client(where, sink, schema) as client:
        members = client.group(stream, group, start=start, ordered=ordered)
        messages = members.pull(limit, visibility_seconds=visibility, wait_seconds=wait)
        if as_json:
            token = messages[0].token if messages else None
            terminal.show_json({"token": token, "messages": [_as_data(m) for m in messages]})
        else:
            columns = ("id", "attempts", "op", "table", "payload")
            rows = [(m.id, m.attempts, m.op, m.table, _render(m)) for m in messages]
            terminal.show_table(columns, rows, empty=f"No message waits for {group}.")
            if messages and not ack_now:
                terminal.say(f"token {messages[0].token}")
        if ack_now and messages:
            _report(members.ack(*messages), False, quiet=True)


@app.command()
def ack(
    where: Where, stream: Stream, group: Name, token: Token, ids: Ids = None,
    sink: Sink = None, schema: Schema = None, as_json: terminal.AsJson = False,
) -> None:  # fmt: skip
    """Say that messages are done with; only who pulled them may."""
    with _client(where, sink, schema) as client:
        _report(_group(client, stream, group).settle("ack", token, ids), as_json)


@app.command()
def nack(
    where: Where,
    stream: Stream,
    group: Name,
    token: Token,
    ids: Ids = None,
    delay: Annotated[float, typer.Option(help="Seconds until they are given again.")] = 0.0,
    reason: Annotated[str | None, typer.Option(help="Why; kept with the dead letter if it comes to that.")] = None,
    sink: Sink = None,
    schema: Schema = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Put messages back, to be given again. After the last attempt they go to the group's dead letters."""
    with _client(where, sink, schema) as client:
        pause = datetime.timedelta(seconds=delay)
        _report(_group(client, stream, group).settle("nack", token, ids, pause, reason), as_json)


@app.command()
def extend(
    where: Where,
    stream: Stream,
    group: Name,
    token: Token,
    ids: Ids = None,
    seconds: Annotated[float, typer.Option(help="How long from now.")] = 30.0,
    sink: Sink = None,
    schema: Schema = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Hold messages longer."""
    with _client(where, sink, schema) as client:
        pause = datetime.timedelta(seconds=seconds)
        _report(_group(client, stream, group).settle("extend", token, ids, pause), as_json)


@app.command()
def replay(
    where: Where,
    stream: Stream,
    group: Name,
    lsn: Annotated[str | None, typer.Option(help="From this LSN on, of a PostgreSQL source: 16/B374D848.")] = None,
    since: Annotated[str | None, typer.Option(help="From what was committed at this time on (ISO 8601).")] = None,
    offset: Annotated[int | None, typer.Option(help="From this offset of the pipeline's log on.")] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Instead: the group's dead letters.")] = False,
    sink: Sink = None,
    schema: Schema = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Give a group messages again, also those that it acked."""

    if sum(v is not None for v in (lsn, since, offset)) + dead != 1:
        raise ConfigError("a replay begins at one place", fix="Give one of --lsn, --since, --offset, --dead.")
    with _client(where, sink, schema) as client:
        members = _group(client, stream, group)
        count = members.revive() if dead else members.replay(lsn=lsn, time=_timestamp(since), offset=offset)
    if as_json:
        terminal.show_json({"stream": stream, "group": group, "messages": count})
    else:
        terminal.say(f"{count:,} messages will be given again")


@app.command()
def dead(
    where: Where,
    stream: Stream,
    group: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 100,
    sink: Sink = None,
    schema: Schema = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List messages that a group gave up on, and why."""
    with _client(where, sink, schema) as client:
        dead_letters = _group(client, stream, group).dead_letters(limit)
    if as_json:
        fields = ("id", "event_id", "attempts", "reason", "died_at")
        terminal.show_json(
            {"dead_letters": [{name: dead_letter[name] for name in fields} for dead_letter in dead_letters]}
        )
        return
    columns = ("id", "event_id", "attempts", "died_at", "reason")
    rows = [tuple(dead_letter[name] for name in columns) for dead_letter in dead_letters]
    terminal.show_table(columns, rows, empty=f"{group} has no dead letters.")


@contextmanager
def _client(where: str, sink: str | None, schema: str | None) -> Iterator[Client]:
    from tidemill.service.pgstream_queue import open_queue

    with open_queue(where, sink, schema) as client:
        yield client


def _group(client: Client, stream: str, name: str) -> Group:
    from tidemill.service.pgstream_queue import Group

    return Group(client, stream, name)


def _report(claimed: Claimed, as_json: bool, *, quiet: bool = False) -> None:
    """Lost messages end the command with 1: somebody else has them."""
    if as_json:
        terminal.show_json({"done": list(claimed.done), "lost": list(claimed.lost)})
    elif not quiet:
        terminal.say(f"{len(claimed.done)} done")
    if claimed.lost:
        terminal.warn(f"not held any more: {', '.join(map(str, claimed.lost))}")
        raise typer.Exit(1)
    if not claimed.done and not quiet:
        terminal.warn("this token holds no message: were they acked, or given to somebody else?")
        raise typer.Exit(1)


def _timestamp(text: str | None) -> datetime.datetime | None:

    if text is None:
        return None
    try:
        timestamp = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f'"{text}" is not a time', fix="Write it like 2026-03-01T12:00:00Z.") from None
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=datetime.UTC)


def _render(message: Message) -> str:
    return message.payload.decode() if "json" in message.content_type else f"{len(message.payload)} bytes"


def _as_data(message: Message) -> dict[str, Any]:
    body: Any = base64.b64encode(message.payload).decode()
    if "json" in message.content_type:
        body = orjson.Fragment(message.payload)
    return {
        "id": message.id, "attempts": message.attempts, "event_id": message.event_id, "op": message.op,
        "table": message.table, "offset": message.offset, "position": message.position,
        "commit_time": message.commit_time, "key": None if message.key is None else _text(message.key),
        "content_type": message.content_type, "headers": message.headers, "payload": body,
    }  # fmt: skip


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return base64.b64encode(key).decode()
