"""Why a batch must end before and after an append: what stands there changes what its neighbours mean."""

from __future__ import annotations

import enum
from collections.abc import Iterable


# Compiled into kernels: see kernel_cache.
class Barrier(enum.IntFlag):
    """The kinds; an append may have several. In the log's index they stand by their names."""

    NONE = 0
    UNNAMED = 1  # of a log whose index says only that there is a barrier, or a kind that this version does not know
    SCHEMA_CHANGE = 2
    TRUNCATE = 4
    KEY_CHANGE = 8  # an UPDATE that changes a key and could not be split into a DELETE and an INSERT

    @property
    def joins(self) -> bool:
        """Whether appends in a row may be one batch. Where only keys change, whole tables in one lane are enough; a new
        structure or a TRUNCATE stands alone, and so does what this version does not know."""
        return self == Barrier.KEY_CHANGE

    @property
    def kinds(self) -> list[str]:
        """`schema_change`, `truncate`, ..."""
        return [str(kind.name).lower() for kind in self]

    @classmethod
    def of(cls, kinds: Iterable[str]) -> Barrier:
        found = cls.NONE
        for kind in kinds:
            found |= cls.__members__.get(kind.upper(), cls.UNNAMED)
        return found
