"""Reads rows of a statement into cells through SQLite's C interface, called from a compiled kernel: no Python object
per value, twice as fast as `sqlite3` makes tuples.

The library is the one that Python's own `sqlite3` is linked to: two copies of SQLite in one process would lose each
other's file locks (https://sqlite.org/howtocorrupt.html, 2.2.1). Where its functions cannot be reached, because they
are built into Python itself, `sqlite3` fills the same cells.
"""

from __future__ import annotations

import ctypes
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types

from tidemill.decoders.sqlite import SqliteCells, TextBytes, cells_of
from tidemill.sources.sqlite.errors import from_sqlite, translate

_ROW, _DONE = 100, 101
_FULL = -1
_OPEN_READONLY = 1
_MOST_CELLS = 4_000_000  # of 13 bytes each, before texts and blobs
_PREFIX = "tidemill_"

_FUNCTIONS = {
    "sqlite3_step": types.int32(types.intp),
    "sqlite3_column_type": types.int32(types.intp, types.int32),
    "sqlite3_column_int64": types.int64(types.intp, types.int32),
    "sqlite3_column_double": types.float64(types.intp, types.int32),
    "sqlite3_column_bytes": types.int32(types.intp, types.int32),
    "sqlite3_column_blob": types.intp(types.intp, types.int32),
    "sqlite3_column_text": types.intp(types.intp, types.int32),
}
_step, _type, _int64, _double, _bytes, _blob, _text = (
    types.ExternalFunction(_PREFIX + name, signature) for name, signature in _FUNCTIONS.items()
)
_memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))


def load_library() -> ctypes.CDLL | None:
    """The C interface, also made known to kernels; None where it cannot be reached."""
    import _sqlite3

    try:
        library = ctypes.CDLL(_sqlite3.__file__)
        found = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _FUNCTIONS}
        library.sqlite3_libversion.restype = ctypes.c_char_p
        if library.sqlite3_libversion().decode() != sqlite3.sqlite_version:
            return None
    except (AttributeError, OSError):
        return None
    import llvmlite.binding as llvm

    for name, address in found.items():
        llvm.add_symbol(_PREFIX + name, address)
    library.sqlite3_errmsg.restype = ctypes.c_char_p
    return library


