"""What messages of event triggers say, read without a server."""

from __future__ import annotations

import orjson
import pytest

from tidemill.sources.postgres.ddl_message import DdlMessage


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ALTER ROLE a PASSWORD 'it''s'; DROP TABLE t", "ALTER ROLE a PASSWORD '***'; DROP TABLE t"),
        (r"ALTER ROLE a PASSWORD E'it\'s'; DROP TABLE t", "ALTER ROLE a PASSWORD '***'; DROP TABLE t"),
        ("OPTIONS (password $x$it's $$ me$x$); DROP TABLE t", "OPTIONS (password '***'); DROP TABLE t"),
        ("CONNECTION 'host=h password=me'; DROP TABLE t", "CONNECTION '***'; DROP TABLE t"),
        ("DROP TABLE t; ALTER ROLE a PASSWORD 'that was cut", "DROP TABLE t; ALTER ROLE a PASSWORD '***'"),
        ("ALTER TABLE t ADD password text DEFAULT 'x'", "ALTER TABLE t ADD password text DEFAULT 'x'"),
    ],
)
def test_a_statement_is_told_without_the_secrets_that_were_sent_with_it(text: str, shown: str) -> None:
    document = {"version": 1, "token": "t", "event": "drop", "text": text, "schema": "public", "name": "t"}
    assert DdlMessage.read(orjson.dumps(document)).text == shown
