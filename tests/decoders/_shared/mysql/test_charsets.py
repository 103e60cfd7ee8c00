"""Character sets, with the servers as the oracle: every byte of those of one byte, every code of the others."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.seed import run_seed
from tidemill.decoders._shared.mysql import charsets, table_map, types
from tidemill.decoders.binlog import cells, strings
from tidemill.decoders.binlog.column import BinlogCells
from tidemill.errors import DecodeError
from tidemill.lab.servers.mysql_family import Server

SEED = run_seed()
Limits = tuple[tuple[int, int], ...]
_ANY, _UPPER = (0, 255), (0x80, 255)
_ONE_AND_TWO: tuple[Limits, ...] = ((_ANY,), (_UPPER, _ANY))
#: For each byte of a code its first and last value; all codes among them that a server takes are tried.
_CODES: dict[str, tuple[Limits, ...]] = {
    **dict.fromkeys(("big5", "cp932", "euckr", "gb2312", "gbk", "sjis"), _ONE_AND_TWO),
    **dict.fromkeys(("ujis", "eucjpms"), (*_ONE_AND_TWO, ((0x8F, 0x8F), _UPPER, _UPPER))),
    "gb18030": (*_ONE_AND_TWO, ((0x81, 0xFE), (0x30, 0x39), (0x81, 0xFE), (0x30, 0x39))),
    "ucs2": ((_ANY, _ANY),),
    "utf16": ((_ANY, _ANY), ((0xD8, 0xDB), (0x3C, 0x40), (0xDC, 0xDF), _ANY)),
    "utf16le": ((_ANY, _ANY), ((0x3C, 0x40), (0xD8, 0xDB), _ANY, (0xDC, 0xDF))),
    "utf32": (((0, 0), (0, 2), _ANY, _ANY), ((0, 0), (16, 16), _ANY, _ANY)),
    "utf8mb3": ((_ANY,), ((0xC0, 0xDF), _ANY), ((0xE0, 0xEF), _UPPER, _UPPER)),
    "utf8mb4": (
        (_ANY,),
        ((0xC0, 0xDF), _ANY),
        ((0xE0, 0xEF), _UPPER, _UPPER),
        ((0xF0, 0xF5), _UPPER, (0x80, 0x82), _UPPER),
    ),
}


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made: Server = request.getfixturevalue(request.param)
    made.execute(
        "CREATE DATABASE codes",
        "CREATE TABLE codes.n (n int PRIMARY KEY, b binary(1))",
        "INSERT INTO codes.n VALUES " + ", ".join(f"({i}, X'{i:02X}')" for i in range(256)),
    )
    yield made
    made.execute("DROP DATABASE codes")


@pytest.mark.parametrize("charset", _CODES)
def test_every_code_is_read_as_the_server_reads_it(server: Server, charset: str) -> None:
    if (charset, server.name) == ("gb18030", "MariaDB"):
        pytest.skip("MariaDB has no such character set")
    texts, wrong = {}, []
    for code, shown in _codes(server, charset):
        try:
            ours: bytes | None = charsets.decode(code, charset).encode()
        except UnicodeDecodeError:
            ours = None
        if ours is not None and ours == shown:
            texts[code] = ours.decode()
        elif ours is not None or not _is_no_text(shown):
            wrong.append((code.hex(), shown, ours))
    assert not wrong, f"{len(wrong)} codes: (code, server, ours) {wrong[:8]}"
    assert len(texts) > 7_000
    _check_in_columns(texts, charset)


def _codes(server: Server, charset: str) -> Iterator[tuple[bytes, bytes]]:
    """Codes that the server takes, and what it shows for them."""
    with server.connect("codes") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION group_concat_max_len = 1000000")
        for limits in _CODES[charset]:
            cursor.execute(_question(limits, charset))
            for (line,) in cursor.fetchall():
                for item in line.split(",") if line else ():
                    code, taken, shown = item.split(":")
                    if code == taken and shown:  # a code that is cut off becomes nothing
                        yield bytes.fromhex(code), bytes.fromhex(shown)


def _question(limits: Limits, charset: str) -> str:
    """A row for all codes that begin alike."""
    names = [f"t{i}" for i in range(len(limits))]
    code = f"CONCAT({', '.join(f'{name}.b' for name in names)})"
    taken = f"CONVERT({code} USING {charset})"
    within = " AND ".join(f"{t}.n BETWEEN {low} AND {high}" for t, (low, high) in zip(names, limits, strict=True))
    lead = ", ".join(f"{name}.n" for name in names[:-1])
    return (
        f"SELECT GROUP_CONCAT(HEX({code}), ':', HEX({taken}), ':', HEX(CONVERT({taken} USING utf8mb4))) "
        f"FROM {', '.join(f'n {name}' for name in names)} WHERE {within}" + (f" GROUP BY {lead}" if lead else "")
    )


def _check_in_columns(texts: dict[bytes, str], charset: str) -> None:
    """The codes as values of a column, and all in one value."""
    codes = list(texts)
    random.Random(SEED).shuffle(codes)
    assert _converted(codes, charset) == [texts[code] for code in codes], f"seed {SEED}"
    assert _converted([b"".join(codes)], charset) == ["".join(texts[code] for code in codes)], f"seed {SEED}"


def _converted(values: list[bytes], charset: str) -> list[str]:
    column = types.data_type("longtext", charset)
    convert = strings.converter_of(table_map.BLOB, 4, column.native, column.arrow)
    assert convert is not None
    sizes = np.array([len(value) for value in values], np.int32)
    at = (np.cumsum(sizes) - sizes).astype(np.int32)
    buffer = np.frombuffer(b"".join(values) + bytes(8), np.uint8)
    array, odd = convert(BinlogCells(buffer, at, sizes, np.full(len(values), cells.VALUE, np.uint8)))
    assert odd is None
    found: list[str] = array.to_pylist()
    return found


def _is_no_text(shown: bytes) -> bool:
    """What Unicode does not have is shown as a question mark; half of a surrogate pair, by MariaDB, as bytes."""
    try:
        return "?" in shown.decode()
    except UnicodeDecodeError:
        return True


def test_one_byte_character_sets_are_read_as_the_server_reads_them(mysql_server: Server) -> None:
    names = [name for name, longest in mysql_server.query(
        "SELECT character_set_name, maxlen FROM information_schema.character_sets") if longest == 1]  # fmt: skip
    for name in names:
        if name == "binary":
            continue
        asked = ", ".join(f"HEX(CONVERT(_{name} X'{byte:02X}' USING utf8mb4))" for byte in range(256))
        (shown,) = mysql_server.query(f"SELECT {asked}")
        lengths, utf8 = charsets.single_byte(name)
        for byte, text in enumerate(shown):
            ours = utf8[byte, : lengths[byte]].tobytes().hex().upper()
            assert ours == text or (text == "3F" and byte != 0x3F and not ours), (
                f"{name} {byte:02X}: {text}, not {ours}"
            )


def test_every_collation_of_the_servers_has_its_character_set(mysql_server: Server) -> None:
    table = "collations" if mysql_server.name == "MySQL" else "collation_character_set_applicability"
    found = mysql_server.query(
        f"SELECT id, character_set_name FROM information_schema.{table} "
        "WHERE id IS NOT NULL AND character_set_name IS NOT NULL"
    )
    wrong = [(i, name, charsets.of_collation(i)) for i, name in found if charsets.of_collation(i) != name]
    assert len(found) > 200
    assert not wrong


@pytest.mark.parametrize(("charset", "text"), [("latin1", "Zürich"), ("gbk", "中文"), ("utf8mb4", "Zürich")])
def test_a_column_that_arrow_cannot_count_is_refused(monkeypatch: pytest.MonkeyPatch, charset: str, text: str) -> None:
    sent = text.encode({"utf8mb4": "utf8"}.get(charset, charset))
    monkeypatch.setattr(strings, "_MOST", 2 * len(text.encode()))
    assert _converted([sent, sent[:0], sent], charset)[::2] == [text, text]
    monkeypatch.setattr(strings, "_MOST", 2 * len(text.encode()) - 1)
    with pytest.raises(DecodeError, match="larger than 2 GiB"):
        _converted([sent, sent], charset)
