"""Every kind of PostgreSQL value, and generators of texts that its type accepts."""

from __future__ import annotations

import json
import random
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Values = Callable[[random.Random], Iterator[str]]

COUNT = 60  # random values of each kind, besides those that are always there

#: What must exist before the tables.
SETUP = (
    "CREATE TYPE public.mood AS ENUM ('sad', 'a \"quoted\" one', 'with, comma', 'NULL', 'żółw', '')",
    "CREATE TYPE public.pair AS (a int, b text, c numeric(6,2))",
    "CREATE TYPE public.nest AS (p public.pair, list text[])",
    "CREATE TYPE public.textrange AS RANGE (subtype = text)",
    "CREATE DOMAIN public.price AS numeric(8,3)",
    "CREATE DOMAIN public.dear AS public.price CHECK (VALUE IS NULL OR VALUE = VALUE)",
    "CREATE DOMAIN public.code AS text",
    "CREATE DOMAIN public.marks AS int[]",
    "CREATE DOMAIN public.boxes AS box[]",
    "CREATE DOMAIN public.onebox AS box",
    "CREATE EXTENSION hstore SCHEMA public",
    "CREATE EXTENSION citext SCHEMA public",
    "CREATE EXTENSION ltree SCHEMA public",
)


@dataclass(frozen=True)
class Kind:
    """`arrow` is what the column must be; `odd` matches the only values that may travel as text beside it."""

    type: str
    arrow: str
    values: Values
    odd: str | None = None
    since: int = 0


def _fixed(*texts: str) -> Values:
    return lambda _pick: iter(texts)


def _many(make: Callable[[random.Random], str], *always: str) -> Values:
    def values(pick: random.Random) -> Iterator[str]:
        yield from always
        for _ in range(COUNT):
            yield make(pick)

    return values


def _int(bits: int, signed: bool = True) -> Values:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return _many(lambda p: str(p.randint(low, high) >> p.randrange(bits)), str(low), str(high), "0")


def _decimal(precision: int, scale: int) -> Callable[[random.Random], str]:
    def make(pick: random.Random) -> str:
        digits = pick.randint(0, 10 ** pick.randint(1, precision) - 1)
        return f"{pick.choice(('', '-'))}{digits}e{-scale}"

    return make


def _numeric(precision: int, scale: int) -> Values:
    last = 10**precision - 1
    return _many(_decimal(precision, scale), "0", "-0", "NaN", f"{last}e{-scale}", f"-{last}e{-scale}", f"1e{-scale}")


def _any_numeric(pick: random.Random) -> str:
    return f"{_decimal(pick.choice((5, 40, 400)), pick.randint(-50, 300))(pick)}"


