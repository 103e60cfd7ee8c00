"""Types of MySQL and MariaDB with values that try them: SQL expressions, and how to ask the server what it stored."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

Values = Callable[[random.Random], Sequence[str]]

CHAR, HEX, DOUBLE = "CAST(v AS CHAR)", "HEX(v)", "v + 0e0"
TEXT = "HEX(CONVERT(v USING utf8mb4))"
_EXACT = Context(prec=80)


@dataclass(frozen=True)
class Kind:
    """`shown` is the expression whose text the decoded value is compared with; `arrow` its Arrow type; `odd` a pattern
    of values that the Arrow type cannot hold. `named` is the type's own name here, where it differs from `type`."""

    type: str
    values: Values
    arrow: str
    shown: str = CHAR
    odd: str = "(?!)"
    named: str = ""
    servers: Sequence[str] = ("MySQL", "MariaDB")

    @property
    def native(self) -> str:
        return self.named or self.type


def _integers(bits: int, signed: bool) -> Values:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return lambda pick: [
        str(v) for v in (low, high, 0, 1, -1 if signed else 2, *(pick.randint(low, high) for _ in range(20)))
    ]


def _decimals(precision: int, scale: int) -> Values:
    def values(pick: random.Random) -> list[str]:
        top = 10**precision - 1
        numbers = [0, 1, -1, top, -top, 10 ** (precision // 2), *(pick.randint(-top, top) for _ in range(20))]
        numbers += [
            pick.randint(-(10 ** pick.randint(0, precision)), 10 ** pick.randint(0, precision)) for _ in range(20)
        ]
        with_failpoint = [max(-top, min(top, n)) for n in numbers]
        return [format(Decimal(n).scaleb(-scale, _EXACT), "f") for n in with_failpoint]

    return values


def _doubles(pick: random.Random) -> list[str]:
    found = ["0", "1", "1e15", "1e16", "1e-15", "1e-5", "1.7976931348623157e308", "2.2250738585072014e-308", "5e-324",
             "0.1", "123456789.123456789", "-1.5"]  # fmt: skip
    for _ in range(30):
        (value,) = struct.unpack("<d", pick.randbytes(8))
        if value - value == 0:
            found.append(repr(value))
    return found


def _floats(pick: random.Random) -> list[str]:
    return [
        "0",
        "1",
        "0.1",
        "-3.4028235e38",
        "1.17549e-38",
        "16777217",
        *(repr(pick.uniform(-1e6, 1e6)) for _ in range(20)),
    ]


def _dates(pick: random.Random) -> list[str]:
    random_days = [
        f"{pick.randint(1, 9999):04d}-{pick.randint(1, 12):02d}-{pick.randint(1, 28):02d}" for _ in range(20)
    ]
    days = ["1000-01-01", "9999-12-31", "1970-01-01", "2024-02-29", "0001-01-01", "1900-03-01", *random_days]
    return [f"'{day}'" for day in [*days, "0000-00-00", "2024-00-00", "2024-02-00", "0000-01-01", "2023-02-31"]]


def _datetimes(digits: int) -> Values:
    def values(pick: random.Random) -> list[str]:
        return [f"'{day[1:-1]} {_clock(pick, digits)}'" for day in _dates(pick)] + [
            "'0000-00-00 00:00:00'", "'9999-12-31 23:59:59'", "'1970-01-01 00:00:00'"]  # fmt: skip

    return values


def _clock(pick: random.Random, digits: int) -> str:
    tail = f".{pick.randrange(10**digits):0{digits}d}" if digits else ""
    return f"{pick.randrange(24):02d}:{pick.randrange(60):02d}:{pick.randrange(60):02d}{tail}"


def _timestamps(digits: int) -> Values:
    def values(pick: random.Random) -> list[str]:
        days = [f"{pick.randint(1971, 2037)}-{pick.randint(1, 12):02d}-{pick.randint(1, 28):02d}" for _ in range(20)]
        return [f"'{day} {_clock(pick, digits)}'" for day in days] + [
            "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'0000-00-00 00:00:00'"]  # fmt: skip

    return values


def _times(digits: int) -> Values:
    def values(pick: random.Random) -> list[str]:
        found = ["838:59:59", "-838:59:59", "00:00:00", "-00:00:01", "100:00:00", "23:59:59"]
        for _ in range(40):
            sign = pick.choice(("", "-"))
            tail = f".{pick.randrange(10**digits):0{digits}d}" if digits else ""
            found.append(f"{sign}{pick.randrange(838):02d}:{pick.randrange(60):02d}:{pick.randrange(60):02d}{tail}")
        if digits:
            found += ["-00:00:00." + "0" * (digits - 1) + "1", "-00:00:01." + "9" * digits]
        return [f"'{text}'" for text in found]

    return values


def _texts(*more: str) -> Values:
    def values(pick: random.Random) -> list[str]:
        found = ["", "a", "  two  ", "tab\tline\nnull\0", *more]
        found += ["".join(pick.choice("abc äöü€ß" if not more else "".join(more)) for _ in range(pick.randrange(12)))
                  for _ in range(20)]  # fmt: skip
        return ["CONVERT(X'" + text.encode().hex() + "' USING utf8mb4)" for text in found]

    return values


def _bytes(longest: int) -> Values:
    def values(pick: random.Random) -> list[str]:
        found = [b"", b"\0", b"a\0", b"\xff" * longest, *(pick.randbytes(pick.randint(0, longest)) for _ in range(20))]
        return [f"X'{value.hex()}'" for value in found]

    return values


_JSONS = (
    "null",
    "true",
    "false",
    "1",
    "-1",
    "32767",
    "-32768",
    "32768",
    "65535",
    "65536",
    "2147483648",
    "-2147483649",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1.5",
    "1.0",
    "0.0",
    "-0.0",
    "1e100",
    "1e-100",
    "1e15",
    "1e14",
    "1e16",
    "123456789012345.6",
    "1518163754406909.2",
    "9518163754406908.0",
    "-1234567890123456.5",
    "1e-14",
    "1e-15",
    "1e-16",
    "0.1",
    "1.7976931348623157e308",
    "5e-324",
    "100.0",
    "1e2",
    "12345678901234567890.5",
    "0.00001",
    "0.000123",
    '""',
    '"a"',
    r'"\" \\ \/ \b \f \n \r \t \u0001 \u001f \u007f é € 😀"',
    "[]",
    "{}",
    "[[]]",
    '[1, 2.5, null, true, "x", {"a": []}]',
    '{"b": 1, "a": 2, "aa": 3, "": 4}',
    '{"é": {"x": [1, {"y": null}]}}',
    '{"k": "' + "x" * 300 + '"}',
    "[" + ", ".join(str(i * 1000) for i in range(500)) + "]",
)
_JSON_EXPRESSIONS = (
    "CAST(CAST('2024-02-29' AS DATE) AS JSON)",
    "CAST(CAST('-12:34:56.789' AS TIME(6)) AS JSON)",
    "CAST(CAST('2024-02-29 23:59:59.123456' AS DATETIME(6)) AS JSON)",
    "CAST(12.3400 AS JSON)",
    "CAST(-0.5 AS JSON)",
    "CAST(99999999999999999999999999999999999.123456789 AS JSON)",
    "CAST(X'00ff10' AS JSON)",
    "JSON_ARRAY(CAST(TIMESTAMP'2020-01-01 00:00:00' AS DATETIME), 1.10, X'61')",
    "JSON_OBJECT('a', b'101', 'e', 1e0)",
    "JSON_OBJECT('large', REPEAT('y', 70000), 'b', 3, 'n', 70000, 'd', 1.25e0)",
    "CAST(REPEAT(X'ab', 100) AS JSON)",
    # Decimals whose stored precision counts whole groups of nine digits: more than the 65 that a column may have.
    *(
        f"JSON_ARRAY(CAST('{sign}{'9' * (p - s)}{'.' * (s > 0)}{'9' * s}' AS DECIMAL({p},{s})))"
        for p, s in ((64, 0), (65, 0), (65, 19), (65, 29), (65, 30), (30, 30), (54, 9))
        for sign in ("", "-")
    ),
    "JSON_ARRAY(CAST(1 AS DECIMAL(65,30)), CAST(0 AS DECIMAL(30,30)), CAST(-0.0 AS DECIMAL(5,2)), 1.00 / 7)",
    "JSON_OBJECT('big', JSON_ARRAY(REPEAT('z', 66000), 1, 100000, -100000, 4000000000, true, null))",
)


def _jsons(pick: random.Random) -> list[str]:
    def document(depth: int) -> str:
        kind = pick.randrange(7 if depth else 5)
        if kind == 0:
            return str(pick.randint(-(2 ** pick.randint(1, 63)), 2 ** pick.randint(1, 63)))
        if kind == 1:
            return repr(pick.uniform(-1, 1) * 10 ** pick.randint(-20, 20))
        if kind == 2:
            return '"' + "".join(pick.choice("ab é€😀") for _ in range(pick.randrange(150))) + '"'
        if kind == 3:
            return pick.choice(("true", "false", "null"))
        if kind == 4:
            return str(pick.random())
        if kind == 5:
            return "[" + ",".join(document(depth - 1) for _ in range(pick.randrange(6))) + "]"
        return (
            "{"
            + ",".join(f'"k{i}{"x" * pick.randrange(3)}":{document(depth - 1)}' for i in range(pick.randrange(6)))
            + "}"
        )

    texts = [*_JSONS, *(document(4) for _ in range(60))]
    return ["CAST(CONVERT(X'" + text.encode().hex() + "' USING utf8mb4) AS JSON)" for text in texts] + [
        *_JSON_EXPRESSIONS
    ]


def _mariadb_jsons(pick: random.Random) -> list[str]:
    return ["'{\"a\": [1, 2.50, null]}'", "'  [1]  '", "'\"x\"'"]


def _geometries(pick: random.Random) -> list[str]:
    return ["ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0,1 1.5)', 4326)",
            "ST_GeomFromText('POLYGON((0 0,4 0,4 4,0 0))')",
            "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))')"]  # fmt: skip


def _given(*values: str) -> Values:
    return lambda pick: values


def _uuids(pick: random.Random) -> list[str]:
    found = []
    for version in (1, 2, 3, 4, 5, 6, 7, 8, 0, 15):
        for variant in "89abc07":
            digits = f"{pick.getrandbits(128):032x}"
            digits = digits[:12] + f"{version:x}" + digits[13:16] + variant + digits[17:]
            found.append(f"'{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}'")
    return found


_ZERO = r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d+)?)?"
_GREEK, _KOI8 = "αβγ ΩΔ", "Привет мир"

