"""Which files belong to which batch: what makes a replay of the files sink leave each event in exactly one file.

A file's name carries the bounds of its batch, its lane and how many lanes there were. As long as a batch that
failed comes again with the same plan, writing the same names again is enough. It comes with another plan when Spark's
directory was lost or the lanes are dealt differently; then files of the first attempt would stand beside the new
ones. So each lane, before it publishes, notes its batch, the files and their events in `_tidemill/batches/`. Notes of
finished batches go with the next one's, so there are never more than a few, and every write can look at all of them:

- a note that ends where this delivery starts, or before: its batch is finished;
- a note that starts with this delivery: an earlier attempt, which is replaced once its events are seen to be those that
  come now. Files of the same plan and lane that this attempt does not write, and all files of another plan, are
  removed. So is one that starts before this delivery, if a finished batch started with it: the batches were cut anew;
- a note by a later run, or of a later batch of the same one (`model.delivery.Epoch`): this worker woke up late, and is
  refused. It is also refused if others went on while it wrote its drafts;
- any other, or other events: finished files cover offsets that come again. The checkpoint was moved back, or the state
  was lost and the offsets mean other events now. `rewind` says whether to stop or to replace every file from here on.

Lanes do this at the same time. It is safe because none removes files or notes of the present plan but its own, and
because a note goes only after the files it stands for.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterator
from typing import Literal

import orjson

from tidemill.errors import DeliveryError, Refused
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.sinks._shared.resume import superseded_error
from tidemill.sinks._shared.resume_scheme import ResumeScheme
from tidemill.sinks.files.batch_notes import BatchNote, Evidence, LaneShare
from tidemill.sinks.files.client import FileStore

log = logging.getLogger("tidemill.sinks.files")

PRIVATE = "_tidemill"  # readers of data lakes skip names that start with an underscore
_NOTES = f"{PRIVATE}/batches"
_DRAFTS = f"{PRIVATE}/drafts"
_OWNER = f"{PRIVATE}/owner.json"


class Journal:
    """One per sink and worker. Looks at the store at every delivery and keeps nothing about it in memory."""

    def __init__(self, store: FileStore, rewind: Literal["refuse", "replace"]) -> None:
        self._store = store
        self._rewind = rewind
        self._opened = False
        self._token = uuid.uuid4().hex[:12]

    def begin(self, delivery: Delivery, sink: str) -> Evidence:
        """Which notes of earlier attempts at these events there are. What this delivery's events tell of them is to be
        seen before `note`."""
        share = LaneShare.of(delivery)
        if not self._opened:
            self._own({"pipeline": delivery.pipeline, "sink": sink})
            for name, draft in _shares(self._store.list(_DRAFTS)):
                if not draft.same_plan(share):
                    self._store.remove(f"{_DRAFTS}/{name}")
            self._opened = True
        noted = [s for _, s in _shares(self._store.list(_NOTES))]
        begun = {s.start for s in noted if s.end <= share.start} | {share.start}
        open_ = [s for s in noted if s.end > share.start]
        self._check_in_time(delivery, [s for s in open_ if not s.same_plan(share)])
        if any(s.start not in begun for s in open_):
            self._replay(share, max(s.end for s in open_))
            self._forget(share, [self._note(s) for s in open_ if not s.same_plan(share)], share.start)
            return Evidence(delivery, ())
        if any(not s.same_plan(share) for s in open_):
            # Known to be begun even if nothing comes of it: what is cut anew is told from a rewind by it.
            self._put(self._note(share))
        return Evidence(delivery, [self._note(s) for s in open_])

    def draft(self, delivery: Delivery, number: int) -> str:
        # Not shared with an attempt that may still be writing elsewhere: each publishes whole files of its own.
        return f"{_DRAFTS}/{LaneShare.of(delivery)}-{number}-{self._token}.part"

    def note(self, delivery: Delivery, files: Collection[str], evidence: Evidence) -> None:
        """Called when the drafts are complete, before the first of them gets its name: makes room for them."""
        share = LaneShare.of(delivery)
        noted = [s for _, s in _shares(self._store.list(_NOTES))]
        self._check_alone(delivery, noted, evidence)
        before = self._note(share)
        left = sorted(set(before.files) - set(files))
        if files and (evidence.other_log or (before.files and not evidence.proven(before))):
            self._replay(share, max((n.share.end for n in evidence.notes if n.files), default=share.end))
            given_up = [note for note in evidence.notes if not note.share.same_plan(share)]
        else:
            given_up = [n for n in evidence.notes if evidence.proven(n) and not n.share.same_plan(share)]
        if not files:
            if not left:
                return
            self._dealt_anew(before)
        # Both lists until the old files are gone: killed in between, the next attempt still knows of them.
        records = evidence.records
        self._put(BatchNote(share, tuple({*left, *files}), records or before.records))
        for file in left:
            self._store.remove(file)
        if left:
            self._put(BatchNote(share, tuple(files), records))
        self._forget(share, given_up, 0)
        given_up_shares = {n.share for n in given_up}
        kept = {s.start for s in noted if s.start < share.start < s.end and s not in given_up_shares}
        for finished in noted:
            if finished.end <= share.start and finished.start not in kept:
                self._store.remove(f"{_NOTES}/{finished}.json")

    def _check_in_time(self, delivery: Delivery, others: Collection[LaneShare]) -> None:
        """`Refused` if one of these notes, of other plans, is by a later run or of a later batch of this one. The notes
        are looked into only where they are out of the ordinary."""
        if delivery.epoch is None:
            return
        for other in others:
            for record in self._note(other).records:
                if record.epoch and delivery.epoch.superseded(delivery.start, record.epoch, record.start):
                    raise superseded_error(delivery, other.start)

    def _check_alone(self, delivery: Delivery, noted: Collection[LaneShare], evidence: Evidence) -> None:
        """Nobody else took this batch, or a later one, while the drafts were written."""
        share, known = LaneShare.of(delivery), {note.share for note in evidence.notes}
        met = [s for s in noted if s.end > share.start and not s.same_plan(share) and s not in known]
        if later := [s for s in met if s.start >= share.end]:
            raise superseded_error(delivery, later[0].start)
        self._check_in_time(delivery, met)
        if met:
            raise DeliveryError(
                "another worker took up the same events with another plan", fix="It is tried again, after that one."
            )

    def _dealt_anew(self, before: BatchNote) -> None:
        """This lane made files of the batch before and has no events of it now. Whether these are with another lane,
        or gone with their log, only another lane's note can tell."""
        noted = (self._note(s) for _, s in _shares(self._store.list(_NOTES)) if s.same_plan(before.share))
        if not any(note.share != before.share and note.overlaps(before) for note in noted):
            raise DeliveryError(
                "the batch was dealt to lanes anew, and no other lane has its events yet",
                fix="It is tried again. If no event of it passes the processors any more, remove "
                f"{_NOTES}/{before.share}.json.",
            )

    def _forget(self, share: LaneShare, notes: Collection[BatchNote], first: Offset) -> None:
        """Removes attempts that this one replaces, a note only after the files it stands for; not files that begin
        before `first`."""
        if not notes:
            return
        files = [file for note in notes if note.share.start >= first for file in note.files]
        for file in files:
            self._store.remove(file)
        # There is always a note of the newest batch, or a later rewind would not be seen.
        self._put(self._note(share))
        for note in notes:
            self._store.remove(f"{_NOTES}/{note.share}.json")
        log.info("removed %d files of an attempt that was given up at offset %d", len(files), share.start)

    def _note(self, share: LaneShare) -> BatchNote:
        return BatchNote.decode(share, self._store.get(f"{_NOTES}/{share}.json"))

    def _put(self, note: BatchNote) -> None:
        self._store.put(f"{_NOTES}/{note.share}.json", note.encode())

    def _replay(self, share: LaneShare, reached: Offset) -> None:
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


class FilesResumption:
    """One delivery. Nothing is left out: what comes again is written again, under the same names. `files` are those
    that it makes, for `note`."""

    skipped = 0

    def __init__(self, journal: Journal, delivery: Delivery, sink: str) -> None:
        self.files: list[str] = []
        self._journal = journal
        self._delivery = delivery
        # A dead letter is a file more, and its offset no rewind.
        self._evidence = None if delivery.redelivered else journal.begin(delivery, sink)

    def fresh(self, block: Block) -> Block | None:
        if not block.rows:
            return None
        if self._evidence is not None:
            self._evidence.see(block)
        return block

    def note(self) -> None:
        if self._evidence is not None:
            self._journal.note(self._delivery, self.files, self._evidence)


def _shares(names: list[str]) -> Iterator[tuple[str, LaneShare]]:
    for name in names:
        if (share := LaneShare.parse(name)) is not None:
            yield name, share


RESUME = ResumeScheme(
    kept_in="a note per batch and lane in _tidemill/batches",
    bound_by="the note is there before a draft gets its name, and every name follows from the batch",
    replay="written again under the same name",
    resumption=FilesResumption,
)
