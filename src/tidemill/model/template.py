"""Routing templates: `${source.schema}.${source.table}` or `orders-${after.region:-unknown}` for topics, streams, keys.

    ${source.id}          the source's id                      same for every row of a block
    ${source.database}    (or ${database})                     "
    ${source.schema}      (or ${schema})                       "
    ${source.table}       (or ${table})                        "
    ${op}                 insert, update, delete, ...          per row
    ${commit.date}        of the transaction's commit, in UTC: 2026-01-31; also year, month, day, hour (two digits each)
    ${after.<column>}     the row's value; of a deleted row, or of a column that was not sent, the old value
    ${before.<column>}    the old row's value
    ${key.<column>}       the key's value
    ${...:-default}       the default where the value is NULL or was not sent

A template of the first kind costs one string per block; the others are rendered with Arrow, never row by row.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import ConfigError, Refused
from tidemill.model.block import Block, Op, Side
from tidemill.model.odd import OddValues
from tidemill.model.position import Offset
from tidemill.model.table import Table

_REFERENCE = re.compile(r"\$\{(?P<name>[^}:]*)(?P<default>:-[^}]*)?\}")
_ALIASES = {"database": "source.database", "schema": "source.schema", "table": "source.table"}
_COMMIT = {
    "commit.date": "%Y-%m-%d", "commit.year": "%Y", "commit.month": "%m", "commit.day": "%d", "commit.hour": "%H",
}  # fmt: skip
_OF_BLOCK = ("source.id", "source.database", "source.schema", "source.table")
# Where a row's value is looked for: a deleted row has no `after`, an inserted one no `before`.
_IMAGES = {"after": ("after", "before", "key"), "before": ("before", "key"), "key": ("key", "before", "after")}


@dataclass(frozen=True, slots=True)
class _Part:
    """A literal (`name` empty) or a reference with its default (None: a missing value is an error)."""

    text: str = ""
    name: str = ""
    default: str | None = None


class Template:
    """Parsed once; `ConfigError` names an unknown reference and the nearest known one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = tuple(_parse(text))
        names = [p.name for p in self._parts if p.name]
        self.is_literal = not names
        self.is_constant = all(name in _OF_BLOCK for name in names)

    def columns(self, *, with_default: bool) -> tuple[str, ...]:
        """Of the table, that it names with a default for them, or without one."""
        parts = [
            p for p in self._parts if p.name.partition(".")[0] in _IMAGES and (p.default is not None) is with_default
        ]
        return tuple(dict.fromkeys(part.name.partition(".")[2] for part in parts))

    def may_give(self, text: str) -> bool:
        """Whether some event could give this."""
        pattern = "".join(".*" if part.name else re.escape(part.text) for part in self._parts)
        return re.fullmatch(pattern, text, re.DOTALL) is not None

    def constant(self, table: Table, source: str, escape: Callable[[str], str] = str) -> str:
        """The one value all rows of a block share. Only for `is_constant` templates. `escape` as in `render`."""
        return "".join(p.text if not p.name else escape(_of_block(p, table, source)) for p in self._parts)

    def render(self, block: Block, source: str, escape: Callable[[str], str] | None = None) -> pa.Array:
        """One string per row, never null: `Refused` when a value is missing and the template has no default for it.

        `escape` is applied to values, not to the template's own text.
        """
        pieces: list[pa.Array | pa.Scalar] = []
        for part in self._parts:
            if not part.name:
                pieces.append(pa.scalar(part.text))
            elif part.name in _OF_BLOCK:
                value = _of_block(part, block.table, source)
                pieces.append(pa.scalar(escape(value) if escape else value))
            else:
                values = _of_rows(part, block)
                pieces.append(_escape(values, escape) if escape else values)
        joined = pc.binary_join_element_wise(*pieces, pa.scalar(""))
        return joined if isinstance(joined, pa.Array) else pa.repeat(joined, block.rows)

    def find_missing(self, block: Block, source: str) -> dict[Offset, str]:
        """For rows that `render` refuses: why, by offset. By halving: few rows are bad, as a rule, and `render` only
        says that some are."""
        try:
            self.render(block, source)
        except Refused:
            if block.rows == 1:
                return {int(block.offsets()[0]): f'no value for a part of "{self.text}"'}
            half = block.rows // 2
            parts = (Block(block.table, block.batch.slice(0, half)), Block(block.table, block.batch.slice(half)))
            return {offset: reason for part in parts for offset, reason in self.find_missing(part, source).items()}
        return {}


