"""A table of a destination with databases: what it is called in statements and for people."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableName(ABC):
    database: str
    table: str

    def __str__(self) -> str:
        """As it stands in a statement."""
        return f"{self.quote(self.database)}.{self.quote(self.table)}"

    @property
    def plain(self) -> str:
        return f"{self.database}.{self.table}"

    @staticmethod
    @abstractmethod
    def quote(name: str) -> str:
        """As the server wants names."""
