"""Column definitions of DDL, brought into the words of information_schema.COLUMNS.COLUMN_TYPE.

A definition names its type in many ways (`integer(11)`, `character varying(9)`, `text(70000)`, `national char`). Some
depend on the charset that holds where it stands: `Definition.settle` gives the column as the server would list it.
Display widths of integers, which MariaDB lists and MySQL does not, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill.decoders._shared.mysql import charsets, types
from tidemill.decoders._shared.mysql.fill import COMPUTED, NONE
from tidemill.decoders._shared.mysql.session import SqlMode
from tidemill.decoders.mysql_schema import defaults
from tidemill.decoders.mysql_schema.catalog import CatalogColumn
from tidemill.decoders.mysql_schema.tokens import NotUnderstood, TokenKind, TokenReader, tokenize

_WIDTHS = {"tinyint": 4, "smallint": 6, "mediumint": 9, "int": 11, "bigint": 20}
_INTEGERS = {
    "TINYINT": "tinyint", "INT1": "tinyint", "SMALLINT": "smallint", "INT2": "smallint", "MEDIUMINT": "mediumint",
    "INT3": "mediumint", "MIDDLEINT": "mediumint", "INT": "int", "INTEGER": "int", "INT4": "int", "BIGINT": "bigint",
    "INT8": "bigint",
}  # fmt: skip
_TEXT_TYPES = {"TINYTEXT": "tinytext", "MEDIUMTEXT": "mediumtext", "LONGTEXT": "longtext"}
_BLOBS = {"TINYBLOB": "tinyblob", "MEDIUMBLOB": "mediumblob", "LONGBLOB": "longblob"}
_TO_BINARY = {
    "char": "binary", "varchar": "varbinary", "tinytext": "tinyblob", "text": "blob", "mediumtext": "mediumblob",
    "longtext": "longblob",
}  # fmt: skip
_CHARACTER = frozenset({*_TO_BINARY, "enum", "set"})
_GEOMETRY = {
    "GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "MULTILINESTRING", "MULTIPOLYGON", "GEOMETRYCOLLECTION",
    "GEOMCOLLECTION",
}  # fmt: skip
# The most bytes that a character takes. Charsets that are not here take one.
_BYTES_OF_CHARACTER = {
    "utf8mb4": 4, "utf16": 4, "utf16le": 4, "utf32": 4, "gb18030": 4, "utf8mb3": 3, "eucjpms": 3, "ujis": 3, "big5": 2,
    "cp932": 2, "euckr": 2, "gb2312": 2, "gbk": 2, "sjis": 2, "ucs2": 2,
}  # fmt: skip
_LONGEST_ROW = 65535
# What names without a length mean in MariaDB with sql_mode=ORACLE.
_OF_ORACLE = {"DATE": "datetime", "BLOB": "longblob", "NUMBER": "double"}


def bytes_of_character(charset: str) -> int:
    return _BYTES_OF_CHARACTER.get(charset, 1)


def charset_name(text: str) -> str:
    """`utf8` is the old name of `utf8mb3`, and servers list it by either."""
    lowered = text.lower()
    return "utf8mb3" if lowered == "utf8" else lowered


def charset_of_collation(text: str) -> str:
    """Empty for MariaDB's collations that go with any Unicode charset (`uca1400_ai_ci`)."""
    first = charset_name(text.split("_", maxsplit=1)[0])
    return "" if first.startswith("uca") else first


@dataclass(frozen=True, slots=True)
class Definition:
    """A column as written. `type` still lacks what only `settle` can tell; `length` is that of `char`, `text` and
    their kin, None where none was given. `labels` of ENUM and SET are bytes of the column's charset where they were
    written as such (`x'61'`). `charset` is empty where the surroundings decide."""

    name: str
    type: str
    length: int | None = None
    labels: tuple[str | bytes, ...] = ()
    charset: str = ""
    nullable: bool | None = None
    generated: bool = False
    invisible: bool = False
    primary: bool = False
    versioned: bool = False
    row_end: bool = False
    implicit: bool = False
    first: bool = False
    after: str = ""
    default: str | None = NONE

    def settle(self, default_charset: str) -> CatalogColumn:
        """`default_charset` is the table's."""
        charset = self.charset or default_charset if self.type.partition("(")[0] in _CHARACTER else ""
        kind, length = self.type, self.length
        if self.labels:
            kind = f"{kind}({','.join(_literal(label, charset) for label in self.labels)})"
        if charset == "binary" and kind in _TO_BINARY:
            kind, charset = _TO_BINARY[kind], ""
        width = bytes_of_character(charset)
        if kind in ("varchar", "varbinary") and (length or 0) * width > _LONGEST_ROW:
            kind = "text" if kind == "varchar" else "blob"  # without strict mode, what a row cannot hold becomes a text
        if kind in ("text", "blob"):
            kind = _by_length(kind, (length or 0) * width)
        elif length is not None:
            kind = f"{kind}({length})"
        return CatalogColumn(
            self.name, kind, charset, self.nullable is not False and not self.primary, self.generated, self.invisible,
            self.default, self.row_end, self.implicit,
        )  # fmt: skip


