"""Character sets of MySQL and MariaDB, to UTF-8 exactly as the servers convert them.

Python's codecs do it where they agree with the server; where they differ, or there is none, the difference stands here.
`tests/decoders/_shared/mysql/test_charsets.py` asks the servers about every byte and every code. What a character set
has no character for stays bytes (an odd value, in hexadecimal).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8"})

#: Collation ids (information_schema.COLLATIONS) to character sets, as ranges.
_COLLATIONS: dict[str, tuple[tuple[int, int], ...]] = {
    "utf8mb4": ((45, 46), (224, 247), (255, 323), (608, 610)),
    "utf8mb3": ((33, 33), (76, 76), (83, 83), (192, 223), (576, 578)),
    "binary": ((63, 63),),
    "latin1": ((5, 5), (8, 8), (15, 15), (31, 31), (47, 49), (94, 94)),
    "ascii": ((11, 11), (65, 65)),
    "armscii8": ((32, 32), (64, 64)),
    "big5": ((1, 1), (84, 84)),
    "cp1250": ((26, 26), (34, 34), (44, 44), (66, 66), (99, 99)),
    "cp1251": ((14, 14), (23, 23), (50, 52)),
    "cp1256": ((57, 57), (67, 67)),
    "cp1257": ((29, 29), (58, 59)),
    "cp850": ((4, 4), (80, 80)),
    "cp852": ((40, 40), (81, 81)),
    "cp866": ((36, 36), (68, 68)),
    "cp932": ((95, 96),),
    "dec8": ((3, 3), (69, 69)),
    "eucjpms": ((97, 98),),
    "euckr": ((19, 19), (85, 85)),
    "gb18030": ((248, 250),),
    "gb2312": ((24, 24), (86, 86)),
    "gbk": ((28, 28), (87, 87)),
    "geostd8": ((92, 93),),
    "greek": ((25, 25), (70, 70)),
    "hebrew": ((16, 16), (71, 71)),
    "hp8": ((6, 6), (72, 72)),
    "keybcs2": ((37, 37), (73, 73)),
    "koi8r": ((7, 7), (74, 74)),
    "koi8u": ((22, 22), (75, 75)),
    "latin2": ((2, 2), (9, 9), (21, 21), (27, 27), (77, 77)),
    "latin5": ((30, 30), (78, 78)),
    "latin7": ((20, 20), (41, 42), (79, 79)),
    "macce": ((38, 38), (43, 43)),
    "macroman": ((39, 39), (53, 53)),
    "sjis": ((13, 13), (88, 88)),
    "swe7": ((10, 10), (82, 82)),
    "tis620": ((18, 18), (89, 89)),
    "ucs2": ((35, 35), (90, 90), (128, 159), (640, 642)),
    "ujis": ((12, 12), (91, 91)),
    "utf16": ((54, 55), (101, 124), (672, 674)),
    "utf16le": ((56, 56), (62, 62)),
    "utf32": ((60, 61), (160, 183), (736, 738)),
}
_BY_ID = {i: name for name, ranges in _COLLATIONS.items() for first, last in ranges for i in range(first, last + 1)}
#: MariaDB: NO PAD collations are 1024 above their twins, and each character set has 256 ids of the UCA 14.0.0 family.
_UCA1400 = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")
_NO_PAD, _UCA1400_FIRST = 1024, 2048

_PYTHON = {
    "latin1": "cp1252", "latin2": "iso8859_2", "latin5": "iso8859_9", "latin7": "iso8859_13", "greek": "iso8859_7",
    "hebrew": "iso8859_8", "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257",
    "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "koi8r": "koi8_r", "koi8u": "koi8_u", "macce": "mac_latin2",
    "macroman": "mac_roman", "hp8": "hp_roman8", "tis620": "tis_620", "ascii": "ascii", "dec8": "latin1",
    "swe7": "ascii", "gbk": "gbk", "gb2312": "gb2312", "gb18030": "gb18030", "big5": "big5", "sjis": "shift_jis",
    "cp932": "cp932", "euckr": "cp949", "ujis": "euc_jp", "eucjpms": "euc_jp", "ucs2": "utf_16_be",
    "utf16": "utf_16_be", "utf16le": "utf_16_le", "utf32": "utf_32_be",
}  # fmt: skip
_NOTHING = "\ufffd"
#: Bytes of one-byte sets that the server reads in another way than Python's codec.
_OTHERWISE: dict[str, dict[int, str]] = {
    "latin1": {0x81: "\x81", 0x8D: "\x8d", 0x8F: "\x8f", 0x90: "\x90", 0x9D: "\x9d"},
    "greek": {0xA1: "\u02bd", 0xA2: "\u02bc", **dict.fromkeys((0xA4, 0xA5, 0xAA), _NOTHING)},
    "hebrew": {0xAF: "\u203e"},
    "cp1256": dict.fromkeys((0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF), _NOTHING),
    "cp866": {0xFC: "\u207f", 0xFD: "\xb2"},
    "koi8u": {0x95: "\u2022"},
    "dec8": {0xA8: "\xa4", 0xD7: "\u0152", 0xDD: "\u0178", 0xF7: "\u0153", 0xFD: "\xff", **dict.fromkeys(
        (0xA4, 0xA6, 0xAC, 0xAD, 0xAE, 0xAF, 0xB4, 0xB8, 0xBE, 0xD0, 0xDE, 0xF0, 0xFE, 0xFF), _NOTHING)},
    "swe7": {0x40: "\xc9", 0x5B: "\xc4", 0x5C: "\xd6", 0x5D: "\xc5", 0x5E: "\xdc", 0x60: "\xe9", 0x7B: "\xe4",
             0x7C: "\xf6", 0x7D: "\xe5", 0x7E: "\xfc", 0x7F: _NOTHING},
}  # fmt: skip
#: Characters that the server makes of some codes, by what Python's codec makes of them and of no other code.
_REPLACED: dict[str, dict[int, str]] = {
    "sjis": {0xFF3C: "\\"},
    "ujis": {0xFF3C: "\\"},
    "eucjpms": {0x301C: "\uff5e", 0x2016: "\u2225", 0x2212: "\uff0d", 0xA2: "\uffe0", 0xA3: "\uffe1", 0xA6: "\uffe4",
                0xAC: "\uffe2"},
    "gb18030": {0xE7C7: "\u1e3f", 0x1E3F: "\ue7c7"},
}  # fmt: skip
#: Codes that the server reads in another way than Python's codec, which gives their character to another code, too.
_OTHER_CODES: dict[str, dict[bytes, str]] = {
    "big5": dict.fromkeys(
        (b"\xa1\x5a", b"\xa1\xc3", b"\xa1\xc5", b"\xa1\xfe", b"\xa2\x40", b"\xa2\xcc", b"\xa2\xce"), _NOTHING
    ),
    "eucjpms": {b"\x8f\xa2\xb7": "\uff5e"},
}
#: IBM's characters of eucjpms, from 8FF3F3 on.
_IBM = (
    "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤﨎咊坙﨏塚增寬峵嵓﨑德悅愠敎昻晥晴朗栁﨓﨔橫"
    "櫢淸淲瀨凞猪甁皂皞益礰礼神祥福竧靖精綠緖羽荢﨟薰蘒﨡蠇諸譿賴赶﨣﨤逸郞都鄕﨧﨨閒隆﨩霻靍靑飯飼館馞髙魲鶴黑"
)
#: Upper halves of sets that Python has no codec for.
_UPPER = {
    "armscii8": (
        "\u0080\u0081\u0082\u0083\u0084\u0085\u0086\u0087\u0088\u0089\u008a\u008b\u008c\u008d\u008e\u008f\u0090\u0091\u0092\u0093\u0094\u0095\u0096\u0097\u0098\u0099\u009a\u009b\u009c\u009d\u009e\u009f"
        "\u00a0❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէ"
        "ԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշ"
        "ՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ\u2019'"
    ),
    "geostd8": (
        "€�‚�„…†‡�‰�‹�����\u2018\u2019“”•–—���›����"
        "\u00a0¡¢£¤¥¦§¨©ª«¬\u00ad®¯°±²³´µ¶·¸¹º»¼½¾¿"
        "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწ"
        "ჭხჴჯჰჵ�����������������������№��"
    ),
    "keybcs2": (
        "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘť"
        "áíóúňŇŮÔšřŕŔ¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐"
        "└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀"
        "αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u00a0"
    ),
}


def of_collation(number: int) -> str | None:
    """None for an id that no known server has."""
    if number >= _UCA1400_FIRST:
        family = (number - _UCA1400_FIRST) // 256
        return _UCA1400[family] if family < len(_UCA1400) else None
    return _BY_ID.get(number) or _BY_ID.get(number - _NO_PAD)


def known(charset: str) -> bool:
    return charset in UTF8 or charset == "binary" or charset in _PYTHON or charset in _UPPER


def longest(charset: str) -> int:
    """Bytes that a character may take: what CHAR(n) and VARCHAR(n) are multiplied by."""
    return _LONGEST.get(charset, 1)


_LONGEST = {
    "utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "big5": 2, "cp932": 2, "eucjpms": 3, "euckr": 2, "gb18030": 4, "gb2312": 2,
    "gbk": 2, "sjis": 2, "ucs2": 2, "ujis": 3, "utf16": 4, "utf16le": 4, "utf32": 4,
}  # fmt: skip


def is_single_byte(charset: str) -> bool:
    return longest(charset) == 1


@cache
def single_byte(charset: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """For each byte the length and the bytes of its UTF-8; length 0 for a byte that is no character."""
    lengths, utf8 = np.zeros(256, np.uint8), np.zeros((256, 3), np.uint8)
    for byte in range(256):
        text = _character(charset, byte)
        if text != _NOTHING or charset == "tis620":  # whose unused bytes the server itself calls U+FFFD
            encoded = text.encode()
            lengths[byte] = len(encoded)
            utf8[byte, : len(encoded)] = list(encoded)
    return lengths, utf8


def _character(charset: str, byte: int) -> str:
    if charset in _UPPER:
        return chr(byte) if byte < 128 else _UPPER[charset][byte - 128]
    other = _OTHERWISE.get(charset, {}).get(byte)
    return other or bytes([byte]).decode(_PYTHON[charset], "replace")


def decode(data: bytes, charset: str) -> str:
    """`UnicodeDecodeError` for bytes that are no text in the character set."""
    if charset in UTF8:
        return data.decode()
    if is_single_byte(charset):
        lengths, utf8 = single_byte(charset)
        if any(not lengths[byte] for byte in data):
            raise UnicodeDecodeError(charset, data, 0, len(data), "no such character")
        return b"".join(utf8[byte, : lengths[byte]].tobytes() for byte in data).decode()
    others = _OTHER_CODES.get(charset)
    if others and any(code in data for code in others):  # or bytes that only look so, of two codes
        return "".join(others.get(part) or _decode(part, charset) for part in _around(charset).findall(data))
    return _decode(data, charset)


def _decode(data: bytes, charset: str) -> str:
    text = codecs.decode(data, _PYTHON[charset], f"tidemill.{charset}" if charset in _MORE_CODES else "strict")
    replaced = _REPLACED.get(charset, {})
    return text.translate(replaced) if any(chr(code) in text for code in replaced) else text


@cache
def _around(charset: str) -> re.Pattern[bytes]:
    """The codes that are read otherwise, and what stands between them."""
    codes = b"|".join(map(re.escape, _OTHER_CODES[charset]))
    return re.compile(rb"%b|(?:(?!%b)(?:\x8f[\xa1-\xfe]{2}|[\x80-\xff].?|[\x00-\x7f]))+" % (codes, codes), re.DOTALL)


def encode_ascii(text: str, charset: str) -> bytes:
    """An ASCII text in a character set of several bytes a character."""
    return text.encode(_PYTHON[charset])


def _private(lead: bytes, first: int) -> dict[bytes, str]:
    """The rows of the EUC sets that are for private use."""
    rows, cells = range(0xF5, 0xFF), range(0xA1, 0xFF)
    return {lead + bytes((r, c)): chr(first + (r - 0xF5) * 94 + c - 0xA1) for r in rows for c in cells}


def _nec() -> dict[bytes, str]:
    """Row 13 of eucjpms, which Python knows from cp932."""
    found = {i: bytes((0x87, 0x40 + i + (i > 62))).decode("cp932", "replace") for i in range(94)}
    return {bytes((0xAD, 0xA1 + i)): text for i, text in found.items() if _NOTHING not in text}


_PRIVATE = {**_private(b"", 0xE000), **_private(b"\x8f", 0xE3AC)}
#: Codes that the server reads and Python's codec does not.
_MORE_CODES: dict[str, dict[bytes, str]] = {
    "big5": {bytes((0xF9, 0xD6 + i)): text for i, text in enumerate("碁銹裏墻恒粧嫺")},
    "ujis": _PRIVATE,
    "eucjpms": {**_PRIVATE, **_nec(), **{
        bytes((0x8F, 0xF3 + (0x52 + i) // 94, 0xA1 + (0x52 + i) % 94)): text for i, text in enumerate(_IBM)}},
}  # fmt: skip


def _make_handler(codes: dict[bytes, str]) -> Callable[[UnicodeError], tuple[str, int]]:
    def fill(error: UnicodeError) -> tuple[str, int]:
        if isinstance(error, UnicodeDecodeError):
            for end in (error.start + 2, error.start + 3):
                text = codes.get(error.object[error.start : end])
                if text is not None:
                    return text, end
        raise error

    return fill


for _name, _codes in _MORE_CODES.items():
    codecs.register_error(f"tidemill.{_name}", _make_handler(_codes))
