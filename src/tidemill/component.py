"""What every pluggable part has in common: a config model beside its class, and checks for `tidemill doctor`."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from tidemill.model.block import Block
from tidemill.model.delivery import Checkpoint, Delivery, Receipt, Tier


class Config(BaseModel):
    """Base of every configuration model: unknown keys are refused, values are not coerced across kinds.

    Every field carries a `description`; the reference pages and the JSON Schema are made of them. Secrets are
    `pydantic.SecretStr`, or strings marked `json_schema_extra={"secret": True}` where only a part is secret (a DSN).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


ConfigT = TypeVar("ConfigT", bound=Config)


class Outcome(enum.StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `tidemill doctor`. `fix` says what to do, and is empty only when the check passed."""

    name: str
    outcome: Outcome
    detail: str = ""
    fix: str = ""


class Component(Generic[ConfigT]):
    """A class in a family's folder. Its module's name is its `type:` in YAML; `Config` is its `config:`."""

    Config: ClassVar[type[Config]]

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    def doctor(self) -> Iterable[Check]:
        """Looks, touches nothing. Raises nothing: what it meets is a failed check."""
        return ()


class Sink(Protocol):
    """Writes deliveries. Lives in a Spark worker and is kept between batches.

    `write` returns only when the events are durable at the destination, or raises. It raises `Refused` for what
    no retry can mend, `DeliveryError` otherwise. Writing the same delivery again is always safe; for the
    effectively-once tier it changes nothing.
    """

    config: SinkConfig

    @property
    def tier(self) -> Tier: ...

    def write(self, delivery: Delivery) -> Receipt: ...

    def doctor(self) -> Iterable[Check]: ...

    def close(self) -> None: ...


class SinkConfig(Config):
    """Fields every sink has; each sink's model extends it."""

    id: str
    required: bool = True


class Format(Protocol):
    """Turns a block into one value per row, without a Python object per row."""

    content_type: ClassVar[str]

    def encode(self, block: Block, source: str) -> object: ...


class CheckpointStore(Protocol):
    """Keeps checkpoints per pipeline. `save` is compare-and-set on `expect` (the version that was read, 0 for none)
    and never moves backwards unless `force` says that an operator asked for it."""

    def load(self, pipeline: str) -> Checkpoint | None: ...

    def save(self, pipeline: str, checkpoint: Checkpoint, *, expect: int, force: bool = False) -> Checkpoint: ...

    def history(self, pipeline: str, limit: int = 20) -> list[Checkpoint]: ...

    def close(self) -> None: ...
