"""Names from templates (streams, subjects, URLs, paths) for a block's rows, and which rows cannot be named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.contracts import Format
from tidemill.errors import ConfigError, Poisoned, Refused
from tidemill.model.block import Block
from tidemill.model.route import header_entries
from tidemill.model.template import Template


def check_template(text: str) -> str:
    """For validators of config fields: the text itself, if it is a template."""
    try:
        Template(text)
    except ConfigError as error:
        raise ValueError(f"{error.what}. {error.fix}") from error
    return text


def of_a_table(text: str) -> str:
    """The same, if all rows of a table get one name."""
    if not Template(check_template(text)).is_constant:
        raise ValueError("a table's rows go to one table: only ${source.id}, .database, .schema and .table")
    return text


def names(
    template: Template, block: Block, source: str, escape: Callable[[str], str] | None = None
) -> pa.DictionaryArray:
    """One name per row, each name once in the dictionary. `Poisoned` says which rows have none."""
    if template.is_constant:
        zeros = pa.repeat(pa.scalar(0, pa.int32()), block.rows)
        return pa.DictionaryArray.from_arrays(zeros, pa.array([template.constant(block.table, source, escape or str)]))
    try:
        return template.render(block, source, escape).dictionary_encode()
    except Refused as error:
        reasons = template.find_missing(block, source)
        if not reasons:
            raise
        raise Poisoned(reasons, fix=error.fix) from error


def destinations(template: Template, block: Block, source: str) -> pa.DictionaryArray:
    """The same for topics, streams and subjects: where a processor named one (`route`), that is it."""
    route = block.column("route")
    topics = None if route is None else pc.struct_field(route, "topic")
    if topics is None or topics.null_count == block.rows:
        return names(template, block, source)
    if not topics.null_count:
        return topics.dictionary_encode()
    other = np.flatnonzero(topics.is_null().to_numpy(zero_copy_only=False))
    named = names(template, block.take(other), source).cast(pa.string())
    index = np.full(block.rows, -1)
    index[other] = np.arange(len(other))
    return pc.coalesce(topics, named.take(pa.array(index, mask=index < 0))).dictionary_encode()


def routed_keys(block: Block, keys: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Keys of messages, with those that a processor named."""
    route = block.column("route")
    given = None if route is None else pc.struct_field(route, "key")
    if given is None or given.null_count == block.rows:
        return keys
    return pc.coalesce(given.cast(pa.large_string()).cast(pa.large_binary()), keys)


def routed_headers(block: Block) -> dict[str, pa.StringArray]:
    """Headers that a processor gave, by name; null in rows that have no such header."""
    route = block.column("route")
    maps = None if route is None else pc.struct_field(route, "headers")
    if maps is None or maps.null_count == block.rows:
        return {}
    row, keys, values = header_entries(maps)
    coded = keys.dictionary_encode()
    found = {}
    for number, name in enumerate(coded.dictionary.to_pylist()):
        at = np.flatnonzero(coded.indices.to_numpy() == number)
        index = np.full(block.rows, -1)
        index[row[at]] = at
        found[name] = values.take(pa.array(index, mask=index < 0))
    return found


def documents(
    format: Format, block: Block, source: str, named: pa.DictionaryArray
) -> tuple[pa.LargeBinaryArray, pa.LargeBinaryArray]:
    """Every row as a document for where it goes, and its key: a schema registry may file schemas by destination."""
    topics = named.dictionary.to_pylist()
    if len(topics) == 1 or format.to(topics[0]) is format:
        one = format.to(topics[0]) if topics else format
        return one.encode(block, source), routed_keys(block, one.encode_key(block, source))
    rows = [np.flatnonzero(named.indices.to_numpy() == number) for number in range(len(topics))]
    parts = [(format.to(topic), block.take(mine)) for topic, mine in zip(topics, rows, strict=True)]
    back = pa.array(np.argsort(np.concatenate(rows), kind="stable"))
    values = pa.concat_arrays([one.encode(part, source) for one, part in parts]).take(back)
    keys = pa.concat_arrays([one.encode_key(part, source) for one, part in parts]).take(back)
    return values, routed_keys(block, keys)
