"""Numbers and times that a kernel takes in one step, beside Python's own reading of the same text."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from tests.support.seed import run_seed
from tidemill.decoders.pgoutput.cells import TEXT
from tidemill.decoders.pgoutput.columns import PgOutputCells, convert
from tidemill.model.types import DataType, JsonForm

INT = DataType("bigint", pa.int64(), JsonForm.NUMBER)


def cells(texts: list[str]) -> PgOutputCells:
    """Without a byte after the last value: what reads eight at a time must not go beyond the buffer."""
    data = [text.encode() for text in texts]
    size = np.array([len(text) for text in data], np.int64)
    at = np.concatenate([[0], np.cumsum(size)[:-1]])
    return PgOutputCells(np.frombuffer(b"".join(data), np.uint8), at, size, np.full(len(texts), TEXT, np.uint8))


def test_numbers_of_every_length_and_both_signs_are_read() -> None:
    chance = random.Random(run_seed())
    numbers = [
        sign * chance.randrange(10 ** (n - 1), 10**n) for n in range(1, 20) for sign in (1, -1) for _ in range(5)
    ]
    numbers = [n for n in numbers if -(2**63) <= n < 2**63] + [0, -(2**63), 2**63 - 1, 99_999_999, -10_000_000]
    found, bad = convert(cells([str(number) for number in numbers]), INT)
    assert found.to_pylist() == numbers
    assert bad is None


@pytest.mark.parametrize(
    "text", ["", "-", "1a", "a1", "1:", "/1", "12 45", "--1", "1-", "+1", "1234567٣", "\x001", "9" * 19]
)
def test_what_is_no_number_is_kept_as_text(text: str) -> None:
    found, bad = convert(cells(["7", text, "12345678"]), INT)
    assert bad is not None
    assert bad.tolist() == [False, True, False]
    assert found.to_pylist() == [7, None, 12345678]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_with_and_without_a_fraction_before_and_after_1970_are_read(zone: str | None) -> None:
    chance = random.Random(run_seed())
    kind = DataType("timestamp", pa.timestamp("us", zone), JsonForm.STRING)
    moments = [
        datetime(1, 1, 1, tzinfo=UTC) + timedelta(days=chance.randrange(3_652_058), seconds=chance.randrange(86_400))
        + timedelta(microseconds=chance.choice([0, 1, 120_000, 999_999, chance.randrange(10**6)]))
        for _ in range(500)
    ] + [datetime(1970, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)]  # fmt: skip

    def text(moment: datetime) -> str:
        fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
        return f"{moment:%H:%M:%S}{fraction}{'+00' if zone else ''}"

    texts = [f"{m.year:04d}-{m.month:02d}-{m.day:02d} {text(m)}" for m in moments]
    found, bad = convert(cells(texts), kind)
    assert bad is None
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert found.cast(pa.int64()).to_pylist() == [(moment - epoch) // timedelta(microseconds=1) for moment in moments]
    for wrong in (
        "2024-13-01 00:00:00",
        "2024-01-01 00:60:00",
        "2024-01-01 00:00:0x",
        "2024-01-01 00:00:00.",
        "20240-1-1 0",
    ):
        _, bad = convert(cells([wrong + ("+00" if zone else "")]), kind)
        assert bad is not None, wrong
