from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr

from tests.config.conftest import PIPELINE
from tidemill import config
from tidemill.config.secrets import mask, reveal


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://u:p@h:5432/db?sslmode=require", "postgresql://u:***@h:5432/db?sslmode=require"),
        ("postgresql://u:p@ss:w/rd@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p%40@[::1]:5432/db", "postgresql://u:***@[::1]:5432/db"),
        ("redis://:secret@h:6379", "redis://:***@h:6379"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("postgresql://h/db?user=u&password=p&x=1", "postgresql://h/db?user=u&password=***&x=1"),
        ("host=h user=u password=p dbname=d", "host=h user=u password=*** dbname=d"),
        ("host=h password = 'a \\' b' dbname=d", "host=h password = *** dbname=d"),
        ("sslpassword=x host=h", "sslpassword=*** host=h"),
        ("https://h/x?key=k&sig=s&a=1", "https://h/x?key=***&sig=***&a=1"),
        ("https://h/x?api_key=k&access_token=t#f", "https://h/x?api_key=***&access_token=***"),
        ("a:1,b:2", "***"),
        ("", "***"),
    ],
)
def test_only_the_password_of_a_dsn_is_hidden(dsn: str, shown: str) -> None:
    assert config.mask_dsn(dsn) == shown


def test_no_secret_is_left_in_a_shown_pipeline(write: Callable[..., Path]) -> None:
    base = PIPELINE.replace("id: p,", "id: p, password: HIDE-1,").replace(
        "{id: b}", "{id: b, client_conf: {sasl.password: HIDE-2, ssl.key.pem: HIDE-3, client.id: seen}}"
    )
    base = base.replace("croak", "HIDE-4").replace("ssl.key.pem", "ssl.keystore.key")
    extra = '  spark: {conf: {spark.hadoop.fs.s3a.secret.key: "HIDE-5", spark.app: seen-too}}\n'
    (pipeline,) = config.load(write(extra, base=base))
    shown = json.dumps(pipeline.mask_secrets())
    assert "HIDE" not in shown
    assert "pond://frog:***@127.0.0.1/lake" in shown
    assert "seen" in shown
    assert "seen-too" in shown
    assert pipeline.spec.source.config.password.get_secret_value() == "HIDE-1"  # type: ignore[attr-defined]


def test_headers_that_log_in_are_hidden() -> None:
    hidden = ("Authorization", "proxy-authorization", "Cookie", "X-Auth", "X-Api-Key", "X-Shop-Token", "X-Key-Id")
    seen = ("Content-Type", "X-Source", "Accept")
    shown = mask({**dict.fromkeys(hidden, "HIDE"), **dict.fromkeys(seen, "seen"), "account_key": "HIDE"})
    assert [name for name, value in shown.items() if value != "***"] == list(seen)


def test_a_credential_is_hidden_whatever_its_header_is_called() -> None:
    shown = mask({"X-Custom": "Bearer abc", "x-b": " basic dTpw", "X-Type": "bearer", "X-Note": "no bearer x"})
    assert shown == {"X-Custom": "***", "x-b": "***", "X-Type": "bearer", "X-Note": "no bearer x"}


def test_a_worker_gets_the_secrets_of_nested_settings_too() -> None:
    class Inner(BaseModel):
        password: SecretStr | None = None

    class Outer(BaseModel):
        inner: Inner
        headers: dict[str, SecretStr]

    outer = Outer(inner=Inner(password=SecretStr("a")), headers={"x": SecretStr("b")})
    assert Outer.model_validate(reveal(outer)) == outer
    assert json.dumps(reveal(outer)) == '{"inner": {"password": "a"}, "headers": {"x": "b"}}'
