"""What an installation must remember besides logs and checkpoints: confirmed positions, lifecycle, last status.

    open_store.py        which backend a URI means
    store.py             every operation, written once in SQL that both backends speak
    sqlite.py            a file in the state directory; the default
    postgres.py          a schema in a PostgreSQL database that several machines share
    migrations.py        the tables, as numbered steps that only go forward

`contracts.StateStore` says what is promised (ADR 24).
"""

from tidemill.state.open_store import find_store, open_store

__all__ = ["find_store", "open_store"]
