"""Segments that others write beside the log, and that its only writer adopts: a snapshot's chunks, read by Spark tasks.

    staging/<id>/<part>.….arrow   blocks of one task, offsets counted from its own first row
    staging/<id>/manifest.json    written last: what belongs together, in which order

Whoever stages needs no lock, and nobody sees what is staged. `LogWriter.adopt` gives the parts a second name, that of a
segment, and then writes one index record: that is the moment from which all of it is visible (invariant 3), at offsets
that are assigned there. Only then the staged names go. So a crash at any point leaves either a manifest that can be
adopted, or an append whose staged names recovery removes; never half of it, and never twice.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import orjson

from tidemill.errors import BadAppend, LogError, StagingLost
from tidemill.log.entry import BlockRef, Constants, block_from_doc, block_to_doc
from tidemill.log.spill import place
from tidemill.log.store import Store, open_store
from tidemill.model.barrier import Barrier
from tidemill.model.block import Block
from tidemill.model.position import Offset, Position
from tidemill.telemetry.failpoints import failpoint

FOLDER = "staging"
_MANIFEST = "manifest.json"
_FORMAT = 1
# It becomes part of a segment's name, where a hyphen divides.
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]{0,99}")


@dataclass(frozen=True, slots=True)
class Part:
    """One file of blocks. Their `first` and `last` count from its own first row."""

    file: str
    events: int
    blocks: tuple[BlockRef, ...]

    @property
    def bytes(self) -> int:
        return sum(ref.size for ref in self.blocks)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is adopted together. The parts' events follow each other in this order."""

    id: str
    parts: tuple[Part, ...]

    @property
    def events(self) -> int:
        return sum(part.events for part in self.parts)

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(part.bytes for part in self.parts)

    def to_json(self) -> bytes:
        parts = [
            {"file": part.file, "events": part.events, "blocks": [block_to_doc(0, ref) for ref in part.blocks]}
            for part in self.parts
        ]
        return orjson.dumps({"format": _FORMAT, "id": self.id, "parts": parts})

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        doc = orjson.loads(data)
        parts = tuple(
            Part(
                part["file"], part["events"],
                tuple(block_from_doc({"base": 0, "barriers": []}, block, part["file"]) for block in part["blocks"]),
            )
            for part in doc["parts"]
        )  # fmt: skip
        return cls(doc["id"], parts)


@dataclass(frozen=True, slots=True)
class Staged:
    """What is to be adopted under one id. Rows that lack position, transaction and time get `constants`."""

    manifest: Manifest
    constants: Constants | None = None


@dataclass(frozen=True, slots=True)
class Adoption:
    """One append of what was staged under any number of ids. `through` is where the source resumes after it."""

    staged: tuple[Staged, ...]
    through: Position
    barrier: Barrier = Barrier.NONE
    divisible: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(each.manifest.id for each in self.staged)

    @property
    def events(self) -> int:
        return sum(each.manifest.events for each in self.staged)

    def parts(self) -> Iterator[tuple[Staged, int, Part]]:
        """In the order of their events; the number counts those of one id."""
        for each in self.staged:
            for number, part in enumerate(each.manifest.parts):
                yield each, number, part


class Staging:
    """For who stages under one id: any number of processes write parts, one of them seals. An id is used once."""

    def __init__(self, log: str | Store, id: str) -> None:
        if not _ID.fullmatch(id):
            raise ValueError(f"not an id for staged segments: {id!r}")
        self.id = id
        self._store = open_store(log)

    def write(self, part: str, blocks: Iterable[Block]) -> Part:
        """Durable when it returns. A task may be run twice: each has a file of its own, and the parts that are sealed
        choose one, so that no late one writes into a file that the log has. Offsets in the blocks count from 0 over the
        whole part. What it returns is small enough to go home with a task's receipt."""
        if not _ID.fullmatch(part):
            raise ValueError(f"not a name for a part of staged segments: {part!r}")
        name = f"{FOLDER}/{self.id}/{part}.{uuid.uuid4().hex[:12]}.arrow"
        refs, buffers = place(blocks, name, 0, 0)
        events = sum(ref.rows for ref in refs)
        if max((ref.last for ref in refs), default=0) != events:
            raise BadAppend(f"the {events} events of a staged part are not counted from 0", where=self._store.label)
        self._store.write(name, 0, buffers)
        self._store.release(name)
        failpoint("log.staged")
        return Part(name, events, tuple(refs))

    def seal(self, parts: Iterable[Part]) -> Manifest:
        """From here on it may be adopted. Parts without events are left out. The others are on disk; the manifest need
        not be: without it, as after a power cut, or torn, nobody takes them for anything."""
        manifest = Manifest(self.id, tuple(part for part in parts if part.events))
        self._store.replace(f"{FOLDER}/{self.id}/{_MANIFEST}", manifest.to_json(), durable=False)
        failpoint("log.staging_sealed")
        return manifest

    def manifest(self) -> Manifest | None:
        """None when it is not sealed, or was adopted."""
        return read_manifest(self._store, self.id)

    def drop(self) -> None:
        """Gives up what was staged."""
        remove(self._store, self.id)


