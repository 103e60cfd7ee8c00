"""The settings of sinks that send events in a wire format, and the encoder they ask for."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Literal, TypeVar, cast

from pydantic import Field, SecretStr, field_validator, model_validator

from tidemill import registry
from tidemill.contracts import Check, Config, Format, Outcome, SinkConfig, WireFormat
from tidemill.errors import TidemillError
from tidemill.net.schema_registry import Naming, SchemaRegistryClient
from tidemill.net.tls import TlsConfig

EVERY_FORMAT = frozenset({"json", "avro", "protobuf", "arrow", "parquet"})
_FRAMED = ("avro", "protobuf")


class SchemaRegistryConfig(Config):
    """A registry that speaks Confluent's REST API. Documents then begin with the number of their schema."""

    url: str = Field(description="Where the registry is: https://registry:8081.", pattern=r"^https?://")
    naming: Literal["topic", "record", "topic_record"] = Field(
        default="topic",
        description="Subject of a schema: `<topic>-value`, the record's full name, or both with a dash.",
    )
    username: str | None = Field(default=None, description="For basic authentication.")
    password: SecretStr | None = Field(default=None, description="For basic authentication.")
    token: SecretStr | None = Field(default=None, description="For bearer authentication.")
    tls: TlsConfig = Field(default=TlsConfig(), description="Certificates for https.")
    timeout_seconds: float = Field(default=10.0, gt=0, description="How long one question may take.")

    @field_validator("url")
    @classmethod
    def _no_credentials(cls, url: str) -> str:
        if "@" in url:
            raise ValueError("the url holds credentials, which would be shown. Use username and password.")
        return url

    @model_validator(mode="after")
    def _one_login(self) -> SchemaRegistryConfig:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together. Give both or none.")
        if self.token is not None and self.username is not None:
            raise ValueError("a token and a username are two ways to log in. Give one of them.")
        return self

    def client(self) -> SchemaRegistryClient:
        headers = {}
        if self.username is not None and self.password is not None:
            pair = f"{self.username}:{self.password.get_secret_value()}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        elif self.token is not None:
            headers["Authorization"] = f"Bearer {self.token.get_secret_value()}"
        return SchemaRegistryClient(self.url, Naming(self.naming), headers, self.tls.context, self.timeout_seconds)


class EncodedSinkConfig(SinkConfig):
    """A sink that takes fewer formats narrows `format` in its own model."""

    format: WireFormat = Field(default="json", description="Wire format of an event: docs/formats.md.")
    envelope: Literal["native", "debezium", "cloudevents"] = Field(
        default="native", description="Shape of an event: docs/events.md."
    )
    envelope_schema: bool = Field(
        default=False, description="Debezium in JSON: send the schema with each event, as {schema, payload}."
    )
    cloudevents_mode: Literal["structured", "binary"] | None = Field(
        default=None,
        description="CloudEvents: attributes in the document (JSON only, and its default), or beside it as headers.",
    )
    schema_registry: SchemaRegistryConfig | None = Field(
        default=None, description="Where Avro and Protobuf schemas are registered; without it, no framing."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> EncodedSinkConfig:
        if self.schema_registry is not None and self.format not in _FRAMED:
            raise ValueError(f"schema_registry is for {' and '.join(_FRAMED)}, not for {self.format}. Remove it.")
        if self.envelope_schema and (self.format, self.envelope) != ("json", "debezium"):
            raise ValueError("envelope_schema is for Debezium's envelope in JSON. Remove it.")
        if self.cloudevents_mode is not None and self.envelope != "cloudevents":
            raise ValueError("cloudevents_mode is for envelope: cloudevents. Remove it.")
        if self.cloudevents_mode == "structured" and self.format != "json":
            raise ValueError(f"structured mode is for JSON; {self.format} has its attributes beside it. Use binary.")
        return self

    @property
    def attributes_beside(self) -> bool:
        """Whether CloudEvents attributes travel as headers, so that a sink without headers cannot send them."""
        mode = self.cloudevents_mode or ("structured" if self.format == "json" else "binary")
        return self.envelope == "cloudevents" and mode == "binary"


ConfigT = TypeVar("ConfigT", bound=EncodedSinkConfig)


def no_headers(config: ConfigT) -> ConfigT:
    """For validators of sinks that send documents and nothing beside them."""
    if config.attributes_beside:
        raise ValueError("CloudEvents in binary mode needs headers, which this sink has not. Use JSON, structured.")
    return config


def check_registry(config: EncodedSinkConfig) -> Iterator[Check]:
    """For doctors: does the registry answer, and what does it take for compatible?"""
    if config.schema_registry is None:
        return
    try:
        level = config.schema_registry.client().compatibility()
    except TidemillError as error:
        yield Check("schema registry", Outcome.FAIL, f"{config.schema_registry.url}: {error.what}", error.fix)
    else:
        yield Check("schema registry", Outcome.PASS, f"{config.schema_registry.url}, compatibility {level}")


def encoder(config: EncodedSinkConfig) -> Format:
    """Made once per sink: formats keep what they compiled per table version."""
    kind: Any = registry.load("formats", config.format)
    made = kind(
        envelope=config.envelope,
        mode="binary" if config.attributes_beside else "structured",
        envelope_schema=config.envelope_schema,
        schemas=config.schema_registry.client() if config.schema_registry is not None else None,
    )
    return cast(Format, made)
