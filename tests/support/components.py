"""A source and two sinks that connect to nothing, registered as a third party would: through entry points."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint

import pytest
from pydantic import Field, SecretStr

from tidemill import registry
from tidemill.contracts import (
    BaseSink,
    Check,
    Component,
    Config,
    Outcome,
    Resting,
    Schemas,
    SinkConfig,
    SourceConfig,
)
from tidemill.errors import SourceError
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.position import Position


class Tls(Config):
    mode: str = Field(default="prefer", description="How hard to insist on TLS.")
    ca: str | None = Field(default=None, description="File of trusted certificates.")


class PondConfig(SourceConfig):
    dsn: str = Field(description="Where the pond is.", json_schema_extra={"secret": True})
    password: SecretStr | None = Field(default=None, description="Instead of the one in the DSN.")
    tables: list[str] = Field(default=[], description="What to capture.")
    port: int = Field(default=5432, ge=1, le=65535, description="TCP port.")
    tls: Tls = Field(default=Tls(), description="Encryption.")


class Pond(Component[PondConfig]):
    Config = PondConfig

    def doctor(self, resting: Resting | None = None) -> Iterable[Check]:
        if "broken" in self.config.dsn:
            raise RuntimeError("no water")
        dry = "dry" in self.config.dsn
        yield Check("water", Outcome.FAIL if dry else Outcome.PASS, "looked", "Open the gate." if dry else "")

    def other_server(self, position: Position, schemas: Schemas) -> str:
        return ""

    def renew(self, schemas: Schemas) -> Position:
        if "drought" in self.config.dsn:
            raise SourceError("the pond is dry", fix="Wait for rain.")
        return Position("0/99")

    def close(self) -> None:
        pass


class BucketConfig(SinkConfig):
    topic: str = Field(default="${source.table}", description="Where events go.")
    client_conf: dict[str, str] = Field(default={}, description="Settings of the client library.")


class Bucket(BaseSink[BucketConfig]):
    Config = BucketConfig
    tier = Tier.AT_LEAST_ONCE

    def write(self, delivery: Delivery) -> Receipt:
        return Receipt(self.config.id, delivery.lane)

    def close(self) -> None:
        pass


class BarrelConfig(SinkConfig):
    litres: int = Field(description="How large.")
    tls: Tls = Field(default=Tls(), description="Encryption.")


class Barrel(BaseSink[BarrelConfig]):
    Config = BarrelConfig


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pond` among the sources, `bucket` and `barrel` among the sinks, beside the real ones."""
    added = {"sources": {"pond": "Pond"}, "sinks": {"bucket": "Bucket", "barrel": "Barrel"}}
    installed = registry._entry_points

    def entry_points(family: str) -> list[EntryPoint]:
        mine = added.get(family, {})
        points = [EntryPoint(name, f"{__name__}:{kind}", f"tidemill.{family}") for name, kind in mine.items()]
        return [*points, *installed(family)]

    monkeypatch.setattr(registry, "_entry_points", entry_points)
