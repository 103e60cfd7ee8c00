"""Partial updates of JSON (`binlog_row_value_options=PARTIAL_JSON`), with the server as the oracle."""

from __future__ import annotations

import json
import random
from typing import Any

import pymysql
import pytest

from tests.support.binlogstream import MapTables, decode, end_of_binlog, record
from tests.support.decoded import rows
from tests.support.seed import run_seed
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders.binlog.json import documents
from tidemill.decoders.binlog.json.value import Node
from tidemill.lab.servers.mysql_family import Server

SEED = run_seed()
ROUNDS, STEPS = 12, 40
_KEYS = ("a", "b1", "_$", "", " ", "x y", 'q"q', "it's", "a.b", "[0]", "[last]", "last", "$", "*", "1a", "-", "\\",
         "\\u0041", "l\nf", "t\tb", "\x01", "ä", "日本", "😀", "e\u0301", "a\u200cb", "\ufeff", "k" * 300)  # fmt: skip
_VALUES = ("'v'", "''", "1", "-1.50", "2.5e0", "NULL", "TRUE", "CAST('[1, [2]]' AS JSON)", "CAST('[]' AS JSON)",
           "CAST('{\"q\": null, \"b\": [1, {\"c\": 2}]}' AS JSON)", "CAST('{}' AS JSON)", "'日\"\\\\'", "X'00FF'",
           "REPEAT('long ', 30)", "DATE'2024-02-29'", "CAST(REPEAT('9', 65) AS DECIMAL(65,0))")  # fmt: skip


def test_a_document_reads_after_each_step_as_at_the_server(mysql: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pick = random.Random(SEED)
    shown: dict[int, tuple[str, str]] = {}
    db = pymysql.connect(host="127.0.0.1", port=mysql.port, user="root", autocommit=True, charset="utf8mb4")
    with db, db.cursor() as cursor:
        cursor.execute("CREATE DATABASE steps")
        cursor.execute("CREATE TABLE steps.t (id int PRIMARY KEY, step int, e json)")
        begin = end_of_binlog(mysql)
        cursor.execute("SET SESSION binlog_row_value_options = PARTIAL_JSON")
        for step in range(ROUNDS * STEPS):
            if step % STEPS == 0:
                statement = f"REPLACE INTO steps.t VALUES (1, {step}, %s)"
                arguments: tuple[str, ...] = (json.dumps(_document(pick), ensure_ascii=False),)
            else:
                expression, arguments = _change(pick, json.loads(shown[step - 1][1]))
                statement = f"UPDATE steps.t SET step = {step}, e = {expression}"
            cursor.execute(statement, arguments)
            cursor.execute("SELECT CAST(e AS CHAR) FROM steps.t")
            shown[step] = cursor.mogrify(statement, arguments), cursor.fetchall()[0][0]
        stream = record(mysql, begin)
        cursor.execute("DROP DATABASE steps")
    changed = 0
    apply = documents.apply

    def counted(document: Node, data: bytes) -> Node:
        nonlocal changed
        changed += 1
        return apply(document, data)

    monkeypatch.setattr(documents, "apply", counted)
    found = {
        event["after"]["step"]: event["after"]["e"] for event in rows(decode(stream, MapTables(), Flavor.MYSQL))
        if event.get("after")
    }  # fmt: skip
    wrong = [(sql, text, found.get(step)) for step, (sql, text) in shown.items() if found.get(step) != text]
    assert not wrong, f"seed {SEED}: (statement, at the server, decoded) {wrong[:2]}"
    assert changed > ROUNDS * STEPS // 3


def _document(pick: random.Random) -> Any:
    """Large enough that a change of it is sent as one."""
    if pick.random() < 0.3:
        return ["x" * 4000, *(_value(pick, 3) for _ in range(5))]
    return {"large": "x" * 4000, **{key: _value(pick, 3) for key in pick.sample(_KEYS, 8)}}


def _value(pick: random.Random, depth: int) -> Any:
    match pick.randrange(6 if depth else 4):
        case 4:
            return [_value(pick, depth - 1) for _ in range(pick.randrange(5))]
        case 5:
            return {key: _value(pick, depth - 1) for key in pick.sample(_KEYS, pick.randrange(5))}
        case _:
            return pick.choice((None, True, 0, -70000, 1.5, "", "text", 2**63, "é" * 20))


def _change(pick: random.Random, document: Any) -> tuple[str, tuple[str, ...]]:
    """An expression over the column, and the paths that it names."""
    expression, paths = "e", []
    for _ in range(pick.choice((1, 1, 1, 2))):
        name = pick.choice(("SET", "SET", "REPLACE", "REMOVE"))
        parts = []
        for _ in range(pick.choice((1, 1, 1, 2, 3))):
            paths.append(_path(pick, document))
            parts.append("%s" if name == "REMOVE" else f"%s, {pick.choice(_VALUES)}")
        expression = f"JSON_{name}({expression}, {', '.join(parts)})"
    return expression, tuple(paths)


def _path(pick: random.Random, node: Any) -> str:
    """A path into the document, at times to what is not there. The server reads a scalar as an array of one."""
    path = "$"
    for _ in range(6):
        if isinstance(node, dict) and pick.random() < 0.95:
            key = pick.choice(_KEYS) if pick.random() < 0.25 or not node else pick.choice(list(node))
            path += "." + json.dumps(key, ensure_ascii=False)
            node = node.get(key)
        else:
            cells = node if isinstance(node, list) else [node]
            at, from_end = pick.randrange(len(cells) + 3), pick.random() < 0.4
            path += (f"[last-{at}]" if at else "[last]") if from_end else f"[{at}]"
            node = cells[-1 - at if from_end else at] if at < len(cells) else None
        if pick.random() < (0.4 if isinstance(node, (dict, list)) else 0.9):
            break
    return path
