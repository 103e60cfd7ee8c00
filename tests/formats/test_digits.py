"""Digits are written eight at a time: every length, and every place where one word ends and the next begins."""

from __future__ import annotations

import datetime
import json

import numpy as np

from tests.support.seed import dice
from tidemill.encoding.numbers import digits, put_date, put_fixed, put_timestamp, put_unsigned
from tidemill.encoding.strings import copy, put_string

_DAY = datetime.date(1970, 1, 1)


class _Page:
    """Where kernels write, and the text up to the address that they answer."""

    def __init__(self, size: int) -> None:
        self.bytes = np.full(size, 0x5A, np.uint8)

    @property
    def address(self) -> int:
        return int(self.bytes.ctypes.data)

    def text(self, end: int) -> str:
        return self.bytes[: end - self.address].tobytes().decode()


def _numbers() -> list[int]:
    chance = dice("digits")
    edges = [10**power + step for power in range(20) for step in (-1, 0, 1)]
    some = [chance.getrandbits(64) >> chance.randrange(64) for _ in range(20_000)]
    return [number for number in edges if number >= 0] + [2**63, 2**64 - 1] + some


def test_numbers_of_every_length_are_written_as_python_writes_them() -> None:
    page = _Page(64)
    for number in _numbers():
        expected = str(number)
        assert digits(np.uint64(number)) == len(expected)
        assert page.text(put_unsigned(page.address, np.uint64(number))) == expected
        for width in {len(expected), min(20, len(expected) + 3), min(20, len(expected) + 9)}:
            assert page.text(put_fixed(page.address, np.uint64(number), width)) == expected.zfill(width)


def test_no_digit_is_written_where_none_is_asked_for() -> None:
    page = _Page(64)
    assert put_fixed(page.address, np.uint64(0), 0) == page.address
    assert (page.bytes == 0x5A).all()


def test_days_and_times_are_those_of_the_calendar() -> None:
    page = _Page(64)
    for day in range(-719_162, 2_932_897, 173):
        date = _DAY + datetime.timedelta(day)
        assert page.text(put_date(page.address, np.int64(day))) == date.isoformat()
        micros = day * 86_400_000_000 + (day * 7_777_777_777) % 86_400_000_000
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=micros)
        expected = moment.isoformat(timespec="microseconds") + "Z"
        assert page.text(put_timestamp(page.address, np.int64(micros), True)) == expected


def test_the_end_of_a_string_is_read_with_the_bytes_before_it_and_none_after_it() -> None:
    page, signs = _Page(1024), 'abc xyz0"\\\n\tż'
    for size in range(40):
        for place in range(size + 1):
            plain = "".join("abcdefgh"[n % 8] for n in range(size))
            text = plain[:place] + signs[place % len(signs)] + plain[place:]
            for data in (plain, text):
                # Behind it stands what would need care, and what would be copied.
                source = np.frombuffer(data.encode() + b'"\\\x01~', np.uint8)
                length = len(data.encode())
                end = put_string(page.address, source.ctypes.data, length)
                assert json.loads(page.text(end)) == data
                assert page.text(end) == json.dumps(data, ensure_ascii=False)
                assert page.text(copy(page.address, source.ctypes.data, length)) == data