_TEMPORAL = Definition(
    "", "timestamp(6)", nullable=False, generated=True, invisible=True, implicit=True, default=COMPUTED
)
#: What WITH SYSTEM VERSIONING adds to a table that names no columns for it.
PERIOD = (replace(_TEMPORAL, name="row_start"), replace(_TEMPORAL, name="row_end", row_end=True))


def implicit_period() -> list[CatalogColumn]:
    return [column.settle("") for column in PERIOD]


def _by_length(kind: str, size: int) -> str:
    if not size or 255 < size <= _LONGEST_ROW:
        return kind
    return ("tiny" if size <= 255 else "medium" if size < 1 << 24 else "long") + kind


def lacks_charset(column: CatalogColumn) -> bool:
    """Whether its values cannot be read for want of one. Those of ENUM and SET are numbers."""
    return not column.charset and column.type.partition("(")[0] in _TO_BINARY


def canonical(column: CatalogColumn) -> CatalogColumn:
    """A column that a catalog listed, in the words that DDL is brought into. What is not understood stays as it is."""
    try:
        charset = charset_name(column.charset)
        if not charset and column.type.partition("(")[0] in ("enum", "set"):
            charset = "binary"  # as MySQL lists it
        settled = _type(TokenReader(tokenize(column.type)), column.name, mariadb=False).settle(charset)
    except (NotUnderstood, ValueError):
        return column
    return replace(column, type=settled.type, charset=charset if settled.charset else "")


def widen(column: CatalogColumn, charset: str) -> CatalogColumn:
    """The column after CONVERT TO CHARACTER SET: a text keeps its number of characters, so that its type may grow."""
    base, _, rest = column.type.partition("(")
    if base not in _CHARACTER or not column.charset:
        return column
    if charset == "binary":
        if base not in _TO_BINARY:
            return replace(column, charset=charset)
        size = f"({int(rest[:-1]) * bytes_of_character(column.charset)})" if rest else ""
        return replace(column, type=_TO_BINARY[base] + size, charset="")
    if base in ("tinytext", "text", "mediumtext"):
        held = {"tinytext": 255, "text": 65535, "mediumtext": (1 << 24) - 1}[base]
        if bytes_of_character(charset) > bytes_of_character(column.charset):
            return replace(column, type=_by_length("text", held * bytes_of_character(charset)), charset=charset)
    return replace(column, charset=charset)


def definition(clause: TokenReader, *, mariadb: bool) -> Definition:
    """`name type attributes… [FIRST | AFTER name]`."""
    name = clause.name()
    return _attributes(clause, _type(clause, name, mariadb=mariadb), mariadb=mariadb)


