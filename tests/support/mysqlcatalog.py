"""Tables as information_schema lists them: the oracle of the schema history."""

from __future__ import annotations

from tidemill.decoders.mysql_schema import CatalogColumn, CatalogTable
from tidemill.lab.servers.mysql_family import Server


def read_catalog(server: Server, database: str) -> dict[str, CatalogTable]:
    columns: dict[str, list[CatalogColumn]] = {}
    for table, name, kind, charset, nullable, extra in server.query(
        "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, IS_NULLABLE, EXTRA"
        " FROM information_schema.COLUMNS JOIN information_schema.TABLES USING (TABLE_SCHEMA, TABLE_NAME)"
        " WHERE TABLE_SCHEMA = %s AND TABLE_TYPE <> 'VIEW' ORDER BY TABLE_NAME, ORDINAL_POSITION",
        (database,),
    ):
        upper = extra.upper()
        columns.setdefault(table, []).append(
            CatalogColumn(
                name, kind if isinstance(kind, str) else kind.decode(), charset or "", nullable == "YES",
                "GENERATED" in upper.replace("DEFAULT_GENERATED", ""), "INVISIBLE" in upper,
            )
        )  # fmt: skip
    keys: dict[str, list[str]] = {}
    for table, name in server.query(
        "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.STATISTICS"
        " WHERE TABLE_SCHEMA = %s AND INDEX_NAME = 'PRIMARY' ORDER BY TABLE_NAME, SEQ_IN_INDEX",
        (database,),
    ):
        keys.setdefault(table, []).append(name)
    charsets = dict(
        server.query(
            "SELECT TABLE_NAME, CHARACTER_SET_NAME FROM information_schema.TABLES JOIN"
            " information_schema.COLLATIONS ON TABLE_COLLATION = COLLATION_NAME"
            " WHERE TABLE_SCHEMA = %s",
            (database,),
        )
    )
    return {
        name: CatalogTable(database, name, tuple(found), tuple(keys.get(name, ())), charsets.get(name) or "")
        for name, found in columns.items()
    }
