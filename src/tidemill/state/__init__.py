"""What an installation must remember besides logs and checkpoints: confirmed positions, lifecycle, snapshots.

    open_store.py        which backend a URI means
    store.py             every operation of a pipeline, written once in SQL that both backends speak
    snapshots.py         the same for copies of tables
    schema_changes.py    the same for schema changes and decisions on them
    sensing.py           the same for inferred schemas
    registry_tables.py   the same for schema registries, where several machines share the store
    installation.py      the same for what a server keeps: documents, tokens, audit trail
    audit.py             rows of the audit trail, also in the transaction of what they are about
    leases.py            the same for who runs which pipeline
    shared_requests.py   the same for what servers and workers say to each other
    sqlite.py            a file in the state directory; the default
    postgres.py          a schema in a PostgreSQL database that several machines share
    postgres_uri.py      its URI: what libpq takes, and our `schema`
    transfer.py          all of a store as one file, and back
    migrations.py        the tables, as numbered steps that only go forward
    older.py             what versions before the state store left, read once

`contracts.StateStore` says what is promised (ADR 24).
"""

from tidemill.state.open_store import (
    StoreFacts,
    find_registry,
    find_store,
    inspect_store,
    is_same_store,
    is_shared,
    open_database,
    open_installation,
    open_leases,
    open_registry,
    open_store,
)

__all__ = [
    "StoreFacts",
    "find_registry",
    "find_store",
    "inspect_store",
    "is_same_store",
    "is_shared",
    "open_database",
    "open_installation",
    "open_leases",
    "open_registry",
    "open_store",
]
