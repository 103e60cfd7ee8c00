"""What `tidemill doctor` asks of Redis: is it there, may it be written, will it keep what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidemill.contracts import Check, Outcome
from tidemill.errors import DeliveryError
from tidemill.model.template import Template
from tidemill.sinks.redis.errors import explain_errors

if TYPE_CHECKING:
    from tidemill.sinks.redis import RedisConfig


def run_checks(config: RedisConfig, stream: Template) -> Iterator[Check]:
    try:
        import redis  # noqa: F401
    except ImportError:
        yield Check("client", Outcome.FAIL, "redis is not installed", "pip install 'tidemill[redis]'")
        return
    from tidemill.sinks.redis.client import RedisClient

    try:
        with explain_errors(config.where):
            client = RedisClient(config)
            try:
                info = _info(client.redis)
                kind = client.redis.type(config.stream) if stream.is_literal else b""
            finally:
                client.close()
    except DeliveryError as error:
        yield Check("server", Outcome.FAIL, error.what, error.fix or "Check the uri.")
        return
    yield _server(info)
    yield _memory(info)
    yield _disk(info)
    if stream.is_literal:
        yield _stream(config.stream, kind)


def _info(redis: Any) -> dict[str, Any]:
    found = redis.info()
    nested = [value for value in found.values() if isinstance(value, dict) and "redis_version" in value]
    return dict(nested[0] if nested else found)  # a cluster answers per node


def _server(info: dict[str, Any]) -> Check:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version", info["redis_version"]))
    if int(str(info["redis_version"]).partition(".")[0]) < 5:
        return Check("server", Outcome.FAIL, f"{name} {version} has no streams", "Use Redis 5 or newer.")
    if info.get("role") not in (None, "master"):
        return Check("server", Outcome.FAIL, "it is a replica", "Name the master, or use redis+sentinel://.")
    return Check("server", Outcome.PASS, f"{name} {version}")


def _memory(info: dict[str, Any]) -> Check:
    policy, limit = info.get("maxmemory_policy", "noeviction"), info.get("maxmemory", 0)
    if limit and str(policy).startswith("allkeys"):
        fix = "Set maxmemory-policy noeviction, and bound streams with maxlen."
        return Check("memory", Outcome.WARN, f"with {policy} a full Redis drops whole streams", fix)
    return Check("memory", Outcome.PASS, f"{policy}")


def _disk(info: dict[str, Any]) -> Check:
    if not info.get("aof_enabled", 1):
        fix = "Set appendonly yes; with appendfsync always nothing that was answered is lost."
        return Check("persistence", Outcome.WARN, "no append-only file: a crash of Redis loses entries", fix)
    return Check("persistence", Outcome.PASS, "append-only file")


def _stream(name: str, kind: bytes | str) -> Check:
    found = kind.decode() if isinstance(kind, bytes) else kind
    if found in ("none", "stream"):
        return Check("stream", Outcome.PASS, f'"{name}" ' + ("exists" if found == "stream" else "will be made"))
    return Check("stream", Outcome.FAIL, f'"{name}" is a {found}', 'Choose another "stream", or delete the key.')
