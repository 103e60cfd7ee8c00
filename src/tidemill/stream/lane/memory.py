"""Memory that a worker held for its largest batch and needs no more, back to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import pyarrow as pa


def release_memory() -> None:
    """Arrow's and the C library's free memory. It takes milliseconds: for who is at rest."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # only glibc has it (malloc_trim(3))
        ctypes.CDLL(None).malloc_trim(0)
