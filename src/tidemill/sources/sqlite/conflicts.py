"""Which rows a new one may replace, as SQL over `NEW` and a row `x` of the table. More than these do no harm, because
only what is gone counts; fewer would be a loss. Of a partial index all rows that it has are taken, whether it will have
the new one or not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tidemill.decoders.sqlite import SqliteKind, SqliteTable, kind_of
from tidemill.sources._shared.sqlite_catalog import IndexTerm, UniqueIndex, quote
from tidemill.sources._shared.sqlite_statements import SqliteToken, compares_values, expression_text

_MOST_MOVED = 3  # columns of two possible values each: eight ways
_MOST_INPUTS = 12  # of an expression, likewise


@dataclass(frozen=True, slots=True)
class TriggerSpec:
    """A table, and what its triggers depend on. `names` are all of its columns, also those that are not captured.
    `generated` and `defaults` are expressions by name, the latter of columns that may not be NULL. `nested`: its
    statements may meet each other (`WriteGraph.is_nested`). `mixed`: a foreign key to the table compares columns of two
    affinities, and then SQLite (seen in 3.40 and 3.45) may leave a value in OLD or NEW as it was compared, and not as
    it is stored: of a text key that an INT column refers to, '07', there is only the number 7."""

    table: SqliteTable
    names: tuple[str, ...]
    generated: Mapping[str, Sequence[SqliteToken]]
    defaults: Mapping[str, str]
    uniques: tuple[UniqueIndex, ...]
    nested: bool = False
    mixed: bool = False

    @property
    def has_computed_keys(self) -> bool:
        """A generated column, or an expression, is unique."""
        stored = {c.name for c in self.table.columns if not c.generated}
        return any(term.column not in stored for index in self.uniques for term in index.terms)

    @property
    def recomputes(self) -> bool:
        """Whether NEW may have a generated column as the new row will not have it: computed of NULL where REPLACE will
        put a default, or of what a BEFORE trigger has changed since."""
        return bool(self.defaults) or self.nested or self.mixed

    @property
    def doubtful(self) -> dict[str, str]:
        """Unique indexes with an expression whose value for a new row cannot be known, and why. It compares columns,
        and a comparison depends on their types, which NEW does not have in triggers; or it is made of the rowid, which
        NEW does not have either before SQLite has chosen one."""
        found = {}
        for index in self.uniques:
            if any(map(compares_values, self._expressions(index))):
                found[index.name] = "it compares values in an expression"
            elif any(self._is_of_rowid(term) for term in index.terms):
                found[index.name] = "it is of an expression of the INTEGER PRIMARY KEY"
            elif self._has_many_inputs(index):
                found[index.name] = f"it is of an expression of more than {_MOST_INPUTS} columns"
        return found

    def _expressions(self, index: UniqueIndex) -> Iterator[Sequence[SqliteToken]]:
        """Expressions that triggers compute to know the index's values."""
        for term in index.terms:
            yield term.expression
            if self.recomputes:
                yield from self._sources(term).values()

    def _has_many_inputs(self, index: UniqueIndex) -> bool:
        if not (self.nested or self.mixed):
            return False
        columns = {name.lower() for name in self.names}
        return any(len({t.word for t in made} & columns) > _MOST_INPUTS for made in self._expressions(index))

    def _is_of_rowid(self, term: IndexTerm) -> bool:
        at = self.table.rowid_column
        if at is None:
            return False
        names = {token.word for made in (term.expression, *self._sources(term).values()) for token in made}
        return self.table.columns[at].name.lower() in names

    def _sources(self, term: IndexTerm) -> dict[str, Sequence[SqliteToken]]:
        """Generated columns that the term is made of, also through others, with their expressions."""
        generated = {name.lower(): expression for name, expression in self.generated.items()}
        found: dict[str, Sequence[SqliteToken]] = {}
        left = {token.word for token in term.expression} or {term.column.lower()}
        while left := (left & generated.keys()) - found.keys():
            found |= {name: generated[name] for name in left}
            left = {token.word for name in left for token in generated[name]}
        return found


