"""Which files belong to which batch: what makes a replay of the files sink leave each event in exactly one file.

A file's name carries the bounds of its batch, its lane and how many lanes there were. As long as a batch that
failed comes again with the same plan, writing the same names again is enough. It comes with another plan when Spark's
directory was lost or the lanes are dealt differently; then files of the first attempt would stand beside the new
ones. So each lane, before it publishes, notes its batch and the names in `_tidemill/batches/`. Notes of finished
batches go with the next one's, so there are never more than a few, and every write can look at all of them:

- a note that ends where this delivery starts, or before: its batch is finished;
- a note of the same plan and lane: files in it that this attempt does not write are removed;
- a note of another plan that starts with this delivery: an attempt that was given up, its files are removed;
- any other: finished files cover offsets that come again. The checkpoint was moved back, or the state was lost and the
  offsets mean other events now. `rewind` says whether to stop or to replace every file from here on.

Lanes do this at the same time. It is safe because none removes files or notes of the present plan but its own, and
because a note goes only after the files it stands for.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

import orjson

from tidemill.errors import Refused
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.sinks._filestore import Store

log = logging.getLogger("tidemill.sinks.files")

PRIVATE = "_tidemill"  # readers of data lakes skip names that start with an underscore
_NOTES = f"{PRIVATE}/batches"
_DRAFTS = f"{PRIVATE}/drafts"
_OWNER = f"{PRIVATE}/owner.json"
_SHARE = re.compile(r"(\d{20})-(\d{20})-(\d{4})of(\d{4})\b.*")


@dataclass(frozen=True, slots=True)
class Share:
    """One lane's part of one batch; its text begins the names of all files made of it, and sorts by offset."""

    start: Offset
    end: Offset
    lane: int
    lanes: int

    @classmethod
    def of(cls, delivery: Delivery) -> Share:
        return cls(delivery.start, delivery.end, delivery.lane, delivery.lanes)

    @classmethod
    def parse(cls, name: str) -> Share | None:
        match = _SHARE.fullmatch(name)
        return cls(*map(int, match.groups())) if match else None

    def __str__(self) -> str:
        return f"{self.start:020}-{self.end:020}-{self.lane:04}of{self.lanes:04}"

    def same_plan(self, other: Share) -> bool:
        return (self.start, self.end, self.lanes) == (other.start, other.end, other.lanes)


class Journal:
    """One per sink and worker. Looks at the store at every delivery and keeps nothing about it in memory."""

    def __init__(self, store: Store, rewind: Literal["refuse", "replace"]) -> None:
        self._store = store
        self._rewind = rewind
        self._opened = False
        self._token = uuid.uuid4().hex[:12]

    def begin(self, delivery: Delivery, sink: str) -> None:
        """Makes room: after this, no event from `delivery.start` on is there, except of the present plan."""
        share = Share.of(delivery)
        if not self._opened:
            self._own({"pipeline": delivery.pipeline, "sink": sink})
            for name, draft in _shares(self._store.list(_DRAFTS)):
                if not draft.same_plan(share):
                    self._store.remove(f"{_DRAFTS}/{name}")
            self._opened = True
        stale = [(n, s) for n, s in _shares(self._store.list(_NOTES)) if s.end > share.start and not s.same_plan(share)]
        if not stale:
            return
        if any(other.start != share.start for _, other in stale):
            self._replay(share, max(other.end for _, other in stale))
        given_up = [f for name, s in stale if s.start >= share.start for f in self._listed(f"{_NOTES}/{name}")]
        for file in given_up:
            self._store.remove(file)
        # There is always a note of the newest batch, or a later rewind would not be seen.
        own = f"{_NOTES}/{share}.json"
        self._store.put(own, orjson.dumps(self._listed(own)))
        for name, _ in stale:
            self._store.remove(f"{_NOTES}/{name}")
        log.info("removed %d files of an attempt that was given up at offset %d", len(given_up), share.start)

    def draft(self, delivery: Delivery, number: int) -> str:
        # Not shared with an attempt that may still be writing elsewhere: each publishes whole files of its own.
        return f"{_DRAFTS}/{Share.of(delivery)}-{number}-{self._token}.part"

    def note(self, delivery: Delivery, files: Collection[str]) -> None:
        """Called when the drafts are complete, before the first of them gets its name."""
        share = Share.of(delivery)
        name = f"{_NOTES}/{share}.json"
        left = sorted(set(self._listed(name)) - set(files))
        if not files and not left:
            return
        # Both lists until the old files are gone: killed in between, the next attempt still knows of them.
        self._store.put(name, orjson.dumps(sorted({*left, *files})))
        for file in left:
            self._store.remove(file)
        if left:
            self._store.put(name, orjson.dumps(sorted(files)))
        for other, finished in _shares(self._store.list(_NOTES)):
            if finished.end <= share.start:
                self._store.remove(f"{_NOTES}/{other}")

    def _listed(self, note: str) -> list[str]:
        content = self._store.get(note)
        return list(orjson.loads(content)) if content else []

    def _replay(self, share: Share, reached: Offset) -> None:
        """Events come again that finished files have: `rewind` decides."""
        if self._rewind == "refuse":
            raise Refused(
                f"events come again from offset {share.start}, but the files here reach offset {reached}",
                fix='If the checkpoint was moved back on purpose, set rewind: replace. If the state was lost, offsets '
                "count anew and the old files stay valid: give the sink a new path.",
            )  # fmt: skip
        removed = straddling = 0
        for folder in self._store.list():
            if folder.startswith((PRIVATE, ".")):
                continue
            for name, other in _shares(self._store.list(folder)):
                if other.same_plan(share) or other.end <= share.start:
                    continue
                if other.start < share.start:
                    straddling += 1
                else:
                    self._store.remove(f"{folder}/{name}")
                    removed += 1
        log.info("removed %d files from offset %d on: their events come again", removed, share.start)
        if straddling:
            # A checkpoint was set inside a batch. Removing these would lose the events before it.
            log.warning("%d files hold events on both sides of offset %d; those after it are now there twice, with the "
                        "same event_id", straddling, share.start)  # fmt: skip

    def _own(self, owner: dict[str, str]) -> None:
        """Offsets are those of one log: a second pipeline's files would take the first one's names."""
        known = self._store.get(_OWNER)
        if known is None:
            self._store.put(_OWNER, orjson.dumps(owner))
        elif orjson.loads(known) != owner:
            other = orjson.loads(known)
            raise Refused(
                f'this path belongs to pipeline "{other.get("pipeline")}", sink "{other.get("sink")}"',
                fix=f"Give each files sink a path of its own. If that one is gone, remove {_OWNER}.",
            )


def _shares(names: list[str]) -> Iterator[tuple[str, Share]]:
    for name in names:
        if (share := Share.parse(name)) is not None:
            yield name, share
