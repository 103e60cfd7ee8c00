"""What every pluggable part has in common: a config model beside its class, and checks for `tidemill doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Generic, TypeVar

from tidemill.contracts.check import Check
from tidemill.model.config import Config

ConfigT = TypeVar("ConfigT", bound=Config)


class Component(Generic[ConfigT]):
    """A class in a family's folder. Its module's name is its `type:` in YAML; `Config` is its `config:`."""

    Config: ClassVar[type[Config]]

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    def doctor(self) -> Iterable[Check]:
        """Looks, touches nothing. Raises nothing: what it meets is a failed check."""
        return ()

    def close(self) -> None:
        """Ends its connections. May be called again, and before anything was used."""
