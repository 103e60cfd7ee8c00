"""Hides the values of columns: a fixed text, a keyed hash, a part of the text, or NULL.

A hash is the same wherever the same value stands, in every table and every run, so masked keys still join. It is keyed
BLAKE2s (RFC 7693) of the value as text; who does not have the salt cannot try values out. NULL stays NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, SecretStr, model_validator

from tidemill.contracts import BaseProcessor
from tidemill.errors import ConfigError
from tidemill.model.block import Block, Side
from tidemill.model.config import Config
from tidemill.model.derived import SIDES, derived_table, image, reshape
from tidemill.model.odd import OddValues
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.processors._shared.columns import ColumnsConfig, choose, find_unmatched
from tidemill.processors.mask.blake2 import Blake2s
from tidemill.processors.mask.text import as_text

Method = Literal["redact", "hash", "partial", "nullify"]


class MaskRule(Config):
    columns: tuple[str, ...] = Field(min_length=1, description="Columns to hide: names, or patterns with * or %.")
    method: Method = Field(
        description="`redact` writes `text`, `hash` a keyed hash, `partial` the first and last characters, "
        "`nullify` NULL."
    )
    text: str = Field(default="***", description="What redact writes, and partial between the characters it leaves.")
    keep_first: int = Field(default=0, ge=0, description="Characters that partial leaves at the beginning.")
    keep_last: int = Field(default=4, ge=0, description="Characters that partial leaves at the end.")
    bytes: int = Field(default=16, ge=8, le=32, description="Length of a hash; it is written as twice as many digits.")


class MaskConfig(ColumnsConfig):
    rules: tuple[MaskRule, ...] = Field(
        min_length=1, description="What is hidden, and how. The first rule that names a column decides."
    )
    salt: SecretStr | None = Field(
        default=None, description="Secret of the method hash. With another one, hashes do not join with earlier ones."
    )

    @model_validator(mode="after")
    def _check_salt(self) -> MaskConfig:
        hashing = any(rule.method == "hash" for rule in self.rules)
        if hashing and (self.salt is None or len(self.salt.get_secret_value()) < 8):
            raise ValueError("the method hash needs a salt of at least 8 characters: `salt: ${MASK_SALT}`.")
        if self.salt is not None and not hashing:
            raise ValueError("the salt is for the method hash, which no rule has. Remove it.")
        return self


class MaskProcessor(BaseProcessor[MaskConfig]):
    Config = MaskConfig
    checked = False
    whole_rows = True

    def __init__(self, config: MaskConfig) -> None:
        super().__init__(config)
        salt = config.salt.get_secret_value() if config.salt is not None else ""
        self._rules = [(rule, _method(rule, salt)) for rule in config.rules]
        self._known: dict[object, dict[str, int]] = {}

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            rules = self._rules_of(block.table)
            if not rules:
                yield block
                continue
            table = self.derive(block.table)
            odd = OddValues(block)
            images = {side: self._image(block, side, rules, odd) for side in SIDES if block.column(side) is not None}
            yield reshape(block, table, images, [column.name for column in table.columns], plain=rules)

    def derive(self, table: Table) -> Table:
        rules = self._rules_of(table)
        if not rules:
            return table
        return derived_table(table, [self._column(column, table, rules) for column in table.columns])

    def unmatched_columns(self, tables: Sequence[Table]) -> Sequence[str]:
        return find_unmatched([text for rule in self.config.rules for text in rule.columns], tables)

    def _rules_of(self, table: Table) -> dict[str, int]:
        """The number of its rule by column."""
        if table.lineage not in self._known:
            found: dict[str, int] = {}
            for number, (rule, _) in enumerate(self._rules):
                for name in choose(table, rule.columns, self.config.missing):
                    found.setdefault(name, number)
            self._known[table.lineage] = found
        return self._known[table.lineage]

    def _column(self, column: Column, table: Table, rules: dict[str, int]) -> Column:
        if column.name not in rules:
            return column
        rule = self._rules[rules[column.name]][0]
        if column.name in table.key and rule.method != "hash":
            raise ConfigError(
                f'{rule.method} would make one key of many: "{column.name}" is in the key of {table.full_name}',
                fix="Use the method hash, which keeps keys apart.",
            )
        # What it held when it was added is a value too, and the type is another.
        if rule.method == "nullify":
            return replace(column, nullable=True, initial=None)
        return replace(column, type=DataType("text", pa.string(), JsonForm.STRING), initial=None)

    def _image(self, block: Block, side: str, rules: dict[str, int], odd: OddValues) -> pa.StructArray:
        struct: pa.StructArray = block.column(side)
        columns, arrays = [], []
        for number, column in enumerate(block.table.columns):
            at = struct.type.get_field_index(column.name)
            if at < 0:
                continue
            values = struct.field(at)
            if column.name in rules:
                rule, method = self._rules[rules[column.name]]
                if rule.method == "nullify":
                    values = pa.nulls(len(values), values.type)
                else:
                    exact = odd.of(Side[side.upper()], number)
                    values = method(values, column, exact)
            columns.append(column)
            arrays.append(values)
        return image(arrays, columns, struct)


Masking = Callable[[pa.Array, Column, pa.Array | None], pa.Array]


def _method(rule: MaskRule, salt: str) -> Masking:
    match rule.method:
        case "hash":
            hasher = Blake2s(salt.encode(), rule.bytes)
            return lambda values, column, odd: hasher.hexdigests(_text(values, column, odd))
        case "partial":
            return lambda values, column, odd: _partly(_text(values, column, odd), rule)
        case _:
            return lambda values, column, odd: _redact(values, rule.text, odd)


def _text(values: pa.Array, column: Column, odd: pa.Array | None) -> pa.Array:
    strings = as_text(values, column)
    return strings if odd is None else pc.coalesce(odd.cast(strings.type), strings)


def _redact(values: pa.Array, text: str, odd: pa.Array | None) -> pa.Array:
    """One text for all: a dictionary would be smaller, but sinks want plain columns."""
    there: Any = values.is_valid() if odd is None else pc.or_(values.is_valid(), odd.is_valid())
    whole = pa.repeat(pa.scalar(text), len(values))
    return whole if pc.all(there).as_py() is not False else pc.if_else(there, whole, pa.scalar(None, pa.string()))


def _partly(strings: pa.Array, rule: MaskRule) -> pa.Array:
    """Nothing but the text in the middle where the value is too short to hide anything else."""
    first = pc.utf8_slice_codeunits(strings, 0, rule.keep_first) if rule.keep_first else ""
    last = pc.utf8_slice_codeunits(strings, -rule.keep_last) if rule.keep_last else ""
    joined = pc.binary_join_element_wise(first, rule.text, last, "")
    if not isinstance(joined, pa.Array):
        joined = pa.repeat(joined, len(strings))
    long = pc.greater(pc.utf8_length(strings), rule.keep_first + rule.keep_last)
    return pc.if_else(long, joined, pc.if_else(strings.is_valid(), rule.text, pa.scalar(None, pa.string()))).cast(
        pa.string()
    )


component = MaskProcessor
