"""What a column gets where an INSERT does not name it: the DEFAULT of its definition, in the form that is kept.

With binlog_row_image MINIMAL or NOBLOB an INSERT leaves out columns that were filled by a literal default. So the
schema history keeps them, and `fill` makes a value of them. Defaults that the server computes are always in the
binlog (MySQL 9.7: whatever stands in parentheses; MariaDB 10.11: what is no literal there), and so is AUTO_INCREMENT.

The form: empty for no DEFAULT, `'text'` (not escaped), a number, `0x4142` for bytes, `()` for what is computed, `@…`
for what the server said exactly (seconds of a TIMESTAMP, a FLOAT in all its digits). None: it is not known.
"""

from __future__ import annotations

import re

from tidemill.decoders._shared.mysql.fill import COMPUTED, NONE
from tidemill.decoders.mysql_schema.catalog import CatalogColumn
from tidemill.decoders.mysql_schema.tokens import NotUnderstood, TokenKind, TokenReader, tokenize

_LITERALS = {"NULL": NONE, "TRUE": "1", "FALSE": "0"}
_LOST = "\ufffd"  # stands in a statement for bytes that were no text
_SCALED = re.compile(r"(?:float|double)\(\d+,(\d+)\)")


def read(clause: TokenReader, *, mariadb: bool) -> str | None:
    """What stands after DEFAULT."""
    if clause.peek() == "(":
        inner = clause.parenthesis()
        found = read(inner, mariadb=mariadb) if mariadb else COMPUTED
        return COMPUTED if inner and mariadb else found
    sign = ""
    while mark := clause.take_any("-", "+"):
        sign = sign if mark == "+" else "" if sign else "-"
    word = clause.next()
    match word.kind:
        case TokenKind.NUMBER:
            return sign + word.text
        case TokenKind.SIGN if word.text == "." and clause:
            return f"{sign}0.{clause.next().text}"
        case TokenKind.BYTES:
            return None if sign else f"0x{word.text.encode('latin-1').hex()}"
        case TokenKind.STRING:
            text = word.text + "".join(_strings(clause))
            return None if sign or _LOST in text else f"'{text}'"
        case TokenKind.WORD if word.upper in _LITERALS:
            return _LITERALS[word.upper]
        case TokenKind.WORD if word.text.startswith("_"):
            return _read_introduced(word.upper, clause)
    if any(_strings(clause)):
        return None  # DATE'2024-01-01'
    if clause.peek() == "(":
        clause.parenthesis()
    return COMPUTED


def _strings(clause: TokenReader) -> list[str]:
    """Strings one after the other are one."""
    found = []
    while clause and clause.rest()[0].kind is TokenKind.STRING:
        found.append(clause.next().text)
    return found


def _read_introduced(charset: str, clause: TokenReader) -> str | None:
    """`_latin1'x'`: the bytes as the client sent them, in another charset. The same text only where it is ASCII."""
    word = clause.next()
    if word.kind is TokenKind.BYTES:
        return f"0x{word.text.encode('latin-1').hex()}" if charset == "_BINARY" else None
    text = word.text + "".join(_strings(clause))
    wide = charset.startswith(("_UCS2", "_UTF16", "_UTF32", "_SWE7"))
    return f"'{text}'" if text.isascii() and not wide else None


def of_catalog(shown: str | None, extra: str, *, mariadb: bool) -> str | None:
    """From COLUMN_DEFAULT and EXTRA. MariaDB lists an expression of SQL, MySQL a literal's bare text."""
    if "AUTO_INCREMENT" in extra.upper() or "DEFAULT_GENERATED" in extra.upper():
        return COMPUTED
    if shown is None:
        return NONE
    if not mariadb:
        # Before 8.0.13 EXTRA does not tell this function from a text.
        if re.fullmatch(r"CURRENT_TIMESTAMP(\(\d*\))?", shown):
            return COMPUTED
        return f"0x{_bits(shown).hex()}" if re.fullmatch(r"b'[01]*'", shown) else f"'{shown}'"
    try:
        clause = TokenReader(tokenize(shown))
        found = read(clause, mariadb=True)
    except NotUnderstood:
        return None
    return COMPUTED if clause else found


def _bits(shown: str) -> bytes:
    return int(shown[2:-1] or "0", 2).to_bytes(8, "big")


def is_rounded(column: CatalogColumn, *, mariadb: bool) -> bool:
    """Whether the catalog may not print such a default exactly: a FLOAT has six digits there, a TIMESTAMP the time zone
    of some session, bytes end at the first zero (MySQL) or are question marks (MariaDB), as are letters of four bytes
    in UTF-8."""
    base = column.type.partition("(")[0].partition(" ")[0].lower()
    if column.generated or column.default in (None, NONE, COMPUTED):
        return False
    if base == "float":
        return column.default.strip("'") != "0"
    if base == "timestamp":
        return not re.fullmatch(r"'?[0:. -]+'?", column.default)
    if base in ("binary", "varbinary"):
        return not mariadb or "?" in column.default or not column.default.isascii()
    return base in ("char", "varchar", "enum", "set") and "?" in column.default


def kept_default(column: CatalogColumn) -> str | None:
    """The default as far as the type that the binlog has tells all about it: FLOAT(7,2) is a FLOAT there."""
    default = column.default
    if column.generated:
        return COMPUTED
    scaled = _SCALED.match(column.type)
    if scaled and default and default[0] not in "@0(" and len(default.strip("'").partition(".")[2]) > int(scaled[1]):
        return None
    return default
