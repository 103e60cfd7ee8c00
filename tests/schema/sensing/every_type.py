"""Whether the JSON Schema that is sensed of blocks validates their events: for tests that have blocks of a type."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from jsonschema import Draft202012Validator

from tidemill.formats.json import JsonFormat
from tidemill.model.block import Block
from tidemill.schema.sensing import SensingOptions, Sensor, json_schema, unpack

ALL = SensingOptions(sample_rate=1, ranges=True, enumerations=True, formats=True)


def refused(blocks: Sequence[Block]) -> list[str]:
    """What is refused: of all blocks at once, and of each row by the schema of that row alone, where every value looked
    at is odd, null, a format, least and greatest."""
    every = [row for block in blocks for row in _refused([block], ALL)]
    alone = [
        what
        for block in blocks
        for row in range(block.rows)
        for what in _refused([block.take([row])], replace(ALL, max_depth=1 + row % 3))
    ]
    return [*every, *_refused(blocks, ALL), *alone]


def _refused(blocks: Sequence[Block], options: SensingOptions) -> list[str]:
    sensor = Sensor(options)
    for number, block in enumerate(blocks):
        sensor.observe(number, block)
    if not (packed := sensor.take()):
        return []
    (found,) = unpack(packed)
    schema = json_schema(found.profile)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    events = [json.loads(text) for block in blocks for text in JsonFormat().encode(block, "shop").to_pylist()]
    return [
        f"{error.message} at {error.json_path}"
        for event in events if event["after"] is not None for error in validator.iter_errors(event["after"])
    ]  # fmt: skip
