"""Random schemas and statements of SQLite: every conflict clause, triggers that write to their own table, foreign keys
that come back to it, computed keys, tables with and without a rowid. The same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

_VALUES = ("NULL", "0", "1", "2", "3", "1.5", "'a'", "'A'", "'b'", "''", "x'61'", "-1", "'1'")
_CLAUSES = ("", "", " OR REPLACE", " OR REPLACE", " OR IGNORE", " OR FAIL", " OR ABORT")
_ON_CONFLICT = ("", "", "", "", " ON CONFLICT REPLACE", " ON CONFLICT IGNORE", " ON CONFLICT FAIL")
_DEFAULTS = ("1", "'a'", "NULL", "(abs(-2))", "(1+1)", "(lower('A'))", "CURRENT_DATE")
_ACTIONS = ("CASCADE", "SET NULL", "SET DEFAULT", "NO ACTION")
_KEYS = ("rowid", "rowid", "rowid", "text", "none", "composite", "descending", "counted")
_EXPRESSIONS = ("lower({0})", "{0} + 1", "coalesce({0}, 0)", "substr({0}, 1, 1)", "({0} IS NULL)", "{0} || '-'")


@dataclass(frozen=True)
class RandomTable:
    columns: Sequence[str]  # that can be written
    key: Sequence[str]
    has_rowid: bool


class RandomSchema:
    """`statements` make it. Without `triggers` of the application if that is 0, else with up to so many."""

    def __init__(self, dice: Random, *, triggers: int) -> None:
        self.dice = dice
        self.tables: dict[str, RandomTable] = {}
        self.statements: list[str] = []
        for name in "tzw"[: dice.choice((1, 2, 2, 3))]:
            self._add_table(name)
        for number in range(dice.randint(0, triggers)):
            self._add_trigger(number)

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
        return f"UPDATE{clause} {table} SET {sets}{where}"

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
            upsert = f" ON CONFLICT{upsert}"
        return f"INSERT{clause} INTO {table} ({', '.join(columns)}) VALUES {rows}{upsert}"

    def _value(self, given: Sequence[str]) -> str:
        return self.dice.choice(given) if given and self.dice.random() < 0.6 else self.dice.choice(_VALUES)

    def _add_table(self, name: str) -> None:
        dice, kind = self.dice, self.dice.choice(_KEYS)
        clause = dice.choice(_ON_CONFLICT)
        collation = dice.choice(("", " COLLATE NOCASE"))
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
            expression = dice.choice(("{}", "lower({})", "coalesce({}, 0)", "{} || 1")).format(dice.choice(columns))
            kept = dice.choice(("VIRTUAL", "STORED")) + dice.choice((" UNIQUE", ""))
            definitions.append(f"g AS ({expression}) {kept}")
        constraints = [f"PRIMARY KEY (id, k){clause}"] if kind == "composite" else []
        if len(columns) > 2 and dice.random() < 0.3:
            constraints.append(f"UNIQUE ({', '.join(dice.sample(columns, 2))}){dice.choice(_ON_CONFLICT)}")
        own = () if kind == "none" else ("id", "k") if kind == "composite" else ("id",)
        parents = {parent: table.key for parent, table in self.tables.items()} | {name: own}
        parent = dice.choice(list(parents))
        if dice.random() < 0.4 and len(parents[parent]) == 1:
            actions = f"ON DELETE {dice.choice(_ACTIONS)} ON UPDATE {dice.choice(_ACTIONS)}"
            late = dice.choice(("", " DEFERRABLE INITIALLY DEFERRED"))
            constraints.append(f"FOREIGN KEY ({columns[-1]}) REFERENCES {parent} (id) {actions}{late}")
        has_rowid = kind not in ("text", "composite") or dice.random() < 0.6
        self.statements.append(
            f"CREATE TABLE {name} ({', '.join([*definitions, *constraints])}){'' if has_rowid else ' WITHOUT ROWID'}"
        )
        self.tables[name] = RandomTable(columns, own, has_rowid)
        for number in range(dice.choice((0, 0, 1, 1, 2))):
            self._add_index(name, number)

    def _column(self) -> str:
        dice = self.dice
        found = dice.choice(("", "TEXT", "INT", "REAL", "NUMERIC", "BLOB")) + dice.choice(("", "", " COLLATE NOCASE"))
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
        part = dice.choice(("", "", " WHERE {} IS NOT NULL", " WHERE {} > 0")).format(dice.choice(columns))
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
        if dice.random() < 0.1:
            body.append("SELECT RAISE(IGNORE)")
        condition = dice.choice(
            ("", f" WHEN {dice.choice(given)} IS NOT 1", f" WHEN (SELECT count(*) FROM {table}) < 6")
        )
        timing = dice.choice(("BEFORE", "BEFORE", "AFTER", ""))
        spelt = dice.choice((table, table.upper()))
        self.statements.append(
            f"CREATE TRIGGER g{number} {timing} {event} ON {spelt}{condition} BEGIN {'; '.join(body)}; END"
        )
