"""The decoder of one connection: the binlog's events over the tables as they were, and refusals as our errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tidemill.contracts import Schemas, history_of
from tidemill.decoders.binlog import BinlogDecoder, BinlogPlace, BinlogRefused
from tidemill.decoders.mysql_schema import MysqlTables
from tidemill.errors import SourceError
from tidemill.model.change import Change
from tidemill.sources.mysql import catalog, marks
from tidemill.sources.mysql.client import MysqlSession
from tidemill.sources.mysql.errors import BinlogUnusable, from_stream
from tidemill.sources.mysql.server import MysqlServerInfo
from tidemill.sources.mysql.stream import account
from tidemill.sources.mysql.tables import sees_all

if TYPE_CHECKING:
    from tidemill.sources.mysql import MysqlConfig


class StreamDecoder:
    """What the capture loop feeds."""

    def __init__(self, decoder: BinlogDecoder, tables: MysqlTables, config: MysqlConfig) -> None:
        self._decoder = decoder
        self._tables = tables
        self._config = config

    def known(self) -> Iterable[tuple[str, str]]:
        """(database, table) of every table that there is at `place`, also of those that are not captured."""
        return self._tables.known()

    @property
    def statements(self) -> int:
        """Rises with every statement that may have changed `known`."""
        return self._tables.statements

    @property
    def place(self) -> BinlogPlace:
        """The end of the last transaction that was decoded."""
        return self._decoder.place

    @property
    def idle(self) -> bool:
        """Whether everything that was sent before `place` was handed on."""
        return self._decoder.idle

    @property
    def consumed(self) -> int:
        return self._decoder.consumed

    @property
    def sent_at(self) -> int:
        return self._decoder.sent_at

    def feed(self, data: memoryview) -> Iterator[Change]:
        config = self._config
        where = f"{config.where}, position {str(self.place.text())[:200]}"
        try:
            yield from self._decoder.feed(data)
        except BinlogRefused as refusal:
            raise from_stream(refusal.errno, refusal.message, where, config.replica_id) from refusal
        except SourceError as error:
            if type(error) is not SourceError:
                raise
            # What is wrong is written in the binlog: read again, it is the same.
            raise BinlogUnusable(error.what, where=error.where or where, fix=error.fix) from error


def decoder_of(
    db: MysqlSession,
    server: MysqlServerInfo,
    place: BinlogPlace,
    schemas: Schemas,
    config: MysqlConfig,
    *,
    fresh: bool,
    mark_events: int,
) -> StreamDecoder:
    """`fresh`: no earlier run has left a schema history. Asks the catalog if one must be begun."""
    tables = MysqlTables(
        history_of(schemas), config.selection(server), flavor=server.flavor, fold=server.ignores_case,
        identity="key" if server.setting("binlog_row_image").upper() == "MINIMAL" else "full", where=config.where,
        account="" if sees_all(db) else account(db),
        on_renamed=lambda table, was, position: marks.note(schemas, table, was, position),
        null_zero_dates=config.zero_dates == "null",
    )  # fmt: skip
    tables.begin(place, lambda: catalog.read(db, server, place, config), fresh=fresh)
    decoder = BinlogDecoder(
        tables, flavor=server.flavor, began=place.text(), server=server.identity, checksum=server.checksum,
        mark_events=mark_events, zero_dates=config.zero_dates,
    )  # fmt: skip
    return StreamDecoder(decoder, tables, config)
