"""MariaDB 10.6 and newer: the source of `sources/mysql/`, with the flavour fixed instead of asked for."""

from __future__ import annotations

from typing import ClassVar

from tidemill.decoders.binlog import Flavor
from tidemill.sources.mysql import MysqlConfig, MysqlSource


class MariadbConfig(MysqlConfig):
    flavor: ClassVar[Flavor | None] = Flavor.MARIADB


class MariadbSource(MysqlSource):
    Config = MariadbConfig


component = MariadbSource
