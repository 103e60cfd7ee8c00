"""A hash of each row's key: what keeps the changes of one key together, in a lane or with one courier of a sink."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidemill.model.block import Block, Op


def key_hashes(
    block: Block, key: tuple[str, ...], sides: tuple[str, ...] = ("after", "key", "before")
) -> np.ndarray | None:
    """A uint64 per row from its key's values: the new ones, or the old ones where the row is gone. `sides` is where
    they are looked for, in this order.

    The same for the same values in any block, process or run. None if there is no key, or one of a kind that
    cannot be hashed.
    """
    images = [image for image in (block.struct(side) for side in sides) if image is not None]
    hashes = np.zeros(block.rows, np.uint64)
    for name in key:
        found = [image[name] for image in images if name in image]
        if not found:
            return None
        column = found[0] if len(found) == 1 else pc.coalesce(*found)
        if not _mix(column, hashes):
            return None
    return hashes if key else None


def changes_a_key(block: Block) -> bool:
    """Whether an update of the block moves its row to another key. Decoders make a delete and an insert of such an
    update, unless it lacks columns that the source did not send: then it comes in one piece, and belongs to two keys.

    False for a key that cannot be hashed: nobody tells its rows apart by key.
    """
    if block.column("after") is None or not block.table.key:
        return False
    updates = block.batch.column("op").to_numpy() == Op.UPDATE
    for side in ("key", "before"):
        if (image := block.column(side)) is not None and updates.any():
            both = updates & image.is_valid().to_numpy(zero_copy_only=False)
            if both.any():
                rows = block.take(np.flatnonzero(both))
                old, new = (key_hashes(rows, block.table.key, (at,)) for at in (side, "after"))
                if old is not None and new is not None and (old != new).any():
                    return True
    return False


def warm_up() -> None:
    """Loads the kernels from their cache (or compiles them, once per machine)."""
    hashes = np.zeros(1, np.uint64)
    for value in ("x", 1):
        _mix(pa.array([value]), hashes)


def _mix(column: pa.Array, hashes: np.ndarray) -> bool:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    valid = _valid(column)
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        _mix_numbers(_numbers(column.cast(pa.int64(), safe=False)), valid, hashes)
    elif pa.types.is_floating(kind):
        # + 0.0: minus zero equals zero.
        bits = (_numbers(column.cast(pa.float64())) + 0.0).view(np.int64)
        _mix_numbers(bits, valid, hashes)
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        _mix_numbers(_numbers(column.view(_INTEGER[kind.bit_width]).cast(pa.int64())), valid, hashes)
    else:
        strings = _as_binary(column)
        if strings is None:
            return False
        _, offsets, data = strings.buffers()
        starts = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
        content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        _mix_bytes(starts, content, valid, hashes)
    return True


_INTEGER = {32: pa.int32(), 64: pa.int64()}


def _as_binary(column: pa.Array) -> pa.LargeBinaryArray | None:
    try:
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.string())
        return column.cast(pa.large_binary())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return None


def _numbers(column: pa.Array) -> np.ndarray:
    return column.fill_null(0).to_numpy() if column.null_count else column.to_numpy()


def _valid(column: pa.Array) -> np.ndarray:
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    return column.is_valid().to_numpy(zero_copy_only=False)


@njit(cache=True, nogil=True)
def _mix_numbers(values, valid, hashes):  # type: ignore[no-untyped-def]
    for row in range(len(hashes)):
        word = np.uint64(values[row]) if valid[row] else np.uint64(0x9E3779B97F4A7C15)
        hashes[row] = _scramble(hashes[row] ^ word)


@njit(cache=True, nogil=True)
def _mix_bytes(starts, content, valid, hashes):  # type: ignore[no-untyped-def]
    for row in range(len(hashes)):
        word = np.uint64(0xCBF29CE484222325)  # FNV-1a
        if valid[row]:
            for at in range(starts[row], starts[row + 1]):
                word = (word ^ np.uint64(content[at])) * np.uint64(0x100000001B3)
        hashes[row] = _scramble(hashes[row] ^ word)


@njit(cache=True, nogil=True)
def _scramble(word):  # type: ignore[no-untyped-def]
    """The finalizer of SplitMix64: low bits, which choose the lane, depend on all others."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
