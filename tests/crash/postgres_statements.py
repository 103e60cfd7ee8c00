"""Statements of the proof's PostgreSQL: small random writes to each of its tables."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import psycopg

_REGIONS = ("north", "south", "east")


def _some_account(dice: Random) -> str:
    return f"(SELECT id FROM accounts WHERE id >= {dice.randint(1, 60)} ORDER BY id LIMIT 1)"


def _text(dice: Random, size: int) -> str:
    return dice.randbytes(size // 2).hex()


def _open(db: psycopg.Connection[Any], dice: Random) -> None:
    db.execute(
        "INSERT INTO accounts (id, balance, note, score) SELECT nextval('ids'), %s, %s, %s FROM generate_series(1, %s)",
        [f"{dice.uniform(-9e9, 9e9):.2f}", dice.choice((None, "", "ключ\t\"q\"\n\\", "x" * 300)),
         dice.choice((None, 0.1, -1e300, 5e-324)), dice.choice((1, 1, 3))],
    )  # fmt: skip


def _deposit(db: psycopg.Connection[Any], dice: Random) -> None:
    low = dice.randint(1, 60)
    db.execute(
        "UPDATE accounts SET balance = balance / 2, at = clock_timestamp(), open = NOT open WHERE id BETWEEN %s AND %s",
        [low, low + dice.choice((0, 5, 30))],
    )


def _close(db: psycopg.Connection[Any], dice: Random) -> None:
    db.execute(f"DELETE FROM accounts WHERE id = {_some_account(dice)}".encode())


def _renumber(db: psycopg.Connection[Any], dice: Random) -> None:
    db.execute(f"UPDATE accounts SET id = nextval('ids'), note = 'moved' WHERE id = {_some_account(dice)}".encode())


def _reuse(db: psycopg.Connection[Any], dice: Random) -> None:
    """The same key again and again, so that the order of its events matters."""
    number = dice.randint(1, 40)
    db.execute("DELETE FROM accounts WHERE id = %s", [number])
    db.execute("INSERT INTO accounts (id, balance, note) VALUES (%s, %s, 'again')", [number, dice.randint(0, 99)])


def _line(db: psycopg.Connection[Any], dice: Random) -> None:
    db.execute(
        'INSERT INTO lines VALUES (%s, %s, %s, %s, %s) ON CONFLICT ("order", "Zeile") DO UPDATE '
        "SET quantity = lines.quantity + 1, doc = EXCLUDED.doc",
        [dice.randint(1, 15), dice.choice("aäb'c\""), 1, dice.choice((None, [], [1, None, 3])),
         dice.choice((None, '{"a": [1, {"b": null}]}', '"text"'))],
    )  # fmt: skip


def _move_lines(db: psycopg.Connection[Any], dice: Random) -> None:
    """Part of the key changes for several rows, onto keys that others had a moment ago."""
    left, right = dice.sample(range(1, 16), 2)
    db.execute('DELETE FROM lines WHERE "order" = %s', [left])
    db.execute('UPDATE lines SET "order" = %s, quantity = 0 WHERE "order" = %s', [left, right])


def _drop_lines(db: psycopg.Connection[Any], dice: Random) -> None:
    db.execute('DELETE FROM lines WHERE "order" = %s AND "Zeile" <> \'a\'', [dice.randint(1, 15)])


def _note(db: psycopg.Connection[Any], dice: Random) -> None:
    """Often the same row twice: without a key they are told apart by nothing."""
    body = _text(dice, 5000) if dice.random() < 0.2 else None
    db.execute(
        "INSERT INTO journal (what, amount, body) SELECT %s, %s, %s FROM generate_series(1, %s)",
        [f"w{dice.randint(1, 9)}", dice.choice(("1.50", "NaN", "-0.000001", "Infinity", None)), body,
         dice.choice((1, 2))],
    )  # fmt: skip


def _renote(db: psycopg.Connection[Any], dice: Random) -> None:
    db.execute("UPDATE journal SET amount = 7 WHERE what = %s", [f"w{dice.randint(1, 9)}"])


def _unnote(db: psycopg.Connection[Any], dice: Random) -> None:
    db.execute(
        "DELETE FROM journal WHERE ctid IN (SELECT ctid FROM journal WHERE what = %s LIMIT %s)",
        [f"w{dice.randint(1, 9)}", dice.randint(1, 20)],
    )


def _measure(db: psycopg.Connection[Any], dice: Random) -> None:
    db.execute(
        "INSERT INTO readings SELECT nextval('ids'), %s, %s FROM generate_series(1, %s)",
        [dice.choice(_REGIONS), dice.choice((1.5, 0.1, float("nan"), float("-inf"))), dice.randint(1, 3)],
    )


def _relocate(db: psycopg.Connection[Any], dice: Random) -> None:
    """From one partition into another: the server itself makes it a delete and an insert."""
    here, there = dice.sample(_REGIONS, 2)
    db.execute(
        "UPDATE readings SET region = %s, value = 2 WHERE (id, region) IN "
        "(SELECT id, region FROM readings WHERE region = %s LIMIT 3)", [there, here],
    )  # fmt: skip


def _forget(db: psycopg.Connection[Any], dice: Random) -> None:
    db.execute(
        "DELETE FROM readings WHERE (id, region) IN (SELECT id, region FROM readings WHERE region = %s LIMIT 4)",
        [dice.choice(_REGIONS)],
    )


def _write(db: psycopg.Connection[Any], dice: Random) -> None:
    body, extra = (_text(dice, 9000) if dice.random() < 0.8 else None), dice.randbytes(dice.choice((0, 10, 3000)))
    db.execute(
        "INSERT INTO documents (name, body, revision, extra) VALUES (%s, %s, 0, %s) ON CONFLICT (name) DO UPDATE "
        "SET revision = documents.revision + 1, extra = EXCLUDED.extra", [f"doc-{dice.randint(1, 40)}", body, extra],
    )  # fmt: skip


def _revise(db: psycopg.Connection[Any], dice: Random) -> None:
    """The long values stay: the server does not send them again."""
    low = dice.randint(0, 4)
    db.execute("UPDATE documents SET revision = revision + 1 WHERE name LIKE %s", [f"doc-{low}%"])


def _rewrite(db: psycopg.Connection[Any], dice: Random) -> None:
    db.execute(
        "UPDATE documents SET body = %s, revision = revision + 1 WHERE name = %s",
        [dice.choice((None, "short", _text(dice, 7000))), f"doc-{dice.randint(1, 40)}"],
    )


def _shred(db: psycopg.Connection[Any], dice: Random) -> None:
    db.execute("DELETE FROM documents WHERE name = %s", [f"doc-{dice.randint(1, 60)}"])


Statement = Callable[[psycopg.Connection[Any], Random], None]
DOCUMENT_STATEMENTS: tuple[Statement, ...] = (_write, _write, _revise, _rewrite, _shred)
STATEMENTS: tuple[Statement, ...] = (
    _open, _open, _deposit, _deposit, _close, _renumber, _reuse, _line, _line, _move_lines, _drop_lines,
    _note, _note, _renote, _unnote, _measure, _measure, _relocate, _forget, _write, _revise,
)  # fmt: skip
