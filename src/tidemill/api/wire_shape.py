"""What every body of the API has in common: of answers, and of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class WireShape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RequestShape(WireShape):
    """What a body may say. Databases of the state store do not keep the character NUL."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_nul(cls, found: Any) -> Any:
        if has_nul(found):
            raise ValueError("a text has the character NUL")
        return found


def has_nul(found: Any) -> bool:
    match found:
        case str():
            return "\0" in found
        case Mapping():
            return any(has_nul(key) or has_nul(item) for key, item in found.items())
        case list():
            return any(map(has_nul, found))
    return False
