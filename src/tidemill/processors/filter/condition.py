"""A condition as the document has it: a field with one operator, or several conditions under `all` or `any`."""

from __future__ import annotations

import difflib
import re
from typing import Any

from pydantic import Field, model_validator

from tidemill.model.config import Config

Value = bool | int | float | str
OPERATORS = (
    "eq", "ne", "gt", "gte", "lt", "lte", "in", "not_in", "contains", "regex", "exists", "not_exists", "changed",
)  # fmt: skip
SIDES = ("after", "before", "key")


class Condition(Config):
    """Either `all`, `any`, or a `field` with exactly one operator."""

    all: tuple[Condition, ...] | None = Field(default=None, min_length=1, description="Every one of these is true.")
    any: tuple[Condition, ...] | None = Field(default=None, min_length=1, description="At least one of these is true.")
    field: str | None = Field(
        default=None,
        description="What is compared: `op`, `table`, `after.<column>`, `before.<column>`, `key.<column>`, or a column "
        "alone: its new value, or the old one of a deleted row.",
    )
    eq: Value | None = Field(default=None, description="Equal to.")
    ne: Value | None = Field(default=None, description="Not equal to; also true of NULL.")
    gt: Value | None = Field(default=None, description="Greater than.")
    gte: Value | None = Field(default=None, description="Greater than or equal to.")
    lt: Value | None = Field(default=None, description="Less than.")
    lte: Value | None = Field(default=None, description="Less than or equal to.")
    in_: tuple[Value, ...] | None = Field(default=None, alias="in", min_length=1, description="One of these.")
    not_in: tuple[Value, ...] | None = Field(
        default=None, min_length=1, description="None of these; also true of NULL."
    )
    contains: str | None = Field(default=None, description="The text has this in it.")
    regex: str | None = Field(default=None, description="A part of the text matches this expression (RE2).")
    exists: bool | None = Field(default=None, description="True: the value is not NULL. False: it is.")
    not_exists: bool | None = Field(default=None, description="True: the value is NULL. False: it is not.")
    changed: bool | None = Field(
        default=None, description="True: the new value differs from the old; true of inserts and deletes as well."
    )

    @model_validator(mode="before")
    @classmethod
    def _nearest_operator(cls, data: Any) -> Any:
        known = {"all", "any", "field", *OPERATORS}
        for key in data if isinstance(data, dict) else ():
            if key == "in_":
                data = {("in" if name == "in_" else name): value for name, value in data.items()}
            elif isinstance(key, str) and key not in known:
                close = difflib.get_close_matches(key, sorted(known), n=1)
                hint = f'Did you mean "{close[0]}"? ' if close else ""
                raise ValueError(f'unknown operator "{key}". {hint}There are: {", ".join(OPERATORS)}; all, any.')
        return data

    @model_validator(mode="after")
    def _one_thing(self) -> Condition:
        operators = [name for name in OPERATORS if self.operand(name) is not None]
        groups = [name for name in ("all", "any") if getattr(self, name) is not None]
        if groups and (self.field is not None or operators or len(groups) > 1):
            raise ValueError("a condition is `all`, or `any`, or a field with an operator: one of the three.")
        if not groups and self.field is None:
            raise ValueError("a condition needs a field: `{field: after.status, eq: paid}`.")
        if not groups and len(operators) != 1:
            named = ", ".join(operators) or "none"
            raise ValueError(f"a field has exactly one operator, not {named}. There are: {', '.join(OPERATORS)}.")
        if self.regex is not None:
            _check_regex(self.regex)
        if self.field is not None and self.changed is not None and self.field.partition(".")[0] in ("before", "key"):
            raise ValueError("changed compares both rows: name the column alone.")
        return self

    def operand(self, operator: str) -> Any:
        return getattr(self, "in_" if operator == "in" else operator)

    @property
    def operator(self) -> str:
        return next(name for name in OPERATORS if self.operand(name) is not None)


def _check_regex(text: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.match_substring_regex(pa.array([""]), text)
    except pa.ArrowInvalid as error:
        message = re.sub(r"^Invalid regular expression: ", "", str(error))
        raise ValueError(f"the expression is not one that RE2 takes: {message}") from error