def read_manifest(store: Store, id: str) -> Manifest | None:
    data = store.read(f"{FOLDER}/{id}/{_MANIFEST}")
    if not data:
        return None
    try:
        return Manifest.from_json(data)
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise StagingLost(f"the manifest of the staged segments {id} cannot be read", where=store.label) from error


def link(store: Store, adoption: Adoption, base: Offset) -> tuple[BlockRef, ...]:
    """Gives the parts names of the segment at `base`, beside their own, and the blocks their places in the log.
    `StagingLost` if a part is gone. `unlink` undoes it."""
    refs: list[BlockRef] = []
    start = base
    try:
        for staged, number, part in adoption.parts():
            if (store.size(part.file) or 0) != part.bytes:
                what = f"a part of the staged segments {staged.manifest.id} is gone or cut: {part.file}"
                raise StagingLost(what, where=store.label)
            name = store.own(f"{base:020d}-{staged.manifest.id}-{number:06d}.seg")
            store.copy(part.file, name)
            refs += [_place(ref, name, start, staged.constants, adoption.barrier) for ref in part.blocks]
            start += part.events
            failpoint("log.adopt_linked")
    except BaseException:
        unlink(store, refs)
        raise
    return tuple(refs)


def _place(ref: BlockRef, segment: str, start: Offset, same: Constants | None, barrier: Barrier) -> BlockRef:
    placed = replace(
        ref, segment=segment, base=start, first=start + ref.first, last=start + ref.last, barrier=bool(barrier)
    )
    if same is None:
        return placed
    return replace(placed, position=same.position, tx_id=same.tx_id, commit_time=same.commit_time)


def unlink(store: Store, refs: Iterable[BlockRef]) -> None:
    for name in {ref.segment for ref in refs}:
        try:
            store.remove(name)
        except LogError:  # no index names it: it goes when the log is opened again
            continue


def bases_of(names: Iterable[str], ids: Collection[str]) -> list[tuple[str, Offset]]:
    """Where files say that they were adopted under these ids. Only an index record is proof."""
    found = set()
    for name in names:
        if name.endswith(".seg") and name[20:21] == "-" and (id := name[21:].partition("-")[0]) in ids:
            found.add((id, int(name[:20])))
    return sorted(found)


def is_of(segment: str, id: str) -> bool:
    """Whether the segment holds what was staged under this id."""
    return f"-{id}-" in segment


def ids(store: Store) -> list[str]:
    """Of everything that is staged, sealed or not."""
    return sorted({name.split("/")[1] for name in store.below(FOLDER)})


def remove(store: Store, id: str) -> None:
    """The manifest first: what is left of a removal that is cut short can no longer be adopted."""
    store.remove(f"{FOLDER}/{id}/{_MANIFEST}")
    failpoint("log.staging_unsealed")
    for name in store.below(f"{FOLDER}/{id}"):
        store.remove(name)
        failpoint("log.staging_part_removed")
    store.remove_folder(f"{FOLDER}/{id}")


def sweep(store: Store, adopted: Callable[[str], bool], staged_by_somebody: Callable[[str], bool]) -> list[str]:
    """What a writer that opens the log removes: what was adopted, and what nobody will finish or adopt any more."""
    gone = [id for id in ids(store) if adopted(id) or not staged_by_somebody(id)]
    for id in gone:
        remove(store, id)
    return gone


def drop_staged(log: str, unwanted: Callable[[str], bool]) -> None:
    """Gives up what is staged under such ids. Who adopts one of them meanwhile finds `StagingLost`, or has given its
    parts their second names already."""
    store = open_store(log)
    for id in filter(unwanted, ids(store)):
        remove(store, id)