class CellBuffer:
    """Room for rows that are read at once, fewer of a wide table; used again for the next ones. `limit_bytes` of texts
    and blobs end a read, but one value may be larger."""

    def __init__(self, rows: int, limit_bytes: int) -> None:
        self.rows, self.limit = rows, limit_bytes
        self._cells = _allocate(0, rows, 1 << 20)
        self.state = np.zeros(3, np.int64)  # rows, bytes, and whether a row was stepped to that did not fit

    def widen(self, columns: int) -> SqliteCells:
        if self._cells.columns < columns:
            rows = max(1, min(self.rows, _MOST_CELLS // columns))
            self._cells = _allocate(columns, rows, len(self._cells.heap))
        return self._cells

    def grow(self, needed: int) -> SqliteCells:
        heap = np.empty(max(2 * len(self._cells.heap), needed), np.uint8)
        used = int(self.state[1])
        heap[:used] = self._cells.heap[:used]
        self._cells = SqliteCells(self._cells.kind, self._cells.number, self._cells.size, heap)
        return self._cells


def _allocate(columns: int, rows: int, size: int) -> SqliteCells:
    shape = (columns, rows)
    return SqliteCells(
        np.empty(shape, np.uint8), np.empty(shape, np.int64), np.empty(shape, np.int32), np.empty(size, np.uint8)
    )


class CellReader:
    """One read-only connection, one statement at a time. Between two reads it holds no lock."""

    def __init__(self, path: str, busy_ms: int, where: str, *, rows: int, limit_bytes: int = 32 << 20) -> None:
        self._where = where
        self._buffer = CellBuffer(rows, limit_bytes)
        self._path, self._busy_ms = path, busy_ms
        self._library = load_library()
        self._fetch: Callable[[str, tuple[int, int], int], SqliteCells] = self._read_with_python
        self._db = self._statement = ctypes.c_void_p()
        self._sql = ""
        self._plain: sqlite3.Connection | None = None
        if self._library is not None:
            self._open(self._library)
            self._fetch = self._read

    @property
    def compiled(self) -> bool:
        return self._library is not None

    def read(self, sql: str, bounds: tuple[int, int], columns: int) -> SqliteCells:
        """The first rows of the statement, which has two parameters. Cells hold until the next call."""
        return self._fetch(sql, bounds, columns)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All reads inside see the same state of the file."""
        self._run("BEGIN")
        try:
            yield
        finally:
            self._run("COMMIT")

    def _run(self, sql: str) -> None:
        if self._library is None:
            with translate(self._where):
                self._python().execute(sql)
        elif self._library.sqlite3_exec(self._db, sql.encode(), None, None, None):
            raise self._error(self._library)

    def _open(self, library: ctypes.CDLL) -> None:
        self._db = ctypes.c_void_p()
        code = library.sqlite3_open_v2(self._path.encode(), ctypes.byref(self._db), _OPEN_READONLY, None)
        if code:
            raise self._error(library)
        library.sqlite3_busy_timeout(self._db, self._busy_ms)

    def _read(self, sql: str, bounds: tuple[int, int], columns: int) -> SqliteCells:
        library = self._library
        assert library is not None
        self._prepare(library, sql)
        for i, value in enumerate(bounds):
            library.sqlite3_bind_int64(self._statement, i + 1, ctypes.c_int64(value))
        try:
            return self._fill(library, columns)[0]
        finally:
            library.sqlite3_reset(self._statement)

    def scan(self, sql: str, columns: int) -> Iterator[tuple[int, SqliteCells]]:
        """All rows of a statement without parameters, some at a time, each time with the number of the first. Inside
        `transaction`; cells hold until the next."""
        first = 0
        if self._library is None:
            with translate(self._where):
                cursor = self._python().execute(sql)
                while rows := cursor.fetchmany(self._buffer.rows):
                    yield first, cells_of(rows, columns)
                    first += len(rows)
            return
        self._prepare(self._library, sql)
        try:
            code = _ROW
            while code == _ROW:
                cells, code = self._fill(self._library, columns)
                if cells.rows:
                    yield first, cells
                first += cells.rows
        finally:
            self._library.sqlite3_reset(self._statement)

    def _prepare(self, library: ctypes.CDLL, sql: str) -> None:
        if sql != self._sql:
            self._finalize(library)
            text = sql.encode()
            if library.sqlite3_prepare_v2(self._db, text, len(text), ctypes.byref(self._statement), None):
                raise self._error(library)
            self._sql = sql

    def _fill(self, library: ctypes.CDLL, columns: int) -> tuple[SqliteCells, int]:
        """The next rows of the statement, and whether there may be more."""
        buffer = self._buffer
        cells = buffer.widen(columns)
        buffer.state[:] = 0
        while True:
            code, needed = _fetch_rows(
                self._statement.value, columns, cells.kind, cells.number, cells.size, cells.heap, buffer.limit,
                buffer.state,
            )  # fmt: skip
            if code != _FULL:
                break
            cells = buffer.grow(int(needed))
        if code not in (_ROW, _DONE):
            raise self._error(library)
        count = int(buffer.state[0])
        found = SqliteCells(
            cells.kind[:columns, :count], cells.number[:columns, :count], cells.size[:columns, :count], cells.heap
        )
        return found, code

    def _read_with_python(self, sql: str, bounds: tuple[int, int], columns: int) -> SqliteCells:
        rows: list[tuple[Any, ...]] = []
        size = 0
        with translate(self._where):
            cursor = self._python().execute(sql, bounds)
            for row in cursor:
                rows.append(row)
                size += sum(len(value) for value in row if isinstance(value, bytes))
                if len(rows) == self._buffer.rows or size > self._buffer.limit:
                    break
            cursor.close()
        return cells_of(rows, columns)

    def _python(self) -> sqlite3.Connection:
        if self._plain is None:
            self._plain = sqlite3.connect(
                f"{Path(self._path).as_uri()}?mode=ro", uri=True, timeout=self._busy_ms / 1000, isolation_level=None
            )
            self._plain.text_factory = TextBytes
        return self._plain

    def _error(self, library: ctypes.CDLL) -> Exception:
        message = library.sqlite3_errmsg(self._db).decode(errors="replace")
        error = sqlite3.OperationalError(message)
        error.sqlite_errorcode = library.sqlite3_extended_errcode(self._db)
        return from_sqlite(error, self._where)

    def _finalize(self, library: ctypes.CDLL) -> None:
        library.sqlite3_finalize(self._statement)
        self._statement = ctypes.c_void_p()
        self._sql = ""

    def close(self) -> None:
        if self._library is not None and self._db.value:
            self._finalize(self._library)
            self._library.sqlite3_close(self._db)
            self._db = ctypes.c_void_p()
        if self._plain is not None:
            self._plain.close()
            self._plain = None


@njit(cache=True, nogil=True)
def _fetch_rows(
    statement: Any, columns: Any, kind: Any, number: Any, size: Any, heap: Any, limit: Any, state: Any
) -> Any:
    """(result code, bytes that are needed if it is FULL). A row that does not fit is stepped to and not taken: the next
    call takes it."""
    row, used = state[0], state[1]
    reals = number.view(np.float64)
    base = heap.ctypes.data
    code = _ROW
    while row < kind.shape[1] and used <= limit:
        if state[2] == 0:
            code = _step(statement)
            if code != _ROW:
                break
        at = used
        for j in range(columns):
            storage = _type(statement, j)
            kind[j, row] = storage
            if storage == 1:
                number[j, row] = _int64(statement, j)
            elif storage == 2:
                reals[j, row] = _double(statement, j)
            elif storage == 3 or storage == 4:
                source = _text(statement, j) if storage == 3 else _blob(statement, j)
                length = _bytes(statement, j)
                if at + length <= len(heap) and length:
                    _memcpy(base + at, source, np.uint64(length))
                number[j, row] = at
                size[j, row] = length
                at += length
        if at > len(heap):
            state[0], state[1], state[2] = row, used, 1
            return _FULL, at
        used = at
        state[2] = 0
        row += 1
    state[0], state[1] = row, used
    return code, 0
