"""A pipeline's processors over a few events, without a sink: what each event becomes, and what the stages cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from tidemill.config import Pipeline
from tidemill.config.secrets import reveal
from tidemill.contracts import ProcessorConfig
from tidemill.errors import ConfigError
from tidemill.formats.json import JsonFormat
from tidemill.log.reader import LogReader
from tidemill.model.block import Block, Op
from tidemill.model.tablenames import TableNames
from tidemill.service.schema.structures import KeptStructures, PrivateStructures
from tidemill.service.schema.tables import newest_tables
from tidemill.service.trial.sample_events import read_sample
from tidemill.stream.lane.chain import Chain, ChainRun

_FIELDS = ("schema", "table", "op", "before", "after", "unchanged", "route")
_ROWS = (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ)
_SCHEMAS = {"sqlite": "main", "turso": "main"}  # of sources whose tables are not in one called public


@dataclass(frozen=True, slots=True)
class TriedEvent:
    """`outcome` is unchanged, changed, dropped, failed or not_taken; `made` has several documents where one became
    several. `seen_by` are the processors whose `tables` and `ops` are for it: with none, it is not taken, and `reason`
    says what each of them is for."""

    event_id: str
    outcome: str
    before: dict[str, Any]
    made: list[dict[str, Any]]
    seen_by: list[str]
    processor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TriedStage:
    """`events_in` are all that it was given, also those that it failed on. `limits` has what the busiest call used,
    beside what it may use."""

    processor: str
    type: str
    events_in: int
    events_out: int
    failed: int
    seconds: float
    limits: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Trial:
    pipeline: str
    events: list[TriedEvent]
    stages: list[TriedStage]


def try_processors(
    pipeline: Pipeline, *, processor: str | None = None, sample: Path | None = None, from_log: int = 10
) -> Trial:
    """Of a file's events, or of the last ones in the log. Changes nothing: what is known of structures is used, as by
    `run`, and what is learned is not kept. Errors are shown with their messages, which may quote values: the events are
    the caller's own."""
    specs = [(p.type, reveal(p.config)) for p in pipeline.spec.processors]
    known = [str(config["id"]) for _, config in specs]
    if not specs:
        raise ConfigError(f'pipeline "{pipeline.name}" has no processors', fix="Add one under spec.processors.")
    if processor not in (None, *known):
        raise ConfigError(f'no processor is called "{processor}"', fix=f"The pipeline has: {', '.join(known)}.")
    if sample is not None:
        schema = _SCHEMAS.get(pipeline.spec.source.type, "public")
        blocks = read_sample(sample, newest_tables(pipeline), schema)
    else:
        blocks = list(_last(pipeline.log_uri, from_log))
    if not blocks:
        raise ConfigError("there are no events to try", fix="Give some with --events, or run the pipeline first.")
    chain = Chain(specs, pipeline.source_id, only=processor, on_error="dead_letter")
    try:
        run, made = _run(chain, PrivateStructures(KeptStructures(pipeline).load()), blocks)
        documents = _documents(blocks, pipeline.source_id), _documents(made, pipeline.source_id)
        events = _compare(*documents, run, _find_seen(chain, blocks))
        return Trial(pipeline.name, events, list(_stages(chain, run)))
    finally:
        chain.close()


def _run(chain: Chain, structures: PrivateStructures, blocks: list[Block]) -> tuple[ChainRun, list[Block]]:
    """As a lane does: again with what was learned, until nothing is. Events that fail stay out, and are named."""
    while True:
        run = chain.begin(structures.load())
        for member in chain.members:
            member.show_messages = True
        made = list(run.blocks(iter(blocks)))
        if not run.learned:
            return run, made
        structures.save(run.learned)


def _find_seen(chain: Chain, blocks: list[Block]) -> dict[int, tuple[list[str], str]]:
    """By offset: the processors that the event is for; where there is none, what each is for instead."""
    found: dict[int, tuple[list[str], str]] = {}
    configs = [member.config for member in chain.members]
    for block in blocks:
        mine = [config for config in configs if TableNames(config.tables).match(block.table)]
        for offset, op in zip(block.offsets().tolist(), block.batch.column("op").to_pylist(), strict=True):
            label = Op(op).label
            seen_by = [config.id for config in mine if not config.ops or label in config.ops]
            why = "" if seen_by else f"it is {label} of {block.table.full_name}; " + "; ".join(map(_takes, configs))
            found[offset] = seen_by, why
    return found


def _takes(config: ProcessorConfig) -> str:
    ops, tables = ", ".join(config.ops) or "all operations", ", ".join(config.tables) or "all tables"
    return f'"{config.id}" takes {ops} of {tables}'


def _last(uri: str, events: int) -> Iterator[Block]:
    """The newest blocks with `events` rows at most, oldest first."""
    reader = LogReader(uri)
    tail = reader.tail().offset
    for ref in reader.refs(max(reader.head(), tail - events), tail):
        block = reader.read(ref)
        if set(block.batch.column("op").to_pylist()) <= {int(op) for op in _ROWS}:
            yield block


def _documents(blocks: list[Block], source: str) -> dict[int, list[dict[str, Any]]]:
    """By offset. The route is no field of an event, but what a trial is about."""
    form = JsonFormat()
    found: dict[int, list[dict[str, Any]]] = {}
    for block in blocks:
        route = block.column("route")
        routes = route.to_pylist() if route is not None else [None] * block.rows
        strings = form.encode(block, source).to_pylist()
        for offset, text, to in zip(block.offsets().tolist(), strings, routes, strict=True):
            document = orjson.loads(text)
            if to is not None:
                route_of = {k: v for k, v in {**to, "headers": dict(to["headers"] or ())}.items() if v}
                document |= {"route": route_of} if route_of else {}
            found.setdefault(offset, []).append(document)
    return found


def _compare(
    before: dict[int, list[dict[str, Any]]], after: dict[int, list[dict[str, Any]]], run: ChainRun,
    seen: dict[int, tuple[list[str], str]],
) -> list[TriedEvent]:  # fmt: skip
    events = []
    for offset, [document] in sorted(before.items()):
        was, made = _show(document), [_show(each) for each in after.get(offset, ())]
        failure, (seen_by, why) = run.failures.get(offset), seen[offset]
        outcome = "failed" if failure else "dropped" if not made else "unchanged" if made == [was] else "changed"
        named = (failure.processor, failure.reason) if failure else ("", why)
        outcome = outcome if seen_by else "not_taken"
        events.append(TriedEvent(document["event_id"], outcome, was, made, seen_by, *named))
    return events


def _show(document: dict[str, Any]) -> dict[str, Any]:
    return {name: document[name] for name in _FIELDS if name in document}


def _stages(chain: Chain, run: ChainRun) -> Iterator[TriedStage]:
    for kind, member, count in zip(chain.types, chain.members, run.counts, strict=True):
        limits = {
            name: {"used": round(used, 3), "limit": limit}
            for name, (used, limit) in islice(member.limit_usage().items(), 10)
        }
        yield TriedStage(
            count.processor,
            kind,
            count.events_in + count.dead_letters,
            count.events_out,
            count.dead_letters,
            round(count.seconds, 6),
            limits,
        )