def _type(clause: TokenReader, name: str, *, mariadb: bool) -> Definition:
    national = clause.take("NATIONAL")
    word = clause.next().upper
    made = Definition(name, "")
    if word in _INTEGERS:
        made = replace(made, type=_integer(clause, _INTEGERS[word]))
    elif word in ("BOOL", "BOOLEAN"):
        made = replace(made, type="tinyint(1)")
    elif word == "SERIAL":
        made = replace(made, type="bigint unsigned", nullable=False, default=COMPUTED)
    elif SqlMode.ORACLE in clause.mode and clause.peek() != "(" and word in _OF_ORACLE:
        made = replace(made, type=_OF_ORACLE[word])
    elif word in ("DECIMAL", "DEC", "NUMERIC", "FIXED", "NUMBER"):
        precision, scale = (*_numbers(clause), 10, 0)[:2] if clause.peek() != "(" else (*_numbers(clause), 0)[:2]
        made = replace(made, type=f"decimal({precision or 10},{scale})" + _sign(clause))
    elif word in ("FLOAT", "FLOAT4", "DOUBLE", "FLOAT8", "REAL"):
        single = word in ("FLOAT", "FLOAT4") or (word == "REAL" and SqlMode.REAL_AS_FLOAT in clause.mode)
        made = replace(made, type=_float(clause, "float" if single else "double"))
    elif word == "BIT":
        made = replace(made, type=f"bit({(*_numbers(clause), 1)[0]})")
    elif word in ("TIME", "DATETIME", "TIMESTAMP"):
        digits = (*_numbers(clause), 0)[0]
        made = replace(made, type=word.lower() + (f"({digits})" if digits else ""))
    elif word in ("DATE", "YEAR"):
        _numbers(clause)
        made = replace(made, type=word.lower())
    elif word in ("ENUM", "SET"):
        labels = tuple(_label(value) for value in clause.parenthesis().clauses())
        made = replace(made, type=word.lower(), labels=labels)
    elif word == "JSON":
        made = replace(made, type="longtext", charset="utf8mb4") if mariadb else replace(made, type="json")
    elif word in _GEOMETRY:
        made = replace(made, type="geometrycollection" if word == "GEOMCOLLECTION" else word.lower())
        _numbers(clause)
    else:
        made = _string(clause, word, made)
    if national or word in ("NCHAR", "NVARCHAR"):
        made = replace(made, charset="utf8mb3")
    return made


def _string(clause: TokenReader, word: str, made: Definition) -> Definition:
    if word == "LONG":
        binary = clause.take("VARBINARY")
        if not binary and not clause.take("VARCHAR", "CHARACTER"):
            clause.take("VARCHAR")
        return replace(made, type="mediumblob" if binary else "mediumtext")
    if word in ("CHAR", "CHARACTER", "NCHAR", "VARCHAR", "NVARCHAR", "VARCHARACTER", "VARCHAR2"):
        varying = word in ("VARCHAR", "NVARCHAR", "VARCHARACTER", "VARCHAR2")
        varying = bool(clause.take_any("VARYING", "VARCHAR", "VARCHARACTER")) or varying
        sizes = _numbers(clause)
        return replace(made, type="varchar" if varying else "char", length=(*sizes, 1)[0])
    if word == "BINARY" and clause.take("VARYING"):
        word = "VARBINARY"
    if word in ("BINARY", "VARBINARY", "RAW"):
        sizes = _numbers(clause)
        return replace(made, type="binary" if word == "BINARY" else "varbinary", length=(*sizes, 1)[0])
    if word in ("TEXT", "BLOB", "CLOB"):
        sizes = _numbers(clause)
        kind = "longtext" if word == "CLOB" else word.lower()
        return replace(made, type=kind, length=sizes[0] if sizes and kind != "longtext" else None)
    if word in _TEXT_TYPES or word in _BLOBS:
        return replace(made, type=_TEXT_TYPES.get(word) or _BLOBS[word])
    if word in ("UUID", "INET4", "INET6", "XMLTYPE"):
        return replace(made, type=word.lower())
    if word == "VECTOR":
        return replace(made, type=f"vector({(*_numbers(clause), 2048)[0]})")
    raise NotUnderstood("a type that is not known")


def _integer(clause: TokenReader, base: str) -> str:
    width = (*_numbers(clause), 0)[0]
    sign = _sign(clause)
    if "zerofill" in sign:
        return f"{base}({width or _WIDTHS[base] - (base != 'bigint')}){sign}"
    return "tinyint(1)" if base == "tinyint" and width == 1 and not sign else base + sign


def _float(clause: TokenReader, base: str) -> str:
    clause.take("PRECISION")
    sizes = _numbers(clause)
    if len(sizes) == 2:
        return f"{base}({sizes[0]},{sizes[1]})" + _sign(clause)
    if sizes and sizes[0] > 24:
        base = "double"
    return base + _sign(clause)


def _sign(clause: TokenReader) -> str:
    """SIGNED, UNSIGNED and ZEROFILL, in any order; ZEROFILL makes unsigned."""
    found = set()
    while word := clause.take_any("SIGNED", "UNSIGNED", "ZEROFILL"):
        found.add(word)
    if "ZEROFILL" in found:
        return " unsigned zerofill"
    return " unsigned" if "UNSIGNED" in found else ""


