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
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.sinks._shared.in_order import event_ids
from tidemill.sinks._shared.resume_scheme import ResumeScheme

log = logging.getLogger("tidemill.sinks.s3")

PRIVATE = "_tidemill"  # readers of data lakes skip names that start with an underscore
_STATE = f"{PRIVATE}/state.json"
MANIFESTS = f"{PRIVATE}/manifests"


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

    def find_end(self, delivery: Delivery) -> Reached:
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
        name = f"{MANIFESTS}/{manifest['start']:020}.json"
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
        """A dead letter that is sent again: a manifest of its own, outside of the row. One that an older version made
        of the same event goes, with its objects: the event counts once."""
        self._put(f"{MANIFESTS}/dead-letter-{offset:020}.json", {**document, "owner": self._owner})
        older = f"{MANIFESTS}/letter-{offset:020}.json"
        if (replaced := self._read(older)) is not None:
            self.remove({older, *(file["path"] for file in replaced["files"])})

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

        folder = f"{self._prefix}{MANIFESTS}/"
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
            self._newest = self._read(f"{MANIFESTS}/{start:020}.json")
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


class S3Resumption:
    """One delivery: rows that a manifest covers are left out, once they are seen to be the events it names. `content`
    is what the new manifest says of the objects, for `note`."""

    def __init__(self, manifests: Manifests, delivery: Delivery, where: str) -> None:
        self.skipped = 0
        self.content: dict[str, Any] = {}
        self._manifests = manifests
        self._delivery = delivery
        self._where = where
        dead_letter = delivery.redelivered
        self._reached = Reached(delivery.start) if dead_letter else manifests.find_end(delivery)
        self._start = max(delivery.start, self._reached.end)
        kind = "dead-letter-" if dead_letter else ""
        self.token = f"{kind}{self._start:020}-{max(delivery.end, self._start):020}"  # begins the objects' names
        self._witness: dict[Offset, str] = {}
        self._confirmed = False

    def fresh(self, block: Block) -> Block | None:
        if not block.rows:
            return None
        fresh = block.slice(self._start, 2**63)
        if fresh.rows < block.rows:
            self._compare(Block(block.table, block.batch.slice(0, block.rows - fresh.rows)))
        if not fresh.rows:
            return None
        self._see(fresh)
        return fresh

    def check_log(self) -> None:
        """After the last block: `Refused` if nothing showed that what was left out is there."""
        if self.skipped and not self._confirmed and not self._reached.continued:
            raise self._other_log(self._delivery.start)

    def announce(self, names: list[str]) -> None:
        """Before objects of these names appear."""
        if not self._delivery.redelivered:
            self._manifests.attempt(self._reached, self._delivery, self._start, names)

    def note(self) -> None:
        if not self._witness:
            if self.skipped:  # the next delivery is known by where this one ended
                self._manifests.attempt(self._reached, self._delivery, self._reached.end, [])
            return
        witness = {str(offset): identity for offset, identity in sorted(self._witness.items())}
        document = {"start": self._start, "end": self._delivery.end, "witness": witness, **self.content}
        if self._delivery.redelivered:
            self._manifests.add(self._start, document)
        else:
            self._manifests.publish(self._reached, document)

    def _compare(self, old: Block) -> None:
        self.skipped += old.rows
        offsets = old.offsets().tolist()
        for offset in self._reached.witness.keys() & set(offsets):
            if _identity(old, offsets.index(offset), self._delivery.source) != self._reached.witness[offset]:
                raise self._other_log(offset)
            self._confirmed = True

    def _see(self, block: Block) -> None:
        """The first and last event of each table's run, at most a few: what a replay is recognised by."""
        offsets = block.offsets()
        for row in (0, block.rows - 1):
            if len(self._witness) < 256 or row:
                first = int(offsets.searchsorted(offsets[row]))  # processors may have made several of one event
                self._witness[int(offsets[row])] = _identity(block, first, self._delivery.source)
        if len(self._witness) > 512:
            kept = sorted(self._witness)
            self._witness = {o: self._witness[o] for o in (*kept[:128], *kept[128:-1:4], kept[-1])}

    def _other_log(self, offset: Offset) -> Refused:
        return Refused(
            f"manifests reach offset {self._reached.end}, but do not show that they hold the events from {offset} on",
            where=self._where,
            fix="If the state directory was lost or reset, offsets count anew and the old objects stay valid: give the "
            "sink a new prefix.",
        )


def _identity(block: Block, row: int, source: str) -> str:
    one = Block(block.table, block.batch.slice(row, 1))
    return str(event_ids(one, source)[0].as_py().decode())


RESUME = ResumeScheme(
    kept_in="a manifest per stretch of offsets",
    bound_by="objects are visible by their manifest, which is created once",
    replay="skipped up to the end of the last manifest",
    resumption=S3Resumption,
)
