"""The base of every configuration model."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Base of every configuration model: unknown keys are refused, values are not coerced across kinds. No number is
    infinite: JSON, and so the state store, has none.

    Every field carries a `description`; the reference pages and the JSON Schema are made of them. Secrets are
    `pydantic.SecretStr`, or strings marked `json_schema_extra={"secret": True}` where only a part is secret (a DSN).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)