def _numbers(clause: TokenReader) -> list[int]:
    """`(10, 2)` or nothing."""
    if clause.peek() != "(":
        return []
    try:
        return [int(part.string()) for part in clause.parenthesis().clauses()]
    except ValueError as error:
        raise NotUnderstood("a length that is not a number") from error


def _label(value: TokenReader) -> str | bytes:
    word = value.next()
    if word.kind is TokenKind.BYTES:
        return word.text.encode("latin-1")
    if word.kind is not TokenKind.STRING or value:
        raise NotUnderstood("a label that is no string")
    return word.text


def _literal(label: str | bytes, charset: str) -> str:
    """Labels lose the spaces at their end. Bytes that are too few for a character get zeros before them."""
    if isinstance(label, bytes):
        if not charset:
            raise NotUnderstood("labels of bytes, in a charset that is not known")
        unit = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}.get(charset, 1)
        aligned = bytes(-len(label) % unit) + label
        try:
            label = charsets.decode(aligned, "utf8mb4" if charset == "binary" else charset)
        except (UnicodeDecodeError, LookupError) as error:
            raise NotUnderstood(f"labels that are no text in {charset}") from error
    return types.quoted_label(label.rstrip(" "))


def _attributes(clause: TokenReader, made: Definition, *, mariadb: bool) -> Definition:
    """What else matters of a definition. The rest (comments, checks) is stepped over."""
    while clause and not clause.looks("PARTITION", "BY"):  # which may end an ALTER without a comma before it
        if clause.take("NOT", "NULL"):
            made = replace(made, nullable=False)
        elif clause.take("NULL"):
            made = replace(made, nullable=True)
        elif clause.take("DEFAULT"):
            found = defaults.read(clause, mariadb=mariadb)
            # MySQL takes no other literal for a TEXT or BLOB, and drops this one with a warning.
            dropped = not mariadb and made.type.endswith(("text", "blob")) and found in ("''", "0x")
            made = replace(made, default=NONE if dropped else found)
        elif clause.take("SERIAL", "DEFAULT", "VALUE"):
            made = replace(made, nullable=False, default=COMPUTED)
        elif clause.take("AUTO_INCREMENT"):
            made = replace(made, default=COMPUTED)
        elif clause.take("GENERATED", "ALWAYS") or clause.looks("AS", "("):
            clause.take("AS")
            made = replace(made, generated=True)
            if clause.take("ROW"):  # START or END: a period of MariaDB's system versioning
                made = replace(made, nullable=False, row_end=clause.peek() == "END")
        elif clause.take("WITH", "SYSTEM", "VERSIONING"):
            made = replace(made, versioned=True)
        elif clause.take("INVISIBLE"):
            made = replace(made, invisible=True)
        elif clause.take("UNIQUE"):
            clause.take("KEY")
        elif clause.take("PRIMARY", "KEY") or clause.take("PRIMARY") or clause.take("KEY"):
            made = replace(made, primary=True)
        elif clause.take("CHARACTER", "SET") or clause.take("CHARSET") or clause.take("CHAR", "SET"):
            clause.take("=")
            made = replace(made, charset=charset_name(clause.string()))
        elif clause.take("COLLATE"):
            clause.take("=")
            made = replace(made, charset=made.charset or charset_of_collation(clause.string()))
        elif word := clause.take_any("ASCII", "UNICODE", "BYTE"):
            made = replace(made, charset={"ASCII": "latin1", "UNICODE": "ucs2", "BYTE": "binary"}[word])
        elif clause.take("FIRST"):
            made = replace(made, first=True)
        elif clause.take("AFTER"):
            made = replace(made, after=clause.name())
        elif clause.take("COMMENT") or clause.take("ENGINE_ATTRIBUTE") or clause.take("SECONDARY_ENGINE_ATTRIBUTE"):
            clause.take("=")
            clause.next()
        elif clause.take("REFERENCES"):
            _step_over_reference(clause)
        elif clause.peek() == "(":
            clause.parenthesis()
        else:
            clause.next()
    return made


def _step_over_reference(clause: TokenReader) -> None:
    """SET NULL and SET DEFAULT after ON DELETE say nothing about this column."""
    clause.name()
    if clause.take("."):
        clause.name()
    if clause.peek() == "(":
        clause.parenthesis()
    while clause.take("ON"):
        clause.next()
        if not (clause.take("SET", "NULL") or clause.take("SET", "DEFAULT") or clause.take("NO", "ACTION")):
            clause.next()
    if clause.take("MATCH"):
        clause.next()