KINDS: tuple[Kind, ...] = (
    *(
        Kind(f"{name}{'' if signed else ' unsigned'}", _integers(bits, signed), f"{'' if signed else 'u'}int{wide}")
        for name, bits, wide in (
            ("tinyint", 8, 8),
            ("smallint", 16, 16),
            ("mediumint", 24, 32),
            ("int", 32, 32),
            ("bigint", 64, 64),
        )
        for signed in (True, False)
    ),
    Kind("tinyint(1)", _given("0", "1", "-1"), "int8", named="tinyint"),
    Kind("int(5) unsigned zerofill", _given("0", "42", "4294967295"), "uint32", "v + 0", named="int unsigned"),
    *(
        Kind(f"decimal({p},{s})", _decimals(p, s), f"decimal{128 if p <= 38 else 256}({p}, {s})")
        for p, s in (
            (1, 0),
            (5, 5),
            (9, 0),
            (10, 2),
            (12, 2),
            (18, 9),
            (19, 0),
            (19, 10),
            (30, 30),
            (38, 10),
            (39, 0),
            (65, 0),
            (65, 30),
            (64, 29),
        )
        if s <= 30
    ),
    Kind("float", _floats, "float", DOUBLE),
    Kind("double", _doubles, "double", DOUBLE),
    Kind("bit(1)", _given("0", "1"), "bool", "v + 0"),
    *(
        Kind(f"bit({n})", _given("0", "1", str(2**n - 1), str(2 ** (n - 1))), "uint64", "v + 0")
        for n in (2, 8, 9, 33, 64)
    ),
    Kind("year", _given("1901", "2155", "0", "2024"), "uint16", "v + 0"),
    Kind("date", _dates, "date32[day]", odd=_ZERO),
    *(Kind(f"datetime({n})" if n else "datetime", _datetimes(n), "timestamp[us]", odd=_ZERO) for n in range(7)),
    *(
        Kind(
            f"timestamp({n}) null" if n else "timestamp null",
            _timestamps(n),
            "timestamp[us, tz=UTC]",
            odd=_ZERO,
            named=f"timestamp({n})" if n else "timestamp",
        )
        for n in range(7)
    ),
    *(Kind(f"time({n})" if n else "time", _times(n), "string") for n in range(7)),
    *(
        Kind(type_, _texts("Zürich €", "日本語", "😀"), "string", TEXT, named=named)
        for type_, named in (
            ("varchar(100) character set utf8mb4", "varchar(100)"),
            ("varchar(300) character set utf8mb4", "varchar(300)"),
            ("text character set utf8mb4", "text"),
            ("tinytext character set utf8mb4", "tinytext"),
            ("mediumtext character set utf8mb4", "mediumtext"),
            ("longtext character set utf8mb4", "longtext"),
            ("char(90) character set utf8mb4", "char(90)"),
            ("char(255) character set utf8mb4", "char(255)"),
        )
    ),
    Kind("varchar(100) character set utf8mb3", _texts("Zürich €", "日本語"), "string", TEXT, named="varchar(100)"),
    *(
        Kind(f"{type_} character set {charset}", _texts(*more), "string", TEXT)
        for type_ in ("varchar(100)", "text", "char(40)")
        for charset, more in (
            ("latin1", ("Zürich €", "\x81é")),
            ("latin2", ("Łódź",)),
            ("greek", (_GREEK,)),
            ("koi8r", (_KOI8,)),
            ("cp1251", (_KOI8,)),
            ("gbk", ("你好世界", "中文")),
            ("big5", ("中文碁",)),
            ("sjis", ("日本語カナ",)),
            ("cp932", ("日本語～",)),
            ("ujis", ("日本語",)),
            ("eucjpms", ("日本語①㈱～∥", "髙\ue000")),
            ("euckr", ("한국어 뷁",)),
            ("gb2312", ("中文",)),
            ("utf16", ("日本語😀",)),
            ("utf16le", ("日本語😀",)),
            ("utf32", ("日本語😀",)),
            ("ucs2", ("日本語",)),
            ("ascii", ("plain",)),
            ("swe7", ("åäö",)),
            ("armscii8", ("Հայ",)),
        )
    ),
    Kind("varchar(50) character set gb18030", _texts("中文😀"), "string", TEXT, servers=("MySQL",)),
    Kind("binary(8)", _bytes(8), "binary", HEX),
    Kind("varbinary(40)", _bytes(40), "binary", HEX),
    Kind("varbinary(400)", _bytes(400), "binary", HEX),
    *(Kind(f"{size}blob", _bytes(200), "binary", HEX) for size in ("tiny", "", "medium", "long")),
    Kind("enum('a','it''s','é','')", _given("'a'", "1", "2", "3", "'é'", "'nonsense'"), "string", TEXT),
    Kind(r"enum('a\\','it''s','x\ny','\\''')", _given("1", "2", "3", "4"), "string", TEXT),
    Kind(r"set('a\\','b','c\\''d')", _given("1", "2", "3", "7"), "string", TEXT),
    Kind("enum(" + ",".join(f"'v{i}'" for i in range(300)) + ")", _given("1", "255", "256", "300"), "string", TEXT),
    Kind("set('a','b','c d','é')", _given("''", "'a'", "'a,é'", "15", "'b,c d'"), "string", TEXT),
    Kind(
        "set(" + ",".join(f"'s{i}'" for i in range(64)) + ")",
        _given("''", "1", "'s63'", "18446744073709551615", "'s9,s40'"),
        "string",
        TEXT,
    ),
    Kind("json", _jsons, "string", servers=("MySQL",)),
    Kind("json", _mariadb_jsons, "string", named="longtext", servers=("MariaDB",)),
    Kind("geometry", _geometries, "binary", HEX),
    Kind("point", _given("ST_GeomFromText('POINT(1 2)')"), "binary", HEX),
    Kind("linestring", _given("ST_GeomFromText('LINESTRING(0 0,1 1.5)')"), "binary", HEX),
    Kind("polygon", _given("ST_GeomFromText('POLYGON((0 0,4 0,4 4,0 0))')"), "binary", HEX),
    Kind("multipoint", _given("ST_GeomFromText('MULTIPOINT(1 1,2 2)')"), "binary", HEX),
    Kind("multilinestring", _given("ST_GeomFromText('MULTILINESTRING((0 0,1 1))')"), "binary", HEX),
    Kind("multipolygon", _given("ST_GeomFromText('MULTIPOLYGON(((0 0,4 0,4 4,0 0)))')"), "binary", HEX),
    Kind(
        "geometrycollection",
        _given("ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))')"),
        "binary",
        HEX,
        named="geomcollection",
    ),
    Kind("vector(3)", _given("TO_VECTOR('[1, -2.5, 1e10]')"), "list<item: float>", HEX, servers=("MySQL",)),
    Kind("uuid", _uuids, "string", servers=("MariaDB",)),
    Kind(
        "inet6",
        _given(
            "'::'",
            "'2001:db8::ff00:42:8329'",
            "'::ffff:192.0.2.1'",
            "'::ffff:0.0.0.1'",
            "'::ffff:0.0.0.0'",
            "'::ffff:0:0:1'",
            "'ff::'",
            "'::1'",
            "'::1:2'",
            "'::10.1.2.3'",
            "'::0.1.2.3'",
            "'1::8:0:0:1'",
            "'1:0:0:4:0:0:0:8'",
            "'0:2:3:4:5:6:7:8'",
            "'1:2:0:4:5:6:7:8'",
            "'1:2:3:4:5:6:7:0'",
        ),
        "string",
        servers=("MariaDB",),
    ),
    Kind("inet4", _given("'0.0.0.0'", "'192.0.2.1'", "'255.255.255.0'"), "string", servers=("MariaDB",)),
    Kind(
        "varchar(200) compressed character set utf8mb4",
        _texts("é" * 60, "x" * 190),
        "string",
        TEXT,
        named="varchar(200)",
        servers=("MariaDB",),
    ),
    Kind("blob compressed", _bytes(400), "binary", HEX, named="blob", servers=("MariaDB",)),
)