def _float(form: str, bits: int) -> Values:
    def make(pick: random.Random) -> str:
        (value,) = struct.unpack(form, pick.randbytes(bits // 8))
        return repr(value)

    return _many(make, "NaN", "Infinity", "-Infinity", "-0", "0.1", "1e-37", "3.4028235e38" if bits == 32 else "5e-324")


_WORDS = (
    "",
    " ",
    "NULL",
    "null",
    "{}",
    '"',
    "\\",
    "a,b",
    "a;b",
    "{a,{b}}",
    "'",
    "\t\n\r",
    "é",
    "日本語",
    "🦆",
    "\x7f",
    "a  ",
)


def _word(pick: random.Random, longest: int = 30) -> str:
    if pick.random() < 0.3:
        return pick.choice(_WORDS)
    pool = "abcXYZ 0189_\"\\{}(),;'éßж中🦆\n\t"
    return "".join(pick.choice(pool) for _ in range(pick.randint(0, longest)))


def _date(pick: random.Random, last: int) -> tuple[str, str]:
    year = pick.choice((pick.randint(1, 9999), pick.randint(1900, 2100), pick.randint(1, last)))
    era = " BC" if year <= 4712 and pick.random() < 0.3 else ""
    return f"{year:04d}-{pick.randint(1, 12):02d}-{pick.randint(1, 28):02d}", era


def _clock(pick: random.Random) -> str:
    fraction = pick.choice(("", f".{pick.randint(0, 999_999):06d}", f".{pick.randint(0, 9)}"))
    return f"{pick.randint(0, 23):02d}:{pick.randint(0, 59):02d}:{pick.randint(0, 59):02d}{fraction}"


def _timestamp(pick: random.Random) -> str:
    day, era = _date(pick, 294275)
    return f"{day} {_clock(pick)}{era}"


def _timestamptz(pick: random.Random) -> str:
    day, era = _date(pick, 294275)
    return f"{day} {_clock(pick)}{pick.choice('+-')}{pick.randint(0, 15):02d}:{pick.choice((0, 30, 45)):02d}{era}"


_EDGES = (
    "infinity",
    "-infinity",
    "4713-01-01 00:00:00 BC",
    "0001-01-01 00:00:00",
    "0001-12-31 23:59:59.999999 BC",
    "1969-12-31 23:59:59.999999",
    "2000-02-29 00:00:00",
    "294247-01-08 12:00:00",
    "294276-12-31 23:59:59.999999",
)
_BEYOND = r"-?infinity|2942[4-7]\d-.*"


def _interval(pick: random.Random) -> str:
    return (
        f"{pick.randint(-3000, 3000)} months {pick.randint(-99999, 99999)} days "
        f"{pick.randint(-(2**50), 2**50)} microseconds"
    )


def _json(pick: random.Random, depth: int = 3) -> object:
    match pick.randrange(7 if depth else 5):
        case 0:
            return None
        case 1:
            return pick.choice((True, False))
        case 2:
            return pick.choice((0, -1, 10**30, 0.1, pick.random()))
        case 3 | 4:
            return _word(pick).replace("\x00", "")
        case 5:
            return [_json(pick, depth - 1) for _ in range(pick.randrange(4))]
        case _:
            return {_word(pick, 5): _json(pick, depth - 1) for _ in range(pick.randrange(4))}


def quoted(text: str) -> str:
    """An element of an array's text."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _list(make: Callable[[random.Random], str], *always: str, comma: str = ",") -> Values:
    def one(pick: random.Random) -> str:
        items = (quoted(make(pick)) if pick.random() > 0.15 else "NULL" for _ in range(pick.randint(0, 5)))
        return "{" + comma.join(items) + "}"

    return _many(one, "{}", "{NULL}", f"{{NULL{comma}NULL}}", *always)


def _range(make: Callable[[random.Random], str], key: Callable[[str], object]) -> Callable[[random.Random], str]:
    def one(pick: random.Random) -> str:
        low, high = sorted((make(pick), make(pick)), key=key)  # type: ignore[arg-type]
        low, high = ("" if pick.random() < 0.1 else quoted(bound) for bound in (low, high))
        return f"{pick.choice('[(')}{low},{high}{pick.choice('])')}"

    return one


def _spans(make: Callable[[random.Random], str]) -> Callable[[random.Random], str]:
    return lambda pick: "{" + ",".join(make(pick) for _ in range(pick.randint(0, 4))) + "}"


def _small(pick: random.Random) -> str:
    return str(pick.randint(-1000, 1000))


def _day(pick: random.Random) -> str:
    return f"{pick.randint(1000, 9999)}-{pick.randint(1, 12):02d}-{pick.randint(1, 28):02d}"


def _moment(pick: random.Random) -> str:
    return f"{_day(pick)} {_clock(pick)}"


def _coordinate(pick: random.Random) -> str:
    return repr(pick.choice((pick.uniform(-1e3, 1e3), float(pick.randint(-9, 9)), pick.uniform(-1, 1) * 1e300)))


def _point(pick: random.Random) -> str:
    return f"({_coordinate(pick)},{_coordinate(pick)})"


def _points(pick: random.Random) -> str:
    return ",".join(_point(pick) for _ in range(pick.randint(1, 5)))


def _box(pick: random.Random) -> str:
    return f"{_point(pick)},{_point(pick)}"


def _bits(length: int | None) -> Callable[[random.Random], str]:
    return lambda p: "".join(p.choice("01") for _ in range(p.randint(0, 70) if length is None else length))


def _ipv4(pick: random.Random) -> str:
    return ".".join(str(pick.randint(0, 255)) for _ in range(4))


def _inet(pick: random.Random) -> str:
    if pick.random() < 0.5:
        return _ipv4(pick) + pick.choice(("", f"/{pick.randint(0, 32)}"))
    six = ":".join(f"{pick.choice((0, 0, pick.randint(0, 65535))):x}" for _ in range(8))
    return six + pick.choice(("", f"/{pick.randint(0, 128)}"))


def _mac(size: int) -> Callable[[random.Random], str]:
    return lambda p: ":".join(f"{p.randint(0, 255):02x}" for _ in range(size))


def _pair(pick: random.Random) -> str:
    fields = (pick.choice(("", _small(pick))), pick.choice(("", quoted(_word(pick)))), pick.choice(("", "NaN", "12.5")))
    return "(" + ",".join(fields) + ")"


def _hstore(pick: random.Random) -> str:
    pairs = (f"{quoted(_word(pick))}=>{pick.choice(('NULL', quoted(_word(pick))))}" for _ in range(pick.randint(0, 4)))
    return ",".join(pairs)


def _lexemes(pick: random.Random) -> str:
    words = (
        f"{pick.choice(('fat', 'cat', 'ёж', 'a-b'))}{pick.randint(0, 9)}:{pick.randint(1, 99)}{pick.choice('ABCD')}"
        for _ in range(pick.randint(0, 6))
    )
    return " ".join(words)


def _xml(pick: random.Random) -> str:
    return f'<a b="{pick.randint(0, 9)}"><![CDATA[{_word(pick).replace("]]>", "")}]]>é</a>'


def _hex(pick: random.Random) -> str:
    return "\\x" + pick.randbytes(pick.randint(0, 40)).hex()


_NESTED = r"[{\[].*"  # more than one dimension, or explicit bounds
_MOODS = ("sad", 'a "quoted" one', "with, comma", "NULL", "żółw", "")

KINDS: Sequence[Kind] = (
    Kind("boolean", "bool", _fixed("t", "f")),
    Kind("smallint", "int16", _int(16)),
    Kind("integer", "int32", _int(32)),
    Kind("bigint", "int64", _int(64)),
    Kind("oid", "uint32", _int(32, signed=False)),
    Kind("xid", "uint32", _int(32, signed=False)),
    Kind("cid", "uint32", _int(32, signed=False)),
    Kind("real", "float", _float(">f", 32)),
    Kind("double precision", "double", _float(">d", 64)),
    Kind(
        "numeric",
        "string",
        _many(_any_numeric, "NaN", "Infinity", "-Infinity", "1e131071", "1e-16383", "1.500", "0.00"),
    ),
    Kind("numeric(12,2)", "decimal128(12, 2)", _numeric(12, 2), "NaN"),
    Kind("numeric(1,0)", "decimal128(1, 0)", _numeric(1, 0), "NaN"),
    Kind("numeric(18,18)", "decimal128(18, 18)", _numeric(18, 18), "NaN"),
    Kind("numeric(18,0)", "decimal128(18, 0)", _numeric(18, 0), "NaN"),
    Kind("numeric(19,5)", "decimal128(19, 5)", _numeric(19, 5), "NaN"),
    Kind("numeric(38,10)", "decimal128(38, 10)", _numeric(38, 10), "NaN"),
    Kind("numeric(39,0)", "decimal256(39, 0)", _numeric(39, 0), "NaN"),
    Kind("numeric(76,20)", "decimal256(76, 20)", _numeric(76, 20), "NaN"),
    Kind("numeric(100,5)", "string", _numeric(100, 5)),
    Kind("numeric(3,-2)", "decimal128(5, 0)", _numeric(3, -2), "NaN"),
    Kind("numeric(30,-20)", "decimal256(50, 0)", _numeric(30, -20), "NaN"),
    Kind("numeric(2,5)", "decimal128(5, 5)", _numeric(2, 5), "NaN"),
    Kind(
        "money",
        "string",
        _many(
            lambda p: f"{p.randint(-(10**9), 10**15)}.{p.randint(0, 99):02d}",
            "92233720368547758.07",
            "-92233720368547758.08",
            "0",
        ),
    ),
    Kind("text", "string", _many(_word, *_WORDS, "x" * 3000)),
    Kind("character varying(40)", "string", _many(_word, *_WORDS)),
    Kind("character(33)", "string", _many(_word, *_WORDS)),
    Kind('"char"', "string", _fixed("a", "", "\\", '"', "{", " ")),
    Kind("name", "string", _many(lambda p: _word(p, 10), *_WORDS)),
    Kind("bytea", "binary", _many(_hex, "\\x", "\\x00", "\\x5c78")),
    Kind(
        "date",
        "date32[day]",
        _many(
            lambda p: "".join(_date(p, 5874896)),
            "infinity",
            "-infinity",
            "4713-11-24 BC",
            "5874897-12-31",
            "1970-01-01",
            "0001-01-01",
            "0001-12-31 BC",
        ),
        "-?infinity",
    ),
    Kind("time without time zone", "time64[us]", _many(_clock, "24:00", "00:00", "23:59:59.999999"), "24:00:00"),
    Kind("time(2) without time zone", "time64[us]", _many(_clock, "12:00:00.55"), "24:00:00"),
    Kind(
        "time with time zone",
        "string",
        _many(lambda p: f"{_clock(p)}{p.choice('+-')}{p.randint(0, 15)}", "24:00-15:59:59"),
    ),
    Kind("timestamp without time zone", "timestamp[us]", _many(_timestamp, *_EDGES), _BEYOND),
    Kind("timestamp(0) without time zone", "timestamp[us]", _many(_timestamp, *_EDGES[:-1]), _BEYOND),
    Kind(
        "timestamp with time zone",
        "timestamp[us, tz=UTC]",
        _many(_timestamptz, *(e.replace(" BC", "+00 BC") for e in _EDGES)),
        _BEYOND,
    ),
    Kind("interval", "string", _many(_interval, "0", "-178000000 years", "1 us")),
    Kind("interval(0)", "string", _fixed("infinity", "-infinity"), since=17),
    Kind("uuid", "string", _many(lambda p: str(uuid.UUID(int=p.getrandbits(128))), str(uuid.UUID(int=0)))),
    Kind(
        "json", "string", _many(lambda p: json.dumps(_json(p), indent=p.choice((None, 1))), ' {"a":1, "a":2} ', "1e400")
    ),
    Kind("jsonb", "string", _many(lambda p: json.dumps(_json(p), ensure_ascii=False), "1e400", "1.500")),
    Kind("jsonpath", "string", _fixed("$.a[*] ? (@ > 1)", 'strict $."a b"')),
    Kind("public.mood", "string", _fixed(*_MOODS)),
    Kind("public.price", "decimal128(8, 3)", _numeric(8, 3), "NaN"),
    Kind("public.dear", "decimal128(8, 3)", _numeric(8, 3), "NaN"),
    Kind("public.code", "string", _many(_word, *_WORDS)),
    Kind("public.marks", "list<item: int32>", _list(_small, "{{1,2},{3,4}}"), _NESTED),
    Kind("public.boxes", "list<item: string>", _list(_box, comma=";")),
    Kind(
        "integer[]",
        "list<item: int32>",
        _list(_small, "{{1,2},{3,NULL}}", "[0:1]={5,6}", "[-2:-2]={7}", "{{{1}}}"),
        _NESTED,
    ),
    Kind("bigint[]", "list<item: int64>", _list(lambda p: str(p.randint(-(2**63), 2**63 - 1)))),
    Kind("boolean[]", "list<item: bool>", _list(lambda p: p.choice("tf"))),
    Kind(
        "text[]",
        "list<item: string>",
        _list(_word, '{{a,"b,c"},{NULL,"NULL"}}', '[5:6]={"[","]"}', '{"[0:1]={1,2}"}'),
        _NESTED,
    ),
    Kind("character varying(30)[]", "list<item: string>", _list(_word)),
    Kind("character(31)[]", "list<item: string>", _list(_word)),
    Kind("numeric[]", "list<item: string>", _list(_any_numeric, "{NaN,Infinity}")),
    Kind(
        "numeric(6,2)[]",
        "list<item: decimal128(6, 2)>",
        _list(_decimal(6, 2), "{NaN,1}", "{1,NULL,2.50}"),
        r"\{.*NaN.*",
    ),
    Kind("double precision[]", "list<item: double>", _list(_coordinate, "{NaN,Infinity,-Infinity,-0}")),
    Kind(
        "timestamp with time zone[]",
        "list<item: timestamp[us, tz=UTC]>",
        _list(_timestamptz, "{infinity,2024-01-01}"),
        r"\{.*(infinity|2942[4-7]\d-).*",
    ),
    Kind("date[]", "list<item: date32[day]>", _list(_day, "{-infinity}", '{"0044-03-15 BC"}'), r"\{.*infinity.*"),
    Kind("time without time zone[]", "list<item: time64[us]>", _list(_clock, "{24:00}"), r"\{.*24:00.*"),
    Kind("bytea[]", "list<item: binary>", _list(_hex)),
    Kind("uuid[]", "list<item: string>", _list(lambda p: str(uuid.UUID(int=p.getrandbits(128))))),
    Kind("jsonb[]", "list<item: string>", _list(lambda p: json.dumps(_json(p)))),
    Kind("box[]", "list<item: string>", _list(_box, comma=";")),
    Kind("public.onebox[]", "list<item: string>", _list(_box, comma=";")),
    Kind("point[]", "list<item: string>", _list(_point)),
    Kind("public.mood[]", "list<item: string>", _list(lambda p: p.choice(_MOODS))),
    Kind("public.price[]", "list<item: decimal128(8, 3)>", _list(_decimal(8, 3))),
    Kind("public.pair[]", "list<item: string>", _list(_pair)),
    Kind("int4range[]", "list<item: string>", _list(_range(_small, int))),
    Kind("public.citext[]", "list<item: string>", _list(_word)),
    Kind("int4range", "string", _many(_range(_small, int), "empty", "(,)")),
    Kind("int8range", "string", _many(_range(_small, int), "empty")),
    Kind("numrange", "string", _many(_range(_small, int), "empty", "[1.50,Infinity]")),
    Kind("daterange", "string", _many(_range(_day, str), "empty", "[-infinity,infinity]")),
    Kind("tsrange", "string", _many(_range(_moment, str), "empty", "[-infinity,infinity]")),
    Kind("tstzrange", "string", _many(_range(_moment, str), "empty")),
    Kind("public.textrange", "string", _many(_range(_word, lambda word: word.encode()), "empty")),
    Kind("int4multirange", "string", _many(_spans(_range(_small, int)), "{}")),
    Kind("nummultirange", "string", _many(_spans(_range(_small, int)), "{}")),
    Kind("tstzmultirange", "string", _many(_spans(_range(_moment, str)), "{}")),
    Kind("public.pair", "string", _many(_pair, "(,,)")),
    Kind(
        "public.nest", "string", _many(lambda p: f"({quoted(_pair(p))},{quoted('{' + quoted(_word(p)) + '}')})", "(,)")
    ),
    Kind("bit(1)", "string", _fixed("0", "1")),
    Kind("bit(67)", "string", _many(_bits(67))),
    Kind("bit varying", "string", _many(_bits(None), "")),
    Kind("inet", "string", _many(_inet, "::", "::ffff:1.2.3.4")),
    Kind("cidr", "string", _many(_ipv4, "10.0.0.0/8", "::/0", "2001:db8::/32")),
    Kind("macaddr", "string", _many(_mac(6))),
    Kind("macaddr8", "string", _many(_mac(8))),
    Kind("xml", "string", _many(_xml, "text only", "<?xml version='1.0'?><a/>")),
    Kind("public.hstore", "string", _many(_hstore, "")),
    Kind("public.citext", "string", _many(_word, *_WORDS)),
    Kind("public.ltree", "string", _fixed("Top", "Top.Science.Astronomy", "")),
    Kind("tsvector", "string", _many(_lexemes, "'it''s' 'a b':3", "")),
    Kind("tsquery", "string", _fixed("fat & (cat | !rat)", "'a b':*A <-> c", "")),
    Kind("point", "string", _many(_point, "(NaN,Infinity)")),
    Kind("line", "string", _many(lambda p: f"{{{_coordinate(p)},1,{_coordinate(p)}}}")),
    Kind("lseg", "string", _many(lambda p: f"[{_box(p)}]")),
    Kind("box", "string", _many(_box)),
    Kind("path", "string", _many(lambda p: f"[{_points(p)}]", "((0,0),(1,1))")),
    Kind("polygon", "string", _many(lambda p: f"({_points(p)})")),
    Kind("circle", "string", _many(lambda p: f"<{_point(p)},{abs(p.gauss(0, 9))}>")),
    Kind("pg_lsn", "string", _fixed("0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF")),
    Kind("tid", "string", _fixed("(0,1)", "(4294967295,65535)")),
    Kind("regtype", "string", _fixed("integer", "pg_catalog.text", "public.mood", "-")),
    Kind("int2vector", "string", _fixed("1 2 3", "", "-5")),
    Kind("oidvector", "string", _fixed("1 2 3", "")),
)
