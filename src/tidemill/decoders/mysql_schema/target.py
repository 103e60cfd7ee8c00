"""The table that a change of rows writes to, where the binlog has the statement in place of the rows.

Sessions may leave binlog_format=ROW: tools do (pt-table-checksum), and hosts do for their own tables (RDS). Such a
statement is passed over only where its text shows that it wrote to one table, which is not captured. What a trigger
of that table does cannot be seen in it.
"""

from __future__ import annotations

from tidemill.decoders._shared.mysql.session import SqlMode
from tidemill.decoders.mysql_schema.statements import WrittenName
from tidemill.decoders.mysql_schema.tokens import NotUnderstood, SqlToken, TokenKind, TokenReader, tokenize

_NOISE = ("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "QUICK", "IGNORE", "CONCURRENT", "LOCAL")
# What may stand before a parenthesis. A function of the user's own may write to any table.
_OF_THE_LANGUAGE = (
    "VALUES VALUE SELECT FROM WHERE AND OR NOT IN ON USING SET AS BY INDEX KEY FORCE INTO HAVING CASE WHEN THEN ELSE"
    " EXISTS ALL ANY UNION DISTINCT BETWEEN LIKE IS OVER PARTITION ROW INTERVAL JOIN LIMIT XOR DIV MOD FIELDS COLUMNS"
    " DECIMAL CHAR BINARY SIGNED UNSIGNED DATETIME TIME"
    " COUNT SUM MIN MAX AVG BIT_XOR BIT_AND BIT_OR GROUP_CONCAT COALESCE IFNULL NULLIF IF ISNULL GREATEST LEAST"
    " CAST CONVERT CONV HEX UNHEX CRC32 MD5 SHA SHA1 SHA2 CONCAT CONCAT_WS LOWER UPPER LCASE UCASE TRIM LTRIM RTRIM"
    " LENGTH CHAR_LENGTH LEFT RIGHT SUBSTR SUBSTRING SUBSTRING_INDEX REPLACE REPEAT LPAD RPAD FORMAT FIELD LOCATE"
    " ABS CEIL CEILING FLOOR ROUND TRUNCATE SIGN POW POWER SQRT RAND"
    " NOW CURRENT_TIMESTAMP CURRENT_DATE CURRENT_TIME LOCALTIME LOCALTIMESTAMP UTC_TIMESTAMP UTC_DATE UTC_TIME SYSDATE"
    " CURDATE CURTIME UNIX_TIMESTAMP FROM_UNIXTIME DATE DATE_ADD DATE_SUB DATE_FORMAT DATEDIFF TIMESTAMP TIMESTAMPDIFF"
    " YEAR MONTH DAY HOUR MINUTE SECOND LAST_INSERT_ID CONNECTION_ID DATABASE SCHEMA USER CURRENT_USER VERSION UUID"
    " JSON_OBJECT JSON_ARRAY JSON_EXTRACT JSON_SET"
)
_NO_STORED_FUNCTION = frozenset(_OF_THE_LANGUAGE.split())


def target(text: str, mode: SqlMode) -> WrittenName | None:
    """The one table that the statement writes to, as it is written there. None where there may be another."""
    try:
        found = tokenize(text, mode)
        reader = TokenReader(found)
        if reader.take("SET", "STATEMENT"):
            while reader and not reader.take("FOR"):
                reader.next()
        kind = reader.next().upper
        while reader.take_any(*_NOISE):
            pass
        match kind:
            case "INSERT" | "REPLACE":
                reader.take("INTO")
                name = _name(reader)
            case "DELETE":
                reader.expect("FROM")
                name = _name(reader)
                _alone(reader, "WHERE", "ORDER", "LIMIT", "RETURNING")
            case "UPDATE":
                name = _name(reader)
                _alone(reader, "SET")
            case "LOAD":
                while not reader.take("INTO", "TABLE"):
                    reader.next()
                name = _name(reader)
            case _:
                return None
    except NotUnderstood:
        return None
    return None if any(word.upper == ";" for word in found) else name


def calls_nothing(text: str, mode: SqlMode) -> bool:
    """Whether it is sure that no stored function runs in the statement."""
    found = tokenize(text, mode)
    return not any(_may_call(found, at) for at, word in enumerate(found) if word.upper == "(" and at)


def _may_call(found: list[SqlToken], at: int) -> bool:
    """What stands before the parenthesis at `at`: a name of ours, unless a table's columns follow its name."""
    before = found[at - 1]
    if before.kind is TokenKind.SIGN or before.upper in _NO_STORED_FUNCTION:
        return False
    if before.kind is TokenKind.STRING and found[0].upper == "LOAD":
        return False  # FIELDS TERMINATED BY ',' (columns)
    start = at - 3 if at >= 3 and found[at - 2].upper == "." else at - 1
    introduced = found[start - 1].upper if start > 0 else ""
    return introduced not in ("INTO", "TABLE", "INSERT", "REPLACE", "IGNORE")


def _name(reader: TokenReader) -> WrittenName:
    first = reader.name()
    return WrittenName(first, reader.name()) if reader.take(".") else WrittenName("", first)


def _alone(reader: TokenReader, *ends: str) -> None:
    """Up to one of the words or the end there is at most an alias: no second table."""
    reader.take("AS")
    if reader and reader.peek() not in ends:
        reader.name()
    if reader and reader.peek() not in ends:
        raise NotUnderstood("a statement of several tables")
