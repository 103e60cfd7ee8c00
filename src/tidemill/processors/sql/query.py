"""The SELECT of the processor `sql`: what it may not do is refused here, before anything runs.

Each output row must belong to one event, and the same events must give the same rows (invariants 4 and 5). So there is
one SELECT over `events`, joined with lookups at most: nothing that groups, sorts, cuts or combines rows, and no
function that asks a clock, a random number or the outside.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

EVENTS = "events"
META = ("_op", "_timestamp", "_tx_id", "_position", "_ordinal")
ROW = "_row"
_VOLATILE = {
    "random", "rand", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "now", "current_timestamp", "current_date",
    "current_time", "current_localtime", "current_localtimestamp", "localtime", "localtimestamp", "today",
    "get_current_time", "get_current_timestamp", "transaction_timestamp", "nextval", "currval", "setseed",
    "txid_current", "current_setting", "current_user", "user", "session_user", "version", "getenv", "getvariable",
    "query", "query_table", "current_schema", "current_schemas", "current_database", "current_catalog",
    "current_query", "current_query_id", "current_transaction_id", "current_connection_id", "in_search_path", "ago",
    "pg_conf_load_time", "pg_postmaster_start_time", "setval", "sleep_ms", "write_log", "stats", "vector_type", "error",
}  # fmt: skip
_ROW_MAKERS = {"generate_subscripts", "regexp_split_to_table", "unnest", "unlist"}
_OF_FILES = re.compile(r"(read|parquet|duckdb|pragma|sniff|iceberg|delta|sqlite|postgres|mysql)_|glob$|\w+_scan$")
_CLAUSES = {
    "with_": "WITH", "with": "WITH", "group": "GROUP BY", "having": "HAVING", "distinct": "DISTINCT", "limit": "LIMIT",
    "offset": "OFFSET", "order": "ORDER BY", "qualify": "QUALIFY", "sample": "SAMPLE", "windows": "WINDOW",
    "laterals": "LATERAL", "into": "INTO", "locks": "FOR UPDATE",
}  # fmt: skip


class QueryRefused(ValueError):
    """Says what the query may not do."""


@dataclass(frozen=True, slots=True)
class Output:
    """One column that comes out: `source` is the events' column that passes as it is, else `sql` computes it."""

    name: str
    source: str | None
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The query for one table. `sql` gives the row's number and the computed columns; `used` are columns of the events
    that it reads, passing ones not counted."""

    outputs: tuple[Output, ...]
    sql: str
    used: frozenset[str]


class SelectQuery:
    """A query that was found good; raises `QueryRefused`."""

    def __init__(self, text: str, lookups: Collection[str]) -> None:
        self._lookups = {name.casefold() for name in lookups}
        if not self._lookups.isdisjoint({EVENTS, ROW}):
            raise QueryRefused(f'a lookup cannot be called "{EVENTS}"')
        try:
            parsed = [each for each in sqlglot.parse(text, dialect="duckdb") if each is not None]
        except SqlglotError as error:
            raise QueryRefused(f"the query does not parse: {str(error).splitlines()[0]}") from error
        if len(parsed) != 1:
            raise QueryRefused("the query must be one statement")
        if not isinstance(parsed[0], exp.Select):
            raise QueryRefused(f"the query must be a SELECT over {EVENTS}, not {parsed[0].key.upper()}")
        self._select: exp.Select = parsed[0]
        self._check()
        self._alias = self._select.args["from_"].this.alias_or_name.casefold()

    def compiled(self, columns: Sequence[str], lookups: Mapping[str, Sequence[str]]) -> Compiled:
        """For a table with these columns, beside lookups with theirs."""
        own = {name.casefold(): name for name in columns}
        outputs = list(self._outputs(own, columns, lookups))
        names = [output.name.casefold() for output in outputs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise QueryRefused(f'two columns of the query are called "{twice}": give one of them another name with AS')
        computed = [f'{each.sql} AS "{_escape(each.name)}"' for each in outputs if each.source is None]
        rest = self._select.copy()
        rest.set("expressions", [sqlglot.parse_one("1")])
        tail = rest.sql(dialect="duckdb").split(" FROM ", 1)[1]
        row = f'"{_escape(self._alias)}".{ROW}'
        used = set()
        for node in self._find_computing(own, lookups):
            for column in node.find_all(exp.Column):
                if self._is_event(column) and column.name.casefold() in own:
                    used.add(own[column.name.casefold()])
        return Compiled(tuple(outputs), f"SELECT {', '.join([row, *computed])} FROM {tail}", frozenset(used))

    def functions(self) -> frozenset[str]:
        return frozenset(_function_name(node) for node in self._select.find_all(exp.Func))

    def _outputs(
        self, own: Mapping[str, str], columns: Sequence[str], lookups: Mapping[str, Sequence[str]]
    ) -> Iterator[Output]:
        for item in self._select.expressions:
            star = item if isinstance(item, exp.Star) else item.this if isinstance(item, exp.Column) else None
            if isinstance(star, exp.Star):
                yield from self._expand(star, item, columns, lookups)
                continue
            inner = item.unalias()
            if isinstance(inner, exp.Column) and self._passes(inner, own, lookups):
                yield Output(item.alias or own[inner.name.casefold()], own[inner.name.casefold()])
                continue
            name = item.alias_or_name
            if not name:
                raise QueryRefused(f"give the column {item.sql(dialect='duckdb')[:60]} a name with AS")
            yield Output(name, None, inner.sql(dialect="duckdb"))

    def _expand(
        self, star: exp.Star, item: exp.Expression, columns: Sequence[str], lookups: Mapping[str, Sequence[str]]
    ) -> Iterator[Output]:
        if star.args.get("rename"):
            raise QueryRefused("RENAME of a star is not supported: write the column with AS")
        left_out = {each.name.casefold() for each in star.args.get("except_") or star.args.get("except") or ()}
        replaced = {each.alias.casefold(): each.unalias() for each in star.args.get("replace") or ()}
        table = item.table.casefold() if isinstance(item, exp.Column) else ""
        for name in columns if not table or table == self._alias else ():
            if name.casefold() in left_out:
                continue
            if (by := replaced.get(name.casefold())) is not None:
                yield Output(name, None, by.sql(dialect="duckdb"))
            else:
                yield Output(name, name)
        for alias, lookup in self._join_columns():
            for name in lookups[lookup] if not table or table == alias else ():
                if name.casefold() not in left_out:
                    yield Output(name, None, f'"{_escape(alias)}"."{_escape(name)}"')

    def _join_columns(self) -> Iterator[tuple[str, str]]:
        for join in self._select.args.get("joins") or ():
            yield join.this.alias_or_name.casefold(), join.this.name.casefold()

    def _is_event(self, column: exp.Column) -> bool:
        return not column.table or column.table.casefold() == self._alias

    def _passes(self, column: exp.Column, own: Mapping[str, str], lookups: Mapping[str, Sequence[str]]) -> bool:
        name = column.name.casefold()
        shared = not column.table and any(
            name in (each.casefold() for each in lookups[lookup]) for _, lookup in self._join_columns()
        )
        return self._is_event(column) and name in own and not shared

    def _find_computing(self, own: Mapping[str, str], lookups: Mapping[str, Sequence[str]]) -> Iterator[exp.Expression]:
        """The parts whose columns are read and not only passed on."""
        for item in self._select.expressions:
            inner = item.unalias()
            if isinstance(inner, exp.Star) or isinstance(inner.this, exp.Star):
                yield from (each for each in (inner.find(exp.Star) or inner).args.get("replace") or ())
            elif not (isinstance(inner, exp.Column) and self._passes(inner, own, lookups)):
                yield inner
        yield from self._select.args.get("joins") or ()
        if (where := self._select.args.get("where")) is not None:
            yield where

    def _check(self) -> None:
        select = self._select
        for name, clause in _CLAUSES.items():
            if select.args.get(name):
                raise QueryRefused(f"{clause} is not allowed: every output row must belong to one event")
        source = select.args.get("from_") or select.args.get("from")
        if source is None or not isinstance(source.this, exp.Table) or source.this.name.casefold() != EVENTS:
            raise QueryRefused(f"the query must be a SELECT ... FROM {EVENTS}")
        if next((node for node in select.find_all(exp.Query) if node is not select), None) is not None:
            raise QueryRefused("subqueries are not allowed: join a lookup instead")
        for table in select.find_all(exp.Table):
            if not isinstance(table.this, exp.Identifier) or table.db or table.catalog:
                raise QueryRefused("the query may read events and lookups only, no files, functions or other databases")
            if table is not source.this and table.name.casefold() not in self._lookups:
                known = ", ".join(sorted(self._lookups)) or "none are declared"
                raise QueryRefused(f'"{table.name}" is no lookup. Lookups: {known}.')
        for join in select.args.get("joins") or ():
            if not isinstance(join.this, exp.Table):
                raise QueryRefused("only lookups can be joined")
            if str(join.side).upper() in ("RIGHT", "FULL"):
                raise QueryRefused(f"{join.side} JOIN gives rows without an event: use LEFT JOIN or JOIN")
            if str(join.method).upper() in ("POSITIONAL", "ASOF"):
                raise QueryRefused(f"{join.method} JOIN depends on the order of rows")
        for node in select.walk():
            if isinstance(node, exp.AggFunc | exp.Window):
                raise QueryRefused(f"{_function_name(node)} combines rows: every output row must belong to one event")
            if isinstance(node, exp.Placeholder | exp.Parameter):
                raise QueryRefused("the query has parameters, and nobody fills them")
            if isinstance(node, exp.Columns | exp.Unnest | exp.Explode | exp.PositionalColumn | exp.TableSample):
                raise QueryRefused(f"{node.key.upper()} is not supported")
            if isinstance(node, exp.Func):
                _check_function(_function_name(node), len(list(node.iter_expressions())))
        for item in select.expressions:
            if isinstance(item.unalias(), exp.Condition) and item.find(exp.Star) and not isinstance(item, exp.Column):
                raise QueryRefused("a star stands alone, with EXCLUDE and REPLACE at most")


def _check_function(name: str, arguments: int) -> None:
    if name in _VOLATILE or (name == "age" and arguments == 1):
        raise QueryRefused(f"{name} would differ in a replay; _timestamp is the commit time")
    if name in _ROW_MAKERS:
        raise QueryRefused(f"{name} makes several rows of one: join a lookup instead")
    if _OF_FILES.match(name):
        raise QueryRefused(f"{name} reaches out of the query, which may read events and lookups only")


def _function_name(node: Any) -> str:
    """Without quotes, and without the schema that it may be called in."""
    return node.sql(dialect="duckdb").split("(")[0].strip().lower().replace('"', "").rpartition(".")[2]


def _escape(name: str) -> str:
    return name.replace('"', '""')
