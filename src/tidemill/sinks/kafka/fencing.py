"""Which transactional ids of a sink may still be in somebody's hands: what keeps workers of an older plan from writing.

A lane's transactional id names the lane and the plan's shape (how many lanes, dealt how). The same lane of the same
shape is fenced by its heir, which takes its id. A batch that is dealt to another number of lanes has other ids, and an
event may be in any lane of the older plan. So whoever opens a lane

1. takes its own id (`init_transactions`);
2. marks its shape in partition 0 of the positions topic;
3. reads the marks, and takes every id of every other shape that was marked since it was last fenced, which aborts their
   open transactions and fences their producers;
4. and only then reads back what was delivered.

Two workers of different shapes never pass unseen: the one that marked later reads the other's mark, whose id was taken
before it was marked. Workers of one shape leave each other alone. Marks are written outside of transactions: a reader
of committed records would otherwise stop before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset

PARTITION = 0
_MARK, _FENCED = "mark/", "fenced/"
_BEFORE_SHAPES, _LANES_BEFORE = "", 16  # ids of earlier releases named the lane alone, and kept no list of them


@dataclass(frozen=True, slots=True)
class Shape:
    """How a plan deals events to lanes. Of one shape, an event is always in the same lane."""

    lanes: int
    by: str

    @classmethod
    def of(cls, delivery: Delivery) -> Shape:
        return cls(delivery.lanes, delivery.by)

    def __str__(self) -> str:
        return f"{self.lanes}-{self.by}"

    def transactional_id(self, prefix: str, lane: int) -> str:
        return f"{prefix}{self.by}/{lane}of{self.lanes}"


@dataclass(slots=True)
class Marks:
    """Of one sink: where each shape was marked last, with its lanes, and up to which mark it was fenced."""

    prefix: str
    marked: dict[str, tuple[Offset, int, str]] = field(default_factory=dict)
    fenced: dict[str, Offset] = field(default_factory=dict)
    highest_lane: int = -1  # of the records that were met; -1 if nothing was delivered yet

    def see(self, offset: Offset, key: str, value: bytes) -> None:
        """A message of the positions topic, ours or not."""
        if not key.startswith(self.prefix):
            return
        name = key[len(self.prefix) :]
        lane = name.partition("/")[0]
        if lane.isdigit():
            self.highest_lane = max(self.highest_lane, int(lane))
        elif name.startswith(_MARK):
            mark = orjson.loads(value)
            self.marked[name[len(_MARK) :]] = offset, mark["lanes"], mark["by"]
        elif name.startswith(_FENCED):
            shape = name[len(_FENCED) :]
            self.fenced[shape] = max(orjson.loads(value), self.fenced.get(shape, -1))

    def strangers(self, own: Shape) -> dict[str, tuple[Offset, list[str]]]:
        """Of each other shape that may have unfenced workers: its last mark, and its transactional ids."""
        found: dict[str, tuple[Offset, list[str]]] = {}
        for name, (offset, lanes, by) in self.marked.items():
            if name != str(own) and offset > self.fenced.get(name, -1):
                shape = Shape(lanes, by)
                found[name] = offset, [shape.transactional_id(self.prefix, lane) for lane in range(lanes)]
        if _BEFORE_SHAPES not in self.fenced:  # once in a sink's life
            count = max(_LANES_BEFORE, self.highest_lane + 1) if self.highest_lane >= 0 else 0
            found[_BEFORE_SHAPES] = 0, [f"{self.prefix}{lane}" for lane in range(count)]
        return found

    def mark(self, own: Shape) -> tuple[str, bytes]:
        """The message that says: this shape is in use."""
        return f"{self.prefix}{_MARK}{own}", orjson.dumps({"lanes": own.lanes, "by": own.by})

    def fence(self, shape: str, offset: Offset) -> tuple[str, bytes]:
        """The message that says: workers up to this mark are fenced."""
        return f"{self.prefix}{_FENCED}{shape}", orjson.dumps(offset)


def is_record(key: str, prefix: str) -> bool:
    """Whether a message of the positions topic is a lane's record, and not one of ours."""
    return key.startswith(prefix) and key[len(prefix) :].partition("/")[0].isdigit()


def read_marks(settings: Mapping[str, str], topic: str, prefix: str, until: Callable[[], bool], logger: Any) -> Marks:
    """To the very end, open transactions or not. `TimeoutError` when `until` says that it takes too long."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    wait = {"enable.partition.eof": "true", "fetch.wait.max.ms": "10", "isolation.level": "read_uncommitted"}
    base = {**settings, **wait, "group.id": f"{prefix}positions", "enable.auto.commit": "false"}
    marks = Marks(prefix)
    reader = Consumer(base, logger=logger)
    try:
        partition = TopicPartition(topic, PARTITION)
        low, high = reader.get_watermark_offsets(partition, timeout=30)
        reader.assign([TopicPartition(topic, PARTITION, low)])
        while low < high:
            if until():
                raise TimeoutError(f'the marks in "{topic}" could not be read in time')
            message = reader.poll(0.5)
            if message is None:
                continue
            if (error := message.error()) is None:
                marks.see(message.offset(), message.key().decode(), message.value())
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif message.offset() >= high:
                break
    finally:
        reader.close()
    return marks
