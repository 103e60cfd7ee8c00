"""A condition over a block: true, false, or null where it cannot be told. A column at a time."""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import ConfigError
from tidemill.model.block import Block, Op, Side
from tidemill.model.columns import booleans
from tidemill.model.odd import OddValues
from tidemill.processors._shared.columns import near
from tidemill.processors._shared.types import cast
from tidemill.processors.filter.condition import SIDES, Condition

_COMPARE: dict[str, Callable[[Any, Any], pa.Array]] = {
    "eq": pc.equal, "ne": pc.not_equal, "gt": pc.greater, "gte": pc.greater_equal, "lt": pc.less, "lte": pc.less_equal,
}  # fmt: skip
_LABELS = pa.array([None, *(op.label for op in Op)], pa.string())


def evaluate(condition: Condition, block: Block) -> pa.Array:
    """A boolean per row."""
    return _evaluate_node(condition, _Fields(block))


def _evaluate_node(condition: Condition, fields: _Fields) -> pa.Array:
    if condition.all is not None:
        return functools.reduce(pc.and_kleene, (_evaluate_node(each, fields) for each in condition.all))
    if condition.any is not None:
        return functools.reduce(pc.or_kleene, (_evaluate_node(each, fields) for each in condition.any))
    assert condition.field is not None
    operator, operand = condition.operator, condition.operand(condition.operator)
    if operator == "changed":
        found = fields.changed(condition.field)
        return found if operand else pc.invert(found)
    values, known, odd = fields.values(condition.field)
    if operator in ("exists", "not_exists"):
        found = values.is_valid() if odd is None else pc.or_(values.is_valid(), odd)
        result = found if operand is (operator == "exists") else pc.invert(found)
    else:
        # Of NULL nothing is true except that it differs.
        result = pc.fill_null(_compare_values(operator, values, operand, condition.field), operator in ("ne", "not_in"))
        if odd is not None:  # NaN of a numeric, infinity of a date: it cannot be compared
            known = pc.invert(odd) if known is None else pc.and_not(known, odd)
    return result if known is None else pc.if_else(known, result, pa.scalar(None, pa.bool_()))


class _Fields:
    """What a block's rows have under the names that conditions use. Each is made once."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._odd = OddValues(block)
        self._structs = {side: block.struct(side) for side in SIDES}
        self._valid = {
            side: column.is_valid().to_numpy(zero_copy_only=False)
            for side in SIDES
            if (column := block.column(side)) is not None
        }
        self.values = functools.cache(self._values)

    def _values(self, field: str) -> tuple[pa.Array, pa.Array | None, pa.Array | None]:
        """The values; which rows' are known, None: all of them; and which are beyond their type, None: none."""
        block = self._block
        if field == "op":
            return _LABELS.take(block.batch.column("op")), None, None
        if field == "table":
            return pa.repeat(pa.scalar(block.table.full_name), block.rows), None, None
        side, name = self._place(field)
        if side:
            values, known = self._on(side, name)
            return values, _unless_all(known), _unless_none(self._odds(side, name))
        values, known = self._on("after", name)
        odd = self._odds("after", name)
        has = self._valid.get("after", np.zeros(block.rows, bool))
        for other in ("before", "key"):
            # The old value where there is no new one: of a deleted row, and of a column that was not sent again.
            wanting = ~known if other == "before" else ~known & ~has
            if not wanting.any():
                break
            more, there = self._on(other, name)
            use = wanting & there
            if use.any():
                values, known = pc.if_else(booleans(use), more, values), known | use
                odd |= use & self._odds(other, name)
        return values, _unless_all(known), _unless_none(odd)

    def _place(self, field: str) -> tuple[str, str]:
        side, _, name = field.partition(".")
        names = {column.name for column in self._block.table.columns}
        if side in SIDES and name:
            if name not in names:
                raise near(name, self._block.table)
            return side, name
        if field not in names:
            raise near(field, self._block.table)
        return "", field

    def _on(self, side: str, name: str) -> tuple[pa.Array, Any]:
        """The column of one image, and which rows have it."""
        block, struct = self._block, self._structs[side]
        kind = next(c.type.arrow for c in block.table.columns if c.name == name)
        if struct is None or name not in struct:
            return pa.nulls(block.rows, kind), np.zeros(block.rows, bool)
        known = self._valid[side].copy()
        if side == "after":
            known &= ~self._unsent(name)
        return struct[name], known

    def _unsent(self, name: str) -> Any:
        lists = self._block.column("unchanged")
        mask = np.zeros(self._block.rows, bool)
        if lists is not None and len(flat := lists.flatten()):
            number = next(n for n, c in enumerate(self._block.table.columns) if c.name == name)
            mask[pc.list_parent_indices(lists).to_numpy()[flat.to_numpy() == number]] = True
        return mask

    def _odds(self, side: str, name: str) -> Any:
        """Rows whose value in this image the column's type cannot hold."""
        found = self._exact(side, name)
        return np.zeros(self._block.rows, bool) if found is None else found.is_valid().to_numpy(zero_copy_only=False)

    def _exact(self, side: str, name: str) -> pa.Array | None:
        number = next(n for n, c in enumerate(self._block.table.columns) if c.name == name)
        return self._odd.of(Side[side.upper()], number)

    def changed(self, field: str) -> pa.Array:
        """True of rows that came or went, null where the old value is not known."""
        _, name = self._place(field)
        block = self._block
        updates = block.batch.column("op").to_numpy() == Op.UPDATE
        new, sent = self._on("after", name)
        old, known = self._on("before", name)
        key, keyed = self._on("key", name)
        was = self._exact("before", name)
        use = keyed & ~known
        if use.any():
            old, known = pc.if_else(booleans(use), key, old), known | use
            was = _first(was, self._exact("key", name))
        differs = _differ(old, new) | _differ(was, self._exact("after", name))
        result = np.where(sent, differs, False) | ~updates
        return pc.if_else(booleans(known | ~sent | ~updates), booleans(result), pa.scalar(None, pa.bool_()))