def _parse(text: str) -> list[_Part]:
    parts, end = [], 0
    for match in _REFERENCE.finditer(text):
        if match.start() > end:
            parts.append(_Part(text[end : match.start()]))
        name = _ALIASES.get(match["name"], match["name"])
        image, _, column = name.partition(".")
        if not (name in _OF_BLOCK or name == "op" or name in _COMMIT or (image in _IMAGES and column)):
            known = [*_OF_BLOCK, "op", *_COMMIT, "after.<column>", "before.<column>", "key.<column>"]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean ${{{near[0]}}}? " if near else ""
            raise ConfigError(f'the template "{text}" names "{name}"', fix=f"{hint}Known: {', '.join(known)}.")
        default = match["default"]
        parts.append(_Part(name=name, default=None if default is None else default[2:]))
        end = match.end()
    if "${" in text[end:]:
        raise ConfigError(f'the template "{text}" has a "${{" that is not closed', fix='Close it with "}".')
    if end < len(text):
        parts.append(_Part(text[end:]))
    return parts


def _of_block(part: _Part, table: Table, source: str) -> str:
    match part.name:
        case "source.id":
            value = source
        case "source.database":
            value = table.database
        case "source.schema":
            value = table.schema
        case _:
            value = table.name
    return value or part.default or ""


def _of_rows(part: _Part, block: Block) -> pa.Array:
    if part.name == "op":
        labels = pa.array([None, *(op.label for op in Op)], pa.string())
        return labels.take(block.batch.column("op"))
    if part.name in _COMMIT:
        times = block.batch.column("commit_time").cast(pa.timestamp("s"), safe=False)
        return _present([pc.strftime(times, format=_COMMIT[part.name])], part, block)
    image, _, column = part.name.partition(".")
    try:
        strings = _of_images(block, _IMAGES[image], column)
    except pa.ArrowException as error:
        raise Refused(
            f'"{column}" of {block.table.full_name} cannot be part of a name: {error}',
            fix="Route by a column of text, number, date or boolean type.",
        ) from error
    return _present([strings], part, block)


def _of_images(block: Block, sides: Sequence[str], name: str) -> pa.Array:
    """Each row's value in the first of these images that it has. A NULL there is its value: an older image has another
    one. Only a column that was not sent is looked for in the next."""
    odd, place = OddValues(block), next((n for n, c in enumerate(block.table.columns) if c.name == name), -1)
    strings = pa.nulls(block.rows, pa.string())
    for side in reversed(sides):
        image, fields = block.column(side), block.struct(side)
        if image is None or fields is None or name not in fields:
            continue
        found = pc.cast(fields[name], pa.string())
        if (exact := odd.of(Side[side.upper()], place)) is not None:
            found = pc.coalesce(found, exact)
        there = image.is_valid()
        if side == "after" and (unsent := _unsent(block, place)) is not None:
            there = pc.and_not(there, unsent)
        strings = pc.if_else(there, found, strings)
    return strings


def _unsent(block: Block, place: int) -> pa.Array | None:
    """Rows whose new image lacks the column."""
    lists = block.column("unchanged")
    if lists is None:
        return None
    parents = pc.list_parent_indices(lists).to_numpy()[lists.flatten().to_numpy() == place]
    mask = np.zeros(block.rows, bool)
    mask[parents] = True
    return pa.array(mask)


def _present(strings: list[pa.Array], part: _Part, block: Block) -> pa.Array:
    """The first value there is, or the default."""
    if part.default is not None:
        strings.append(pa.repeat(pa.scalar(part.default), block.rows))
    values = pc.coalesce(*strings) if strings else pa.nulls(block.rows, pa.string())
    if values.null_count:
        raise Refused(
            f"{values.null_count} of {block.rows} rows of {block.table.full_name} have no value for ${{{part.name}}}",
            fix=f"Give a default: ${{{part.name}:-other}}. For deletes, REPLICA IDENTITY FULL sends the old row.",
        )
    return values


def _escape(values: pa.Array, escape: Callable[[str], str]) -> pa.Array:
    distinct = values.dictionary_encode()
    return pa.array([escape(text) for text in distinct.dictionary.to_pylist()], pa.string()).take(distinct.indices)
