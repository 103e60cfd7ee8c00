"""What the stream tells the log after a checkpoint is saved: how far it has delivered, and what may go."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import pairwise

from tidemill.log.bookmark import ACKNOWLEDGED, Bookmark
from tidemill.log.config import LogConfig
from tidemill.log.entry import Tail, index_name
from tidemill.log.index import unpack
from tidemill.log.store import Store, open_store
from tidemill.model.position import Offset

# Enough for the first record of nearly every index; the rest is read when it is not.
_FIRST_RECORD = 64 << 10


def acknowledge(uri: str | Store, delivered: Tail) -> None:
    """Call only after the checkpoint is saved (invariants 1 and 2).

    Not waited for on disk: if a power failure takes it back, capture merely acknowledges less to the source.
    """
    Bookmark(open_store(uri), ACKNOWLEDGED).put(delivered, durable=False)


def trim(
    uri: str | Store,
    before: Offset,
    config: LogConfig,
    *,
    held: Offset | None = None,
    sizes: dict[Offset, int] | None = None,
    now: float | None = None,
) -> int:
    """Removes whole segments that end at or before `before` and are past retention; returns the bytes freed.

    From `held` on they are kept for a sink that lags, as far as `keep_for_optional_bytes` goes. Who calls often
    passes the same `sizes` again: delivered segments do not grow, and asking an object store takes a request each.

    Oldest first and the index before its data, so that a trim that is killed leaves a log that begins later and
    never one with a hole. The newest segment stays: it says where the log ends.
    """
    store = open_store(uri)
    names = store.names()
    bases = [int(name[:-4]) for name in names if name.endswith(".idx")]
    delivered = [(base, following) for base, following in pairwise(bases) if following <= before]
    data = _data(names)
    sizes = {} if sizes is None else sizes

    def size_of(base: Offset) -> int:
        if base not in sizes:
            sizes[base] = sum(store.size(name) or 0 for name in [index_name(base), *data[base]])
        return sizes[base]

    lagging = held is not None and held < before
    kept = sum(size_of(base) for base, _ in delivered) if config.retention_bytes or lagging else 0
    clock = time.time() if now is None else now
    freed = 0
    for base, following in delivered:
        began = _first_written_at(store, following)
        if began is None:
            break  # the writer is about to begin the next segment; until then this one says where the log ends
        if held is not None and following > held and kept <= config.keep_for_optional_bytes:
            break
        size = size_of(base)
        too_much = 0 < config.retention_bytes <= kept - size
        too_old = 0 < config.retention_seconds < clock - began / 1000
        if not (too_much or too_old) and (config.retention_bytes or config.retention_seconds):
            break
        for name in [index_name(base), *data[base]]:
            store.remove(name)
        sizes.pop(base)
        kept -= size
        freed += size
    return freed


def _data(names: list[str]) -> defaultdict[Offset, list[str]]:
    """The data files of each segment, by its base."""
    found: defaultdict[Offset, list[str]] = defaultdict(list)
    for name in names:
        if name.endswith(".seg") and name[:20].isdigit():
            found[int(name[:20])].append(name)
    return found


def _first_written_at(store: Store, base: Offset) -> int | None:
    name = index_name(base)
    found = unpack(store.read(name, 0, _FIRST_RECORD)) or unpack(store.read(name))
    return None if found is None else int(found[0]["written_at"])
