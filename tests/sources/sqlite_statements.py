"""Random schemas and statements of SQLite: every conflict clause, triggers that write to their own table, foreign keys
that come back to it, computed keys, tables with and without a rowid. The same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

_VALUES = ("NULL", "0", "1", "2", "3", "1.5", "'a'", "'A'", "'b'", "''", "x'61'", "-1", "'1'", "'07'", "7", "'a '")
_CLAUSES = ("", "", " OR REPLACE", " OR REPLACE", " OR IGNORE", " OR FAIL", " OR ABORT")
_ON_CONFLICT = ("", "", "", "", " ON CONFLICT REPLACE", " ON CONFLICT IGNORE", " ON CONFLICT FAIL")
_DEFAULTS = ("1", "'a'", "NULL", "(abs(-2))", "(1+1)", "(lower('A'))", "CURRENT_DATE")
_ACTIONS = ("CASCADE", "SET NULL", "SET DEFAULT", "NO ACTION")
_KEYS = ("rowid", "rowid", "rowid", "text", "none", "composite", "descending", "counted")
_VIEW = "s"
_COLLATIONS = ("", "", "", " COLLATE NOCASE", " COLLATE NOCASE", " COLLATE RTRIM")
_CHECKS = ("{0} IS NOT {1}", "{0} <= {1}", "length({0}) < 3", "typeof({0}) <> 'blob'", "{0} || {1} <> '11'")
_RAISES = ("IGNORE", "IGNORE", "IGNORE", "ABORT, 'no'", "ROLLBACK, 'no'", "FAIL, 'no'")
_SETTINGS = (
    "recursive_triggers = ON", "recursive_triggers = OFF", "foreign_keys = ON", "foreign_keys = OFF",
    "defer_foreign_keys = ON", "reverse_unordered_selects = ON", "ignore_check_constraints = ON",
)  # fmt: skip
_EXPRESSIONS = (
    "lower({0})",
    "{0} + 1",
    "coalesce({0}, 0)",
    "substr({0}, 1, 1)",
    "({0} IS NULL)",
    "{0} || '-'",
    "CASE {0} WHEN 1 THEN 2 ELSE {0} END",
    "max({0}, 'A')",
    "coalesce(nullif({0}, 'A'), 0)",
)
_PARTS = (
    " WHERE {0} IS NOT NULL",
    " WHERE {0} > 0",
    " WHERE {0} IS NULL",
    " WHERE {1}.{0} IS NOT NULL AND length({0}) < 2",
)
_GENERATED = (
    "{}",
    "lower({})",
    "coalesce({}, 0)",
    "{} || 1",
    "{} || {}",
    "coalesce({}, {})",
    "CASE WHEN {} = 1 THEN {} END",
)


@dataclass(frozen=True)
class RandomTable:
    columns: Sequence[str]  # that can be written
    key: Sequence[str]
    has_rowid: bool
    uniques: Sequence[str] = ()


class RandomSchema:
    """`statements` make it. Without `triggers` of the application if that is 0, else with up to so many."""

    def __init__(self, dice: Random, *, triggers: int) -> None:
        self.dice = dice
        self.tables: dict[str, RandomTable] = {}
        self.statements: list[str] = []
        self._changes = 0
        for name in "tzw"[: dice.choice((1, 2, 2, 3))]:
            self._add_table(name)
        for number in range(dice.randint(0, triggers)):
            self._add_trigger(number)
        if triggers and dice.random() < 0.15:
            self._add_view()

    def statement(self, table: str = "", given: Sequence[str] = ()) -> str:
        """One that changes rows. `given` are values that it may use: it stands in a trigger then."""
        dice = self.dice
        table = table or dice.choice(list(self.tables))
        columns, clause = self.tables[table].columns, dice.choice(_CLAUSES)
        kind = dice.random()
        if kind < 0.45:
            return self._insert(table, clause, given)
        where = dice.choice(("", " WHERE {} = {}", " WHERE {} = {}", " WHERE {} > {}", " WHERE {} IS {}"))
        where = where.format(dice.choice(columns), self._value(given))
        if kind > 0.85:
            return f"DELETE FROM {table}{where}"
        set_columns = dice.sample(columns, min(len(columns), dice.choice((1, 1, 2))))
        other = dice.choice(columns)
        sets = ", ".join(f"{c} = {dice.choice((self._value(given), f'{c} + 1', other))}" for c in set_columns)
        if self.tables[table].has_rowid and dice.random() < 0.06:
            sets = f"rowid = {dice.choice(('1', '2', 'rowid + 1'))}"
        if dice.random() < 0.05:
            joined = dice.choice(list(self.tables))
            theirs = dice.choice(self.tables[joined].columns)
            sets = f"{set_columns[0]} = j.{theirs} FROM {joined} AS j"
            where = f" WHERE j.{theirs} IS NOT {table}.{columns[0]}"
        return f"UPDATE{clause} {table} SET {sets}{where}"

    def setting(self) -> str:
        return f"PRAGMA {self.dice.choice(_SETTINGS)}"

    def schema_change(self) -> str:
        """One that leaves the columns as they are, or adds one."""
        dice, table = self.dice, self.dice.choice([name for name in self.tables if name != _VIEW])
        self._changes += 1
        before, kind = len(self.statements), dice.random()
        if kind < 0.35:
            self._add_index(table, 10 + self._changes)
        elif kind < 0.7:
            self._add_trigger(10 + self._changes)
        elif kind < 0.9:
            column, default = f"n{self._changes}", dice.choice(("", " DEFAULT 5", " NOT NULL DEFAULT 'd'"))
            self.tables[table] = replace(self.tables[table], columns=[*self.tables[table].columns, column])
            return f"ALTER TABLE {table} ADD COLUMN {column} TEXT{default}"
        else:
            return f"DROP {dice.choice((f'INDEX {table}_0', 'TRIGGER g0', 'TRIGGER g1'))}"
        return self.statements.pop(before)

    def _insert(self, table: str, clause: str, given: Sequence[str]) -> str:
        dice, known = self.dice, self.tables[table]
        columns = list(known.columns) if dice.random() < 0.6 else dice.sample(known.columns, 1)
        if known.has_rowid and dice.random() < 0.06:
            columns.insert(0, "rowid")
        if not given and dice.random() < 0.1:
            other = dice.choice(list(self.tables))
            chosen = ", ".join(dice.choice([*self.tables[other].columns, "NULL", "1"]) for _ in columns)
            return f"INSERT{clause} INTO {table} ({', '.join(columns)}) SELECT {chosen} FROM {other}"
        rows = ", ".join(
            f"({', '.join(dice.choice('123') if c == 'rowid' else self._value(given) for c in columns)})"
            for _ in range(1 if given else dice.choice((1, 1, 2, 3)))
        )
        upsert = ""
        if known.key and not clause and dice.random() < 0.2:
            column, other = dice.choice(known.columns), dice.choice(known.columns)
            upsert = dice.choice((" DO NOTHING", f" DO UPDATE SET {column} = excluded.{other}"))
            if dice.random() < 0.5:
                target = dice.choice((", ".join(known.key), *known.uniques))
                condition = dice.choice(("", f" WHERE excluded.{other} IS NOT 1"))
                upsert = f" ({target}) DO UPDATE SET {column} = {dice.choice((self._value(given), column))}{condition}"
            upsert = f" ON CONFLICT{upsert}"
        return f"INSERT{clause} INTO {table} ({', '.join(columns)}) VALUES {rows}{upsert}"

    def _value(self, given: Sequence[str]) -> str:
        return self.dice.choice(given) if given and self.dice.random() < 0.6 else self.dice.choice(_VALUES)

    def _add_table(self, name: str) -> None:
        dice, kind = self.dice, self.dice.choice(_KEYS)
        clause = dice.choice(_ON_CONFLICT)
        collation = dice.choice(_COLLATIONS)
        keys = {
            "rowid": [f"id INTEGER PRIMARY KEY{clause}"],
            "counted": ["id INTEGER PRIMARY KEY AUTOINCREMENT"],
            "descending": ["id INTEGER PRIMARY KEY DESC"],
            "text": [f"id {dice.choice(('TEXT', 'ANY', 'NUMERIC'))}{collation} PRIMARY KEY{clause}"],
            "composite": ["id INT", f"k TEXT{collation}"],
            "none": ["id INT"],
        }
        definitions = keys[kind]
        definitions += [f"{column} {self._column()}" for column in "uvw"[: dice.randint(1, 3)]]
        columns = [definition.split()[0] for definition in definitions]
        if dice.random() < 0.3:
            expression = dice.choice(_GENERATED).format(*dice.sample([*columns, *columns], 2))
            kept = dice.choice(("VIRTUAL", "STORED")) + dice.choice((" UNIQUE", ""))
            definitions.append(f"g {dice.choice(('', '', 'TEXT', 'INT'))} AS ({expression}) {kept}")
        constraints = [f"PRIMARY KEY (id, k){clause}"] if kind == "composite" else []
        if len(columns) > 2 and dice.random() < 0.3:
            constraints.append(f"UNIQUE ({', '.join(dice.sample(columns, 2))}){dice.choice(_ON_CONFLICT)}")
        own = () if kind == "none" else ("id", "k") if kind == "composite" else ("id",)
        uniques = [definition.split()[0] for definition in definitions[len(own) :] if " UNIQUE" in definition]
        known = RandomTable(columns, own, has_rowid=True, uniques=[u for u in uniques if u != "g"])
        constraints += self._references(name, known)
        if dice.random() < 0.15:
            pair = dice.sample([*columns, *columns], 2)
            constraints.append(f"CHECK ({dice.choice(_CHECKS).format(*pair)})")
        has_rowid = kind not in ("text", "composite") or dice.random() < 0.6
        self.statements.append(
            f"CREATE TABLE {name} ({', '.join([*definitions, *constraints])}){'' if has_rowid else ' WITHOUT ROWID'}"
        )
        self.tables[name] = replace(known, has_rowid=has_rowid)
        for number in range(dice.choice((0, 0, 1, 1, 2))):
            self._add_index(name, number)

    def _references(self, name: str, table: RandomTable) -> list[str]:
        dice, found = self.dice, []
        parents = {**self.tables, name: table}
        for _ in range(dice.choice((0, 0, 0, 1, 1, 2))):
            parent = dice.choice(list(parents))
            keys = [list(parents[parent].key), *([u] for u in parents[parent].uniques)]
            key = dice.choice([key for key in keys if key] or [[]])
            if not key or len(key) > len(table.columns):
                continue
            own = dice.sample(table.columns, len(key)) if dice.random() < 0.4 else table.columns[-len(key) :]
            actions = f"ON DELETE {dice.choice(_ACTIONS)} ON UPDATE {dice.choice(_ACTIONS)}"
            late = dice.choice(("", " DEFERRABLE INITIALLY DEFERRED"))
            found.append(f"FOREIGN KEY ({', '.join(own)}) REFERENCES {parent} ({', '.join(key)}) {actions}{late}")
        return found

    def _column(self) -> str:
        dice = self.dice
        found = dice.choice(("", "TEXT", "INT", "REAL", "NUMERIC", "BLOB")) + dice.choice(_COLLATIONS)
        if dice.random() < 0.35:
            found += f" UNIQUE{dice.choice(_ON_CONFLICT)}"
        if dice.random() < 0.15:
            found += f" NOT NULL DEFAULT {dice.choice(_DEFAULTS)}"
        return found

    def _add_index(self, table: str, number: int) -> None:
        dice, columns = self.dice, self.tables[table].columns
        terms = dice.sample(columns, min(len(columns), dice.choice((1, 1, 2))))
        if dice.random() < 0.3:
            terms[0] = dice.choice(_EXPRESSIONS).format(terms[0])
        order = ", ".join(term + dice.choice(("", "", " DESC", " COLLATE NOCASE")) for term in terms)
        part = dice.choice(("", "", *_PARTS)).format(dice.choice(columns), table)
        kind = dice.choice(("UNIQUE INDEX", "UNIQUE INDEX", "INDEX"))
        self.statements.append(f"CREATE {kind} {table}_{number} ON {table} ({order}){part}")

    def _add_trigger(self, number: int) -> None:
        dice, table = self.dice, self.dice.choice(list(self.tables))
        columns = self.tables[table].columns
        event = dice.choice(("INSERT", "INSERT", "UPDATE", "UPDATE", "DELETE", f"UPDATE OF {columns[-1]}"))
        given = [f"NEW.{column}" for column in columns if event != "DELETE"]
        given += [f"OLD.{column}" for column in columns if event != "INSERT"]
        body = [
            self.statement(table if dice.random() < 0.6 else "", given) for _ in range(dice.choice((1, 1, 2)))
        ]  # fmt: skip
        if dice.random() < 0.15:
            when = dice.choice(("", f" WHERE {dice.choice(given)} IS {dice.choice(_VALUES)}"))
            body.insert(dice.choice((0, len(body))), f"SELECT RAISE({dice.choice(_RAISES)}){when}")
        condition = dice.choice(
            ("", f" WHEN {dice.choice(given)} IS NOT 1", f" WHEN (SELECT count(*) FROM {table}) < 6")
        )
        timing = dice.choice(("BEFORE", "BEFORE", "AFTER", ""))
        spelt = dice.choice((table, table.upper()))
        self.statements.append(
            f"CREATE TRIGGER g{number} {timing} {event} ON {spelt}{condition} BEGIN {'; '.join(body)}; END"
        )

    def _add_view(self) -> None:
        """One that can be written to, under the name of a table that it stands for."""
        table = self.dice.choice(list(self.tables))
        columns = self.tables[table].columns
        self.statements.append(f"CREATE VIEW {_VIEW} AS SELECT {', '.join(columns)} FROM {table}")
        for event in ("INSERT", "UPDATE", "DELETE"):
            given = [f"NEW.{column}" for column in columns if event != "DELETE"]
            given += [f"OLD.{column}" for column in columns if event != "INSERT"]
            self.statements.append(
                f"CREATE TRIGGER s_{event} INSTEAD OF {event} ON {_VIEW} BEGIN {self.statement(table, given)}; END"
            )
        self.tables[_VIEW] = RandomTable(columns, (), has_rowid=False)
