"""Says where events go: topic, key and headers from templates, for sinks that have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator, model_validator

from tidemill.contracts import BaseProcessor, ProcessorConfig
from tidemill.errors import ConfigError
from tidemill.model.block import Block
from tidemill.model.derived import with_column
from tidemill.model.table import Table
from tidemill.model.template import Template
from tidemill.processors._shared.routes import check_templates, render, route, unmatched_defaults


class RouteConfig(ProcessorConfig):
    topic: str | None = Field(
        default=None, description="Template of the topic, stream or subject: `orders-${after.region:-none}`."
    )
    key: str | None = Field(default=None, description="Template of the message key.")
    headers: dict[str, str] = Field(default={}, description="Templates of headers, by name.")

    @field_validator("topic", "key")
    @classmethod
    def _template(cls, text: str | None) -> str | None:
        return text if text is None else _parse(text)

    @field_validator("headers")
    @classmethod
    def _templates(cls, headers: dict[str, str]) -> dict[str, str]:
        return {name: _parse(text) for name, text in headers.items()}

    @model_validator(mode="after")
    def _something(self) -> RouteConfig:
        if self.topic is None and self.key is None and not self.headers:
            raise ValueError("it says nothing: give topic, key or headers.")
        return self


class RouteProcessor(BaseProcessor[RouteConfig]):
    Config = RouteConfig
    checked = False

    def __init__(self, config: RouteConfig) -> None:
        super().__init__(config)
        self._topic = Template(config.topic) if config.topic is not None else None
        self._key = Template(config.key) if config.key is not None else None
        self._headers = {name: Template(text) for name, text in config.headers.items()}

    @classmethod
    def sets_message_key(cls, config: Mapping[str, Any]) -> bool:
        return config.get("key") is not None

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            topic = render(self._topic, block, self.source_id) if self._topic else None
            key = render(self._key, block, self.source_id) if self._key else None
            headers = {name: render(each, block, self.source_id) for name, each in self._headers.items()}
            yield with_column(block, "route", route(block, topic, key, headers))

    def check_table(self, table: Table) -> None:
        check_templates(self._templates(), table)

    def unmatched_columns(self, tables: Sequence[Table]) -> Sequence[str]:
        return unmatched_defaults(self._templates(), tables)

    def _templates(self) -> list[Template]:
        return [each for each in (self._topic, self._key, *self._headers.values()) if each is not None]


def _parse(text: str) -> str:
    try:
        Template(text)
    except ConfigError as error:
        raise ValueError(f"{error.what}. {error.fix}") from error
    return text


component = RouteProcessor
