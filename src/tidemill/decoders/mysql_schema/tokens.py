"""A DDL statement as words, for `ddl`. sqlglot's tokenizer knows MySQL's quoting; comments are taken off before it.

Its parser is not used: of ALTER, RENAME and CREATE it understands a part and hands back the rest as unparsed text
(CONVERT TO, RENAME TABLE, ADD (...), INVISIBLE, PERSISTENT), and a schema history may not skip a clause.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType

from tidemill.decoders._shared.mysql.session import PLAIN, SqlMode


class TokenKind(enum.Enum):
    WORD = enum.auto()
    QUOTED = enum.auto()  # `name`
    STRING = enum.auto()
    BYTES = enum.auto()  # x'4d', 0x4d and b'01': a character for each byte
    NUMBER = enum.auto()
    SIGN = enum.auto()


@dataclass(frozen=True, slots=True)
class SqlToken:
    kind: TokenKind
    text: str

    @property
    def upper(self) -> str:
        """For comparing with keywords: a quoted name never is one."""
        return self.text.upper() if self.kind in (TokenKind.WORD, TokenKind.SIGN) else ""


class NotUnderstood(Exception):
    """The statement leaves the grammar that `ddl` knows. Caught in `MysqlTables`, never seen by a user."""


class _Tokenizer(MySQL.Tokenizer):
    COMMANDS: ClassVar[set[TokenType]] = set()  # else everything after RENAME is one word


class _AnsiQuotes(_Tokenizer):
    QUOTES: ClassVar[list[tuple[str, str] | str]] = ["'"]
    IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ["`", '"']


class _NoBackslashEscapes(_Tokenizer):
    STRING_ESCAPES: ClassVar[list[str]] = ["'", '"']


class _Both(_AnsiQuotes, _NoBackslashEscapes):
    pass


_TOKENIZERS = {
    PLAIN: _Tokenizer,
    SqlMode.ANSI_QUOTES: _AnsiQuotes,
    SqlMode.NO_BACKSLASH_ESCAPES: _NoBackslashEscapes,
    SqlMode.ANSI_QUOTES | SqlMode.NO_BACKSLASH_ESCAPES: _Both,
}
_QUOTING = SqlMode.ANSI_QUOTES | SqlMode.NO_BACKSLASH_ESCAPES
#: Every way in which quotes can be read.
QUOTINGS = tuple(_TOKENIZERS)


@cache
def quote(mark: str, mode: SqlMode) -> str:
    """An expression for text in these quotation marks. Names have no escapes, and so have strings in a session that
    says so."""
    plain = mark == "`" or SqlMode.NO_BACKSLASH_ESCAPES in mode or (mark == '"' and SqlMode.ANSI_QUOTES in mode)
    inside = rf"[^{mark}]|{mark}{mark}" if plain else rf"[^{mark}\\]|\\.|{mark}{mark}"
    return f"{mark}(?:{inside})*{mark}"


@cache
def _pieces(mode: SqlMode) -> re.Pattern[str]:
    """Quoted text first, so that nothing inside it is taken for a comment."""
    strings = "|".join(quote(mark, mode) for mark in "'\"`")
    return re.compile(
        rf"""(?P<quoted>{strings})
          | (?P<versioned>/\*M?!\d*)
          | (?P<comment>/\*.*?\*/ | --(?=\s|$)[^\n]* | \#[^\n]*)
          | (?P<end>\*/)""",
        re.VERBOSE | re.DOTALL,
    )


_STRINGS = {TokenType.STRING, TokenType.NATIONAL_STRING, TokenType.BYTE_STRING, TokenType.RAW_STRING}


def without_comments(text: str, mode: SqlMode) -> str:
    """The statement as the server ran it. What stands in `/*!80013 … */` counts: the server writes version comments
    that it did not run into the binlog as plain ones."""

    def replace(found: re.Match[str]) -> str:
        return found[0] if found["quoted"] else " "

    return _pieces(mode & _QUOTING).sub(replace, text)


def without_quotes(text: str, mode: SqlMode) -> str:
    """Only keywords, plain names and signs."""
    return _pieces(mode & _QUOTING).sub(" ", text)


def tokenize(text: str, mode: SqlMode = PLAIN) -> list[SqlToken]:
    try:
        tokens = _TOKENIZERS[mode & _QUOTING](dialect="mysql").tokenize(without_comments(text, mode))
    except TokenError as error:
        raise NotUnderstood("quotes that do not close") from error
    return [word for token in tokens for word in _tokens(token.token_type, token.text)]


def _tokens(kind: TokenType, text: str) -> Iterator[SqlToken]:
    if kind is TokenType.IDENTIFIER:
        yield SqlToken(TokenKind.QUOTED, text)
    elif kind in _STRINGS:
        yield SqlToken(TokenKind.STRING, text)
    elif kind is TokenType.HEX_STRING:
        yield SqlToken(TokenKind.BYTES, bytes.fromhex("0" * (len(text) % 2) + text).decode("latin-1"))
    elif kind is TokenType.BIT_STRING:
        yield SqlToken(TokenKind.BYTES, int(text or "0", 2).to_bytes((len(text) + 7) // 8, "big").decode("latin-1"))
    elif kind is TokenType.NUMBER:
        yield SqlToken(TokenKind.NUMBER, text)
    elif text[:1].isalnum() or text[:1] in "_$" or text[:1] > "\x7f":
        # "PRIMARY KEY" comes as one token.
        yield from (SqlToken(TokenKind.WORD, part) for part in text.split())
    else:
        yield SqlToken(TokenKind.SIGN, text)


class TokenReader:
    """Walks over words. `end` bounds it, so that a clause cannot read into the next."""

    def __init__(self, content: list[SqlToken], mode: SqlMode = PLAIN) -> None:
        self._tokens = content
        self.mode = mode
        self.at = 0

    def __bool__(self) -> bool:
        return self.at < len(self._tokens)

    def peek(self, distance: int = 0) -> str:
        place = self.at + distance
        return self._tokens[place].upper if place < len(self._tokens) else ""

    def looks(self, *keywords: str) -> bool:
        return all(self.peek(i) == keyword for i, keyword in enumerate(keywords))

    def take(self, *keywords: str) -> bool:
        """Steps over the keywords if they stand here, one after the other."""
        if not self.looks(*keywords):
            return False
        self.at += len(keywords)
        return True

    def take_any(self, *keywords: str) -> str:
        found = self.peek()
        if found not in keywords or not found:
            return ""
        self.at += 1
        return found

    def expect(self, *keywords: str) -> None:
        if not self.take(*keywords):
            raise NotUnderstood(f"{' '.join(keywords)} expected")

    def next(self) -> SqlToken:
        if not self:
            raise NotUnderstood("the statement ends too early")
        self.at += 1
        return self._tokens[self.at - 1]

    def name(self) -> str:
        """An identifier; also in double quotes, which are names with ANSI_QUOTES."""
        word = self.next()
        if word.kind in (TokenKind.SIGN, TokenKind.NUMBER, TokenKind.BYTES):
            raise NotUnderstood("a name expected")
        return word.text

    def string(self) -> str:
        word = self.next()
        if word.kind is TokenKind.SIGN:
            raise NotUnderstood("a value expected")
        return word.text

    def parenthesis(self) -> TokenReader:
        """What stands between the parenthesis here and the one that closes it."""
        self.expect("(")
        first, depth = self.at, 1
        while depth:
            sign = self.next().upper
            depth += (sign == "(") - (sign == ")")
        return TokenReader(self._tokens[first : self.at - 1], self.mode)

    def clauses(self, separator: str = ",") -> list[TokenReader]:
        """The rest, cut at separators outside of parentheses."""
        found: list[list[SqlToken]] = [[]]
        depth = 0
        while self:
            word = self.next()
            depth += (word.upper == "(") - (word.upper == ")")
            if word.upper == separator and depth == 0:
                found.append([])
            else:
                found[-1].append(word)
        return [TokenReader(part, self.mode) for part in found if part]

    def rest(self) -> list[SqlToken]:
        return self._tokens[self.at :]
