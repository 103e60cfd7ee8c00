"""Which objects count. A batch is visible when its manifest is there, and there is one manifest per stretch of offsets.

    <prefix>/_tidemill/manifests/<start, 20 digits>.json    {"start", "end", "files": [...], "witness": {...}, ...}
    <prefix>/_tidemill/state.json                           a hint where to look, and the names of the attempt under way

A manifest is named by where it starts and created only if there is none (If-None-Match), so of two attempts at the same
events one wins, whatever plan each had. The next delivery goes on where the last manifest ends: events before that are
skipped, once the witness shows that they are the same. Objects of an attempt that was given up are in no manifest, and
are removed as soon as another attempt has its own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import orjson

from tidemill.errors import DeliveryError, Refused
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.sinks._shared.resume_scheme import ResumeScheme

log = logging.getLogger("tidemill.sinks.s3")

PRIVATE = "_tidemill"  # readers of data lakes skip names that start with an underscore
_STATE = f"{PRIVATE}/state.json"
_MANIFESTS = f"{PRIVATE}/manifests"


@dataclass(slots=True)
class Reached:
    """Everything before `end` is visible; `witness` are some of these events, by offset. `stale` are leftovers.

    `continued`: the delivery begins where the one before it began or ended, so it is of the same log.
    """

    end: Offset = 0
    continued: bool = False
    manifest: Offset | None = None
    witness: dict[Offset, str] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)


class Manifests:
    """One per sink and worker. Asks the store at every delivery: another worker may have written since."""

    def __init__(self, store: Any, prefix: str, where: str, owner: dict[str, str]) -> None:
        self._store = store
        self._prefix = prefix
        self._where = where
        self._owner = owner
        self._newest: dict[str, Any] | None = None

    def reached(self, delivery: Delivery) -> Reached:
        state = self._read(_STATE) or {}
        hint = int(state.get("manifest", 0))
        starts = self._starts(hint if delivery.start >= hint else 0)
        if not starts:
            return Reached(stale=self._stale(state, 0))
        newest = self._manifest(starts[-1])
        if newest["owner"] != self._owner:
            owner = newest["owner"]
            raise Refused(
                f'this prefix belongs to pipeline "{owner["pipeline"]}", sink "{owner["sink"]}"', where=self._where,
                fix="Give each s3 sink a prefix of its own.",
            )  # fmt: skip
        end = int(newest["end"])
        witness: dict[Offset, str] = {}
        if end > delivery.start:  # a replay: what it overlaps must be the same events
            first = max((s for s in starts if s <= delivery.start), default=starts[0])
            for start in starts[starts.index(first) :]:
                if start < delivery.end:
                    witness |= {int(o): text for o, text in self._manifest(start)["witness"].items()}
        continued = delivery.start in state.get("bounds", ())
        return Reached(end, continued, starts[-1], witness, self._stale(state, end))

    def attempt(self, reached: Reached, delivery: Delivery, start: Offset, names: list[str]) -> None:
        """Before objects appear: so that whoever comes after a crash knows their names. The next
        delivery begins at one of this one's bounds."""
        names = sorted({*names, *reached.stale})
        attempt = {"start": start, "names": names}
        bounds = [delivery.start, delivery.end]
        state = {"manifest": reached.manifest or 0, "attempt": attempt, "bounds": bounds, "owner": self._owner}
        self._put(_STATE, state)

    def publish(self, reached: Reached, manifest: dict[str, Any]) -> None:
        """Makes the objects visible, then removes those that an attempt before left behind."""
        from obstore.exceptions import AlreadyExistsError

        document = {**manifest, "owner": self._owner}
        name = f"{_MANIFESTS}/{manifest['start']:020}.json"
        try:
            self._put(name, document, mode="create")
        except AlreadyExistsError as error:
            if self._read(name) != document:
                raise DeliveryError(
                    "another worker has published these events meanwhile", where=self._where,
                    fix="The next try goes on after it.",
                ) from error  # fmt: skip
        self._newest = document
        self.remove(set(reached.stale) - {file["path"] for file in manifest["files"]})

    def add(self, offset: Offset, document: dict[str, Any]) -> None:
        """A dead letter that is sent again: a manifest of its own, outside of the row."""
        self._put(f"{_MANIFESTS}/letter-{offset:020}.json", {**document, "owner": self._owner})

    def remove(self, names: set[str]) -> None:
        import obstore

        if names:
            log.info("removing %d objects of an attempt that was given up", len(names))
            for name in sorted(names):
                try:
                    obstore.delete(self._store, self._prefix + name)
                except FileNotFoundError:
                    continue

    def _stale(self, state: dict[str, Any], end: Offset) -> list[str]:
        """What the last attempt put and no manifest names."""
        attempt = state.get("attempt", {})
        names, start = set(attempt.get("names", [])), int(attempt.get("start", -1))
        if names and start < end and (winner := self._find(start)) is not None:
            names -= {file["path"] for file in winner["files"]}
        return sorted(names)

    def _starts(self, first: Offset) -> list[Offset]:
        """Where manifests start, sorted, from the one at `first` on."""
        import obstore

        folder = f"{self._prefix}{_MANIFESTS}/"
        found = obstore.list(self._store, folder, offset=f"{folder}{first:020}").collect()
        names = (meta["path"].rpartition("/")[2].removesuffix(".json") for meta in found)
        return sorted(int(name) for name in names if name.isdigit())

    def _manifest(self, start: Offset) -> dict[str, Any]:
        document = self._find(start)
        if document is None:
            raise DeliveryError("a manifest went away while it was read", where=self._where)
        return document

    def _find(self, start: Offset) -> dict[str, Any] | None:
        if self._newest is None or self._newest["start"] != start:
            self._newest = self._read(f"{_MANIFESTS}/{start:020}.json")
        return self._newest

    def _read(self, name: str) -> dict[str, Any] | None:
        import obstore

        try:
            return dict(orjson.loads(bytes(obstore.get(self._store, self._prefix + name).bytes())))
        except FileNotFoundError:
            return None

    def _put(self, name: str, document: dict[str, Any], mode: str = "overwrite") -> None:
        import obstore

        content = orjson.dumps(document, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
        attributes = {"Content-Type": "application/json"}
        obstore.put(self._store, self._prefix + name, content, mode=mode, attributes=attributes, use_multipart=False)


RESUME = ResumeScheme(
    kept_in="a manifest per stretch of offsets",
    bound_by="objects are visible by their manifest, which is created once",
    replay="skipped up to the end of the last manifest",
    already=Manifests.reached,
    note=Manifests.publish,
)
