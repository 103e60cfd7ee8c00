"""MySQL's binary JSON, value by value: read into nodes, and written as the text that the server prints.

Format: `sql-common/json_binary.h` of the server; how values print: `Json_wrapper::to_string`.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass

import orjson

from tidemill.decoders._shared.mysql.fields import Bytes
from tidemill.errors import DecodeError

_DEPTH = 100  # JSON_DOCUMENT_MAX_DEPTH of the server
_INLINE = {4: "<H", 5: "<h", 6: "<H"}
_INLINE_LARGE = {**_INLINE, 7: "<i", 8: "<I"}
_NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_DECIMAL_GROUPS = 9  # DECIMAL_BUFF_LENGTH
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_LITERALS = {0: "null", 1: "true", 2: "false"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """Its JSON text."""

    text: str


Node = dict[str, "Node"] | list["Node"] | Scalar


def parse(value: bytes) -> Node:
    if not value:  # what the server reads from a column that was never written
        return Scalar("null")
    return _Document(value).node(value[0], 1, 1)


class _Document:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = len(data)  # nodes; more than bytes means that offsets run in a circle

    def node(self, kind: int, at: int, depth: int) -> Node:
        self._left -= 1
        if depth > _DEPTH or self._left < 0:
            raise broken_error()
        if kind <= 3:
            return self._container(kind, at, depth)
        try:
            return self._scalar(kind, at)
        except (struct.error, IndexError, ValueError) as error:
            raise broken_error() from error

    def _container(self, kind: int, start: int, depth: int) -> Node:
        large = kind & 1
        width, form = (4, "<I") if large else (2, "<H")
        inline = _INLINE_LARGE if large else _INLINE
        data = self._data
        try:
            (count,) = struct.unpack_from(form, data, start)
            (size,) = struct.unpack_from(form, data, start + width)
            is_object = kind < 2
            keys_at = start + 2 * width
            values_at = keys_at + (width + 2) * count * is_object
            if start + size > len(data) or values_at + (1 + width) * count > start + size:
                raise broken_error()
            nodes: list[Node] = []
            for i in range(count):
                entry = values_at + (1 + width) * i
                child = data[entry]
                if child in inline:
                    nodes.append(self.node(child, entry + 1, depth + 1))
                else:
                    (offset,) = struct.unpack_from(form, data, entry + 1)
                    nodes.append(self.node(child, start + offset, depth + 1))
            if not is_object:
                return nodes
            members: dict[str, Node] = {}
            for i in range(count):
                (offset,) = struct.unpack_from(form, data, keys_at + (width + 2) * i)
                (length,) = struct.unpack_from("<H", data, keys_at + (width + 2) * i + width)
                name = data[start + offset : start + offset + length]
                if len(name) != length:
                    raise broken_error()
                members[name.decode()] = nodes[i]
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise broken_error() from error
        return members

    def _scalar(self, kind: int, at: int) -> Scalar:
        data = self._data
        if kind == 4:
            return Scalar(_LITERALS[data[at]] if data[at] in _LITERALS else _fail())
        if kind in _NUMBERS:
            return Scalar(str(struct.unpack_from(_NUMBERS[kind], data, at)[0]))
        if kind == 11:
            return Scalar(double_text(struct.unpack_from("<d", data, at)[0]))
        if kind == 12:
            length, at = self._length(at)
            return Scalar(quote(self._take(at, length).decode()))
        if kind == 15:
            length, begin = self._length(at + 1)
            return Scalar(_opaque(data[at], self._take(begin, length)))
        raise broken_error()

    def _take(self, at: int, length: int) -> bytes:
        if at + length > len(self._data):
            raise broken_error()
        return self._data[at : at + length]

    def _length(self, at: int) -> tuple[int, int]:
        """Seven bits a byte, lowest first."""
        value = 0
        for i in range(5):
            byte = self._data[at + i]
            value |= (byte & 0x7F) << (7 * i)
            if not byte & 0x80:
                return value, at + i + 1
        raise broken_error()


def broken_error() -> DecodeError:
    return DecodeError("a JSON value does not follow its format")


def _fail() -> str:
    raise broken_error()


def quote(value: str) -> str:
    """As the server does: only what must be escaped is."""
    return orjson.dumps(value).decode()


def double_text(value: float) -> str:
    """The shortest digits that read back, without an exponent while the point is within 15 places or stands among
    them (`my_gcvt`)."""
    sign, digits, exponent = _digits(value)
    point = len(digits) + exponent  # where the point stands, counted from the first digit
    if -14 <= point <= 15 or 0 < point < len(digits):
        if point <= 0:
            body = "0." + "0" * -point + digits
        elif point >= len(digits):
            body = digits + "0" * (point - len(digits)) + ".0"
        else:
            body = digits[:point] + "." + digits[point:]
    else:
        body = digits[0] + ("." + digits[1:] if len(digits) > 1 else "") + f"e{point - 1}"
    return sign + body


def _digits(value: float) -> tuple[str, str, int]:
    mantissa, _, exponent = repr(value).partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    if not (whole + fraction).isdigit():  # JSON has no NaN and no infinity
        raise broken_error()
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) - len(fraction)
    stripped = digits.rstrip("0")
    return sign, stripped or "0", power + len(digits) - len(stripped) if stripped else 0


def _opaque(kind: int, value: bytes) -> str:
    match kind:
        case 246:
            return _decimal(value)
        case 7 | 10 | 11 | 12 if len(value) == 8:
            return f'"{_temporal(kind, struct.unpack("<q", value)[0])}"'
        case _:
            encoded = base64.b64encode(value).decode()
            lines = [encoded[i : i + 76] for i in range(0, len(encoded), 76)]  # the server's encoder breaks lines
            return f'"base64:type{kind}:' + "\\n".join(lines) + '"'


def _decimal(value: bytes) -> str:
    """Precision, scale and the number as a column has it (`decimal2bin`). Its precision is no column's: it may count
    whole groups of nine digits where there are fewer, up to what the server's buffer holds."""
    precision, scale, packed = value[0], value[1], value[2:]
    whole = precision - scale
    sizes = [n for n in (whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9) if n]
    if whole < 0 or not sizes or len(sizes) > _DECIMAL_GROUPS or len(packed) != sum(_DIGIT_BYTES[n] for n in sizes):
        raise broken_error()
    negative = not packed[0] & 0x80
    data = Bytes(bytes([packed[0] ^ 0x80]) + packed[1:], "a decimal of a JSON value")
    digits = ""
    for size in sizes:
        raw = data.take(_DIGIT_BYTES[size])
        group = int.from_bytes(bytes(byte ^ 0xFF for byte in raw) if negative else raw, "big")
        if group >= 10**size:
            raise broken_error()
        digits += f"{group:0{size}d}"
    text = (digits[:whole].lstrip("0") or "0") + ("." + digits[whole:] if scale else "")
    return "-" + text if negative and digits.strip("0") else text


def _temporal(kind: int, packed: int) -> str:
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    micros, upper = packed & 0xFFFFFF, packed >> 24
    clock = f"{upper >> 6 & 63:02d}:{upper & 63:02d}.{micros:06d}"
    if kind == 11:
        return f"{sign}{upper >> 12 & 1023:02d}:{clock}"
    month = upper >> 22
    date = f"{month // 13:04d}-{month % 13:02d}-{upper >> 17 & 31:02d}"
    return date if kind == 10 else f"{date} {upper >> 12 & 31:02d}:{clock}"


def render(node: Node) -> str:
    match node:
        case Scalar():
            return node.text
        case list():
            return "[" + ", ".join(map(render, node)) + "]"
        case _:
            return "{" + ", ".join(f"{quote(name)}: {render(child)}" for name, child in node.items()) + "}"