def _unless_all(mask: Any) -> pa.Array | None:
    return None if mask.all() else booleans(mask)


def _unless_none(mask: Any) -> pa.Array | None:
    return booleans(mask) if mask.any() else None


def _first(a: pa.Array | None, b: pa.Array | None) -> pa.Array | None:
    return pc.coalesce(a, b) if a is not None and b is not None else b if a is None else a


def _differ(old: pa.Array | None, new: pa.Array | None) -> Any:
    """Rows that differ; NULL and NaN are the same as themselves. None has NULL everywhere."""
    if old is None or new is None:
        there = new if old is None else old
        return False if there is None else there.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_nested(new.type):  # row by row: Arrow has no comparison of lists
        return np.array([a != b for a, b in zip(old.to_pylist(), new.to_pylist(), strict=True)])
    unequal = pc.not_equal(old, new)
    if pa.types.is_floating(new.type):
        unequal = pc.and_not(unequal, pc.and_(pc.is_nan(old), pc.is_nan(new)))
    return pc.coalesce(unequal, pc.xor(old.is_valid(), new.is_valid())).to_numpy(zero_copy_only=False)


def _compare_values(operator: str, values: pa.Array, operand: Any, field: str) -> pa.Array:
    kind = values.type
    if operator in ("contains", "regex"):
        strings = values if pa.types.is_string(kind) or pa.types.is_large_string(kind) else _as_text(values, field)
        matches = pc.match_substring if operator == "contains" else pc.match_substring_regex
        return matches(strings, operand)
    if operator in ("in", "not_in"):
        found = functools.reduce(pc.or_, (_compare("eq", values, each, field) for each in operand))
        return found if operator == "in" else pc.invert(found)
    return _compare(operator, values, operand, field)


def _compare(operator: str, values: pa.Array, operand: Any, field: str) -> pa.Array:
    kind = values.type
    if pa.types.is_integer(kind) and isinstance(operand, int | float) and not isinstance(operand, bool):
        if isinstance(operand, float) and not operand.is_integer():
            # 2.5 is between two whole numbers: no rounding of the column.
            if operator in ("eq", "ne"):
                return _constant(values, operator == "ne")
            below = math.floor(operand)
            return pc.greater(values, below) if operator in ("gt", "gte") else pc.less_equal(values, below)
        bounds = np.iinfo(kind.to_pandas_dtype())
        if not bounds.min <= operand <= bounds.max:
            above = operand > bounds.max
            return _constant(values, operator == "ne" or operator in (("lt", "lte") if above else ("gt", "gte")))
        return _COMPARE[operator](values, pa.scalar(int(operand), kind))
    return _COMPARE[operator](values, _scalar(operand, kind, field))


def _constant(values: pa.Array, truth: bool) -> pa.Array:
    return pc.if_else(values.is_valid(), pa.scalar(truth), pa.scalar(None, pa.bool_()))


def _scalar(operand: Any, kind: pa.DataType, field: str) -> pa.Scalar:
    try:
        if pa.types.is_boolean(kind) is not isinstance(operand, bool):
            raise pa.ArrowInvalid("a boolean is compared with a boolean")
        if pa.types.is_decimal(kind):
            return pa.scalar(decimal.Decimal(str(operand)))
        if pa.types.is_floating(kind):
            return pa.scalar(float(operand), kind)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return pa.scalar(operand if isinstance(operand, str) else _spell(operand), kind)
        if isinstance(operand, str):
            return cast(pa.array([operand]), kind)[0]
        return pa.scalar(operand, kind)
    except (pa.ArrowException, ValueError, TypeError, decimal.InvalidOperation) as error:
        raise ConfigError(
            f'"{field}" is {kind}, which the value given for it cannot be compared with',
            fix="Write numbers plainly, dates and times in ISO 8601, and text in quotes.",
        ) from error


def _spell(operand: Any) -> str:
    return ("true" if operand else "false") if isinstance(operand, bool) else str(operand)


def _as_text(values: pa.Array, field: str) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowException as error:
        raise ConfigError(f'"{field}" is {values.type}, which has no text to search') from error