class ConflictSql:
    """`rowid` is how the rowid can be named. `current` selects the row that an UPDATE changes, as `cur`: BEFORE
    triggers may have changed it, and columns that the UPDATE does not set are read again after them."""

    def __init__(self, spec: TriggerSpec, rowid: str | None, current: str = "") -> None:
        self._spec, self._current = spec, current
        self._rowid = None if spec.table.without_rowid else rowid
        self._names = {name.lower(): name for name in spec.names}

    def conflict(self, *, moved: bool = False) -> str:
        """`moved`: of an UPDATE whose row may have been changed, so that it gets for each column the value of NEW or
        that of `cur`."""
        found = [] if self._rowid is None else [f"x.{self._rowid} = NEW.{self._rowid}"]
        for index in self._spec.uniques:
            found += [" AND ".join([*terms, *self._holds(index)]) for terms in self._terms(index, moved)]
        return " OR ".join(f"({condition})" for condition in found)

    def _terms(self, index: UniqueIndex, moved: bool) -> Iterator[Sequence[str]]:
        """Ways in which all terms of the index may be equal. Of a partial one each has single values: where SQLite has
        to guess how many there are, it may prefer another index that the condition names."""
        names = [term.column for term in index.terms if term.column]
        names += [name for term in index.terms for name in self._column_names(term.expression)]
        columns = list(dict.fromkeys(names))
        recomputed = any(self._is_recomputed(name, moved) for name in columns)
        if not index.condition or recomputed or (moved and len(columns) > _MOST_MOVED):
            yield [self._equal(term, moved) for term in index.terms]
            return
        ways = ([self._value(c), *([f"(SELECT cur.{quote(c)} {self._current})"] if moved else [])] for c in columns)
        for made in product(*ways):
            given = dict(zip(columns, made, strict=True))
            yield [self._equal_one(term, given) for term in index.terms]

    def _equal_one(self, term: IndexTerm, given: Mapping[str, str]) -> str:
        """With these values of columns."""
        collation = f"COLLATE {quote(term.collation)}"
        if not term.expression:
            return f"x.{quote(term.column)} = {given[term.column]} {collation}"
        text = expression_text(term.expression, self._names.keys())
        inputs = ", ".join(f"{given[name]} AS {quote(name)}" for name in self._column_names(term.expression))
        return f"({text}) {collation} = (SELECT {text}{f' FROM (SELECT {inputs})' if inputs else ''})"

    def _column_names(self, expression: Sequence[SqliteToken]) -> list[str]:
        """Columns in it."""
        return list(dict.fromkeys(self._names[token.word] for token in expression if token.word in self._names))

    def may_be_in_the_way(self) -> str:
        """Of a row `x` that was changed from `OLD` to `NEW`: whether it may stand now where it did not."""
        found = [] if self._rowid is None else [f"NEW.{self._rowid} IS NOT OLD.{self._rowid}"]
        for index in self._spec.uniques:
            given = [f"x.{quote(term.column)} IS NOT NULL" for term in index.terms if term.column]
            found.append(" AND ".join([*given, *self._holds(index)]) or "1")
        return f"{self.may_replace()}({' OR '.join(found)})"

    def _holds(self, index: UniqueIndex) -> list[str]:
        """Whether the index has `x`. SQLite finds a row by a partial index only where a query says so: without it, each
        write would read the whole table."""
        return [f"({expression_text(index.condition, self._names.keys())})"] if index.condition else []

    def marks(self) -> str:
        """A comment for each unique index, by which a later look knows that it was taken into account."""
        return " ".join(f"/* unique {index_mark(index)} */" for index in self._spec.uniques)

    def load_inputs(self) -> str:
        """A statement that does nothing but name every column. Before an UPDATE, SQLite loads of the row only what it
        sets and what triggers name, and makes generated columns of that: of a column that is not there, of NULL."""
        if not self._spec.has_computed_keys:
            return ""
        stored = (quote(name) for name in self._spec.names if name not in self._spec.generated)
        return f"SELECT {', '.join(f'NEW.{name}' for name in stored)}; "

    def may_replace(self) -> str:
        """An UPDATE that leaves keys alone replaces nothing, and looks for nothing. Any column may bring a row into a
        partial index, or change what is computed. `UPDATE OF` would not do: it does not know SET rowid = ..."""
        spec = self._spec
        if spec.has_computed_keys or any(index.partial for index in spec.uniques):
            return ""
        names = {name for index in spec.uniques for name in index.columns} | set(spec.table.key)
        columns = [quote(c.name) for c in spec.table.columns if c.name in names]
        if self._rowid is not None:
            columns.append(self._rowid)
        return f"({' OR '.join(f'NEW.{c} IS NOT OLD.{c} COLLATE BINARY' for c in columns)}) AND "

    def _equal(self, term: IndexTerm, moved: bool) -> str:
        collation = f"COLLATE {quote(term.collation)}"
        if term.expression:
            text = expression_text(term.expression, self._names.keys())
            return f"({text}) {collation} IN (SELECT {text}{self._inputs(term.expression, moved)})"
        name = quote(term.column)
        if moved or self._is_recomputed(term.column, moved):
            return f"x.{name} {collation} IN ({self._values(term.column, moved)})"
        return f"x.{name} = {self._value(term.column)} {collation}"

    def _values(self, name: str, moved: bool) -> str:
        """A query of what the column may have in the new row."""
        quoted = quote(name)
        found = f"SELECT {self._value(name)} AS {quoted}"
        if self._is_recomputed(name, moved):
            expression = self._spec.generated[name]
            text, inputs = expression_text(expression, self._names.keys()), self._inputs(expression, moved)
            found += f" UNION ALL SELECT {text}{inputs}"
            if kind := self._cast(name):
                found += f" UNION ALL SELECT CAST({text} AS {kind}){inputs}"
        if not moved:
            return found
        given = self._value(name)
        other = f"(cur.{quoted} IS NOT {given} COLLATE BINARY OR typeof(cur.{quoted}) <> typeof({given}))"
        return f"{found} UNION ALL SELECT cur.{quoted} {self._current} AND {other}"

    def _inputs(self, expression: Sequence[SqliteToken], moved: bool) -> str:
        """FROM what the expression may be computed of."""
        names = self._column_names(expression)
        if moved and len(names) > _MOST_INPUTS:
            given = ", ".join(f"{self._value(name)} AS {quote(name)}" for name in names)
            kept = ", ".join(f"cur.{quote(name)}" for name in names)
            return f" FROM (SELECT {given} UNION ALL SELECT {kept} {self._current})"
        several = [name for name in names if moved or self._is_recomputed(name, moved)]
        one = ", ".join(f"{self._value(name)} AS {quote(name)}" for name in names if name not in several)
        queries = [f"(SELECT {one})"] if one else []  # SQLite joins 64 at most
        queries += [f"({self._values(name, moved)})" for name in several]
        return f" FROM {', '.join(queries)}" if queries else ""

    def _is_recomputed(self, name: str, moved: bool) -> bool:
        return (moved or bool(self._spec.defaults)) and name in self._spec.generated

    def _cast(self, name: str) -> str:
        """What a column's type makes of what is computed for it; empty where that stays as it is."""
        declared = next((c.declared for c in self._spec.table.columns if c.name == name), "")
        match kind_of(declared):
            case _ if not declared:
                return ""
            case SqliteKind.BLOB:
                return ""
            case SqliteKind.TEXT:
                return "TEXT"
            case SqliteKind.REAL:
                return "REAL"
            case _:
                return "NUMERIC"

    def _value(self, name: str) -> str:
        """REPLACE makes a NULL that may not be one the column's default, after our trigger."""
        default = self._spec.defaults.get(name)
        return f"coalesce(NEW.{quote(name)}, {default})" if default else f"NEW.{quote(name)}"


def are_known(uniques: Sequence[UniqueIndex], known: str, renamed: Mapping[str, str]) -> bool:
    """Whether a trigger with these marks has noted what each index lets REPLACE delete. One that has all rows stands
    for any part of them. `renamed` has the former names of columns, in lower case: a column with another name does not
    make another index."""
    wholes = (replace(index, condition=()) for index in uniques)
    pairs = zip(uniques, wholes, strict=True)
    return all(any(index_mark(each, renamed) in known for each in pair) for pair in pairs)


def index_mark(index: UniqueIndex, renamed: Mapping[str, str] | None = None) -> str:
    """What tells unique indexes apart."""
    former = renamed or {}

    def plain(name: str) -> str:
        return former.get(name.lower(), name.lower())

    def text(tokens: Sequence[SqliteToken]) -> list[str]:
        return [plain(token.name) if token.name else token.text for token in tokens]

    terms = [(plain(term.column), text(term.expression), term.collation) for term in index.terms]
    found: object = [terms, text(index.condition)] if index.condition else terms
    return hashlib.sha256(repr(found).encode()).hexdigest()[:12]
