"""How events can differ from what was declared of their table: docs/drift.md."""

from __future__ import annotations

import enum


class DriftKind(enum.StrEnum):
    UNEXPECTED_NULL = "unexpected_null"
    TYPE_MISMATCH = "type_mismatch"
    UNDECLARED_COLUMN = "undeclared_column"
    MISSING_COLUMN = "missing_column"
    STRUCTURE_CHANGE = "structure_change"
    OUT_OF_RANGE = "out_of_range"
