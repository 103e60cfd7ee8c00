"""Statements as `sqlite_schema` keeps them, taken apart as far as triggers need it: expressions of indexes and of
generated columns, and what a trigger writes to. SQLite has parsed them already: what is read here is well formed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

# SQLite's own idea of a name and of white space: whatever is not ASCII is part of a name, a no-break space, too.
_TOKEN = re.compile(
    r"""[ \t\n\f\r]+ | --[^\n]* | /\*.*?(?:\*/|\Z)
    | (?P<string> [xX]?'(?:[^']|'')*' )
    | (?P<quoted> "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\] )
    | (?P<name> [A-Za-z_\x80-\U0010FFFF][A-Za-z0-9_$\x80-\U0010FFFF]* )
    | (?P<other> [0-9][A-Za-z0-9_.]* | . )""",
    re.VERBOSE | re.DOTALL,
)
_EVENTS = ("insert", "update", "delete")
_COMPARISON = re.compile(r"[=<>]| (is|in|between|like|glob|match|regexp|nullif|min|max) | case (?! when )")
_NONE = re.compile(r"->>?|<<|>>| is +(not +)?null ")


@dataclass(frozen=True, slots=True)
class SqliteToken:
    """`kind` is string, quoted, name or other. `word` is a name as SQLite compares it, without its quotes; empty for
    what is none."""

    kind: str
    text: str
    start: int

    @property
    def name(self) -> str:
        if self.kind == "quoted":
            quote = self.text[-1]
            return self.text[1:-1] if quote == "]" else self.text[1:-1].replace(quote * 2, quote)
        return self.text if self.kind == "name" else ""

    @property
    def word(self) -> str:
        return self.name.lower()


def tokenize(sql: str) -> list[SqliteToken]:
    """Without white space and comments."""
    found = [(match.lastgroup, match) for match in _TOKEN.finditer(sql)]
    return [SqliteToken(kind, match.group(), match.start()) for kind, match in found if kind]


def index_terms(sql: str) -> list[list[SqliteToken]]:
    """What a CREATE INDEX statement compares, in order, without ASC and DESC."""
    tokens = tokenize(sql)
    terms = _list_after(tokens, next(i for i, token in enumerate(tokens) if token.text == "("))
    return [term[:-1] if term[-1].word in ("asc", "desc") and len(term) > 1 else term for term in terms]


def index_condition(sql: str) -> list[SqliteToken]:
    """Of a partial index: which rows it has. Empty for one that has all. Only here names may be qualified, by the
    table's, which is left out."""
    tokens = tokenize(sql)
    opening = next(i for i, token in enumerate(tokens) if token.text == "(")
    found = tokens[opening + len(_inside(tokens, opening)) + 3 :]  # after the two parentheses and WHERE
    dots = {i for i in range(1, len(found) - 1) if found[i].text == "." and found[i + 1].name}  # not those of numbers
    return [token for i, token in enumerate(found) if i not in dots and i + 1 not in dots]


def generated_expressions(sql: str) -> dict[str, list[SqliteToken]]:
    """Of the generated columns of a CREATE TABLE statement, by name."""
    tokens = tokenize(sql)
    found = {}
    for definition in _list_after(tokens, next(i for i, token in enumerate(tokens) if token.text == "(")):
        depth = 0
        for i, token in enumerate(definition):
            depth += (token.text == "(") - (token.text == ")")
            if token.word == "as" and token.kind == "name" and depth == 0 and i:
                found[definition[0].name] = _inside(definition, i + 1)
                break
    return found


def _list_after(tokens: Sequence[SqliteToken], opening: int) -> list[list[SqliteToken]]:
    """What stands in these parentheses, between commas."""
    parts: list[list[SqliteToken]] = [[]]
    depth = 0
    for token in _inside(tokens, opening):
        depth += (token.text == "(") - (token.text == ")")
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _inside(tokens: Sequence[SqliteToken], opening: int) -> list[SqliteToken]:
    depth = 0
    for i in range(opening, len(tokens)):
        depth += (tokens[i].text == "(") - (tokens[i].text == ")")
        if depth == 0:
            return list(tokens[opening + 1 : i])
    return list(tokens[opening + 1 :])


def expression_text(tokens: Sequence[SqliteToken], columns: Collection[str]) -> str:
    """Without comments. `columns` are in lower case: a name in double quotes that is no column is a string to SQLite,
    but not to every connection."""
    found, end = "", None
    for token in tokens:
        string = token.text[0] == '"' and token.word not in columns
        gap = "" if end in (None, token.start) else " "
        found += gap + ("'" + token.name.replace("'", "''") + "'" if string else token.text)
        end = token.start + len(token.text)
    return found


def compares_values(tokens: Sequence[SqliteToken]) -> bool:
    """Whether two values are compared, to which the types of columns matter."""
    text = "".join(f" {t.word} " if t.kind == "name" else t.text if t.kind == "other" else "''" for t in tokens)
    return bool(_COMPARISON.search(_NONE.sub("", text)))


@dataclass(frozen=True, slots=True)
class TriggerStatement:
    """`event` is insert, update or delete; `before` is true for BEFORE, which a trigger is that says nothing else.
    `writes` are the tables and views that its statements write to, in lower case. `fails`: it may RAISE(FAIL)."""

    name: str
    table: str
    sql: str
    before: bool
    event: str
    writes: frozenset[str]
    fails: bool = False

    @classmethod
    def parse(cls, name: str, table: str, sql: str) -> TriggerStatement:
        tokens = tokenize(sql)
        keywords = [token.word if token.kind == "name" else "" for token in tokens]
        at = next(i for i, word in enumerate(keywords) if i > 2 and word in _EVENTS)
        body = keywords.index("begin", at)
        before = not {"after", "instead"} & set(keywords[3:at])
        fails = any(keywords[i] == "raise" and keywords[i + 2] == "fail" for i in range(body, len(keywords) - 2))
        return cls(name, table, sql, before, keywords[at], frozenset(_targets(tokens[body:], keywords[body:])), fails)


def _targets(tokens: Sequence[SqliteToken], keywords: Sequence[str]) -> Iterator[str]:
    """INSERT … INTO t, UPDATE … t SET, DELETE FROM t."""
    for i, word in enumerate(keywords):
        at = i + 1
        if word == "update" and keywords[at] != "set":  # else it is ON CONFLICT DO UPDATE SET
            yield tokens[at + 2 if keywords[at] == "or" else at].word
        elif word == "into" or (word == "from" and keywords[i - 1] == "delete"):
            yield tokens[at].word
