"""The queue of a pgstream sink, for its consumers: found through a pipeline's file or by its URL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill import config
from tidemill.config import Pipeline
from tidemill.errors import AccessRefused, ConfigError, TidemillError
from tidemill.model.template import Template
from tidemill.sinks.pgstream import Claimed, Client, Group, Message, PgstreamConfig

__all__ = ["Claimed", "Client", "Group", "Message"]  # what callers are given

_NO_QUEUE = ("42P01", "3F000")  # undefined table, undefined schema


@contextmanager
def open_queue(where: str, sink: str | None, schema: str | None) -> Iterator[Client]:
    """`where` is a pipeline file, of which `sink` names one if it has several, or a postgresql:// URL. `ConfigError` if
    there is no queue."""
    if "://" in where:
        dsn, found = where, "pgstream"
    else:
        chosen = _choose(config.load(Path(where)), sink, where)
        dsn, found = chosen.dsn, chosen.queue_schema
    with _connect(dsn, schema or found) as client:
        yield client


@contextmanager
def open_queue_of(pipeline: Pipeline, sink: str | None, *, own_stream: str | None = None) -> Iterator[Client]:
    """As `open_queue`, of a pipeline that is known already. `own_stream` must be one that the sink writes: other
    pipelines may have theirs in the same queue."""
    chosen = _choose([pipeline], sink, pipeline.file)
    if own_stream is not None and not Template(chosen.stream).may_give(own_stream):
        raise AccessRefused(
            f'the sink "{chosen.id}" writes no stream of this name, and the token is not for other pipelines',
            where="stream", fix=f"It writes: {chosen.stream}",
        )  # fmt: skip
    with _connect(chosen.dsn, chosen.queue_schema) as client:
        yield client


@contextmanager
def _connect(dsn: str, queue: str) -> Iterator[Client]:
    try:
        with Client(dsn, schema=queue) as client:
            yield client
    except TidemillError as error:
        if getattr(error.__cause__, "sqlstate", None) not in _NO_QUEUE:
            raise
        raise ConfigError(
            f'there is no queue in the schema "{queue}"', where=error.where,
            fix="A pgstream sink makes it with its first batch; --schema names another one.",
        ) from error  # fmt: skip


def _choose(pipelines: Iterable[Pipeline], sink: str | None, where: str) -> PgstreamConfig:
    all_ = [s.config for p in pipelines for s in p.spec.sinks if isinstance(s.config, PgstreamConfig)]
    chosen = [c for c in all_ if sink in (None, c.id)]
    if len(chosen) == 1:
        return chosen[0]
    known = ", ".join(c.id for c in all_)
    fix = (
        f"Name one with --sink: {known}."
        if all_
        else "Name a file with a sink of type pgstream, or a postgresql:// URL."
    )
    raise ConfigError(f"the file has {len(chosen)} such pgstream sinks", where=where, fix=fix)
