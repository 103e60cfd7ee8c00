"""Statements of the proof's MySQL and MariaDB: small random writes to each of its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

_REGIONS = ("north", "south", "east")


class Writes(Protocol):
    """What a statement needs of its session."""

    def run(self, statement: str, *values: Any) -> Sequence[Any]: ...

    def next_id(self) -> int: ...


def _text(dice: Random, size: int) -> str:
    return dice.randbytes(size // 2).hex()


def _open(db: Writes, dice: Random) -> None:
    for _ in range(dice.choice((1, 1, 3))):
        db.run(
            "INSERT INTO accounts (id, balance, note, score) VALUES (%s, %s, %s, %s)", db.next_id(),
            f"{dice.uniform(-9e9, 9e9):.2f}", dice.choice((None, "", "ключ\t\"q\"\n\\", "x" * 300)),
            dice.choice((None, 0.1, -1e300, 2.5e-300)),
        )  # fmt: skip


def _deposit(db: Writes, dice: Random) -> None:
    low = dice.randint(1, 60)
    db.run(
        "UPDATE accounts SET balance = balance / 2, at = now(6), open = 1 - open WHERE id BETWEEN %s AND %s",
        low, low + dice.choice((0, 5, 30)),
    )  # fmt: skip


def _close(db: Writes, dice: Random) -> None:
    db.run("DELETE FROM accounts WHERE id >= %s ORDER BY id LIMIT 1", dice.randint(1, 60))


def _renumber(db: Writes, dice: Random) -> None:
    db.run(
        "UPDATE accounts SET id = %s, note = 'moved' WHERE id >= %s ORDER BY id LIMIT 1",
        db.next_id(),
        dice.randint(1, 60),
    )


def _reuse(db: Writes, dice: Random) -> None:
    """The same key again and again, so that the order of its events matters."""
    number = dice.randint(1, 40)
    db.run("DELETE FROM accounts WHERE id = %s", number)
    db.run("REPLACE INTO accounts (id, balance, note) VALUES (%s, %s, 'again')", number, dice.randint(0, 99))


def _line(db: Writes, dice: Random) -> None:
    db.run(
        "INSERT INTO `lines` (`order`, Zeile, quantity, kind, doc) VALUES (%s, %s, 1, %s, %s)"
        " ON DUPLICATE KEY UPDATE quantity = quantity + 1, doc = VALUES(doc)",
        dice.randint(1, 15), dice.choice("aäb'c\""), dice.choice((None, "a", "ä", "it's")),
        dice.choice((None, '{"a": [1, {"b": null}]}', '"text"', "[1.5, 18446744073709551615]")),
    )  # fmt: skip


def _move_lines(db: Writes, dice: Random) -> None:
    """Part of the key changes for several rows, onto keys that others had a moment ago."""
    left, right = dice.sample(range(1, 16), 2)
    db.run("DELETE FROM `lines` WHERE `order` = %s", left)
    db.run("UPDATE `lines` SET `order` = %s, quantity = 0 WHERE `order` = %s", left, right)


def _drop_lines(db: Writes, dice: Random) -> None:
    db.run("DELETE FROM `lines` WHERE `order` = %s AND Zeile <> 'a'", dice.randint(1, 15))


def _note(db: Writes, dice: Random) -> None:
    """Often the same row twice: without a key they are told apart by nothing."""
    body = _text(dice, 5000) if dice.random() < 0.2 else None
    for _ in range(dice.choice((1, 2))):
        db.run(
            "INSERT INTO journal (what, amount, body, day) VALUES (%s, %s, %s, %s)", f"wé{dice.randint(1, 9)}",
            dice.choice(("1.50", "-0.000001", "123456789012345678901234.5", None)), body,
            dice.choice((None, "2026-03-01", "0001-01-01")),
        )  # fmt: skip


def _renote(db: Writes, dice: Random) -> None:
    db.run("UPDATE journal SET amount = 7 WHERE what = %s", f"wé{dice.randint(1, 9)}")


def _unnote(db: Writes, dice: Random) -> None:
    db.run("DELETE FROM journal WHERE what = %s LIMIT %s", f"wé{dice.randint(1, 9)}", dice.randint(1, 20))


def _measure(db: Writes, dice: Random) -> None:
    for _ in range(dice.randint(1, 3)):
        db.run(
            "INSERT INTO readings (id, region, value) VALUES (%s, %s, %s)", db.next_id(), dice.choice(_REGIONS),
            dice.choice((1.5, 0.1, -1e-30)),
        )  # fmt: skip


def _relocate(db: Writes, dice: Random) -> None:
    """From one partition into another, which changes the key."""
    here, there = dice.sample(_REGIONS, 2)
    db.run("UPDATE readings SET region = %s, value = 2 WHERE region = %s ORDER BY id LIMIT 3", there, here)


def _forget(db: Writes, dice: Random) -> None:
    db.run("DELETE FROM readings WHERE region = %s ORDER BY id LIMIT 4", dice.choice(_REGIONS))


def _write(db: Writes, dice: Random) -> None:
    body, extra = (_text(dice, 9000) if dice.random() < 0.8 else None), dice.randbytes(dice.choice((0, 10, 3000)))
    db.run(
        "INSERT INTO documents (name, body, revision, extra) VALUES (%s, %s, 0, %s) ON DUPLICATE KEY UPDATE"
        " revision = revision + 1, extra = VALUES(extra)", f"doc-{dice.randint(1, 40)}", body, extra,
    )  # fmt: skip


def _revise(db: Writes, dice: Random) -> None:
    db.run("UPDATE documents SET revision = revision + 1 WHERE name LIKE %s", f"doc-{dice.randint(0, 4)}%")


def _rewrite(db: Writes, dice: Random) -> None:
    db.run(
        "UPDATE documents SET body = %s, revision = revision + 1 WHERE name = %s",
        dice.choice((None, "short", _text(dice, 7000))), f"doc-{dice.randint(1, 40)}",
    )  # fmt: skip


def _shred(db: Writes, dice: Random) -> None:
    db.run("DELETE FROM documents WHERE name = %s", f"doc-{dice.randint(1, 60)}")


Statement = Callable[[Writes, Random], None]
DOCUMENT_STATEMENTS: tuple[Statement, ...] = (_write, _write, _revise, _rewrite, _shred)
STATEMENTS: tuple[Statement, ...] = (
    _open, _open, _deposit, _deposit, _close, _renumber, _reuse, _line, _line, _move_lines, _drop_lines,
    _note, _note, _renote, _unnote, _measure, _measure, _relocate, _forget, _write, _revise,
)  # fmt: skip
