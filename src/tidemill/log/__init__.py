"""The change log: what capture appends and the stream delivers. The two loops share nothing else.

A log is a directory or a pyarrow.fs URI with

    <base offset>.seg     blocks, one after the other
    <base offset>.idx     one checked record per append; an append exists when its record does
    spill-*.seg           transactions still open at the source
    staging/              chunks of a snapshot, or rows from quarantine, that the writer has not adopted yet
    acknowledged.json     what the stream has delivered
    position.json         where the source stands while the log rests
    copying.json          tables whose rows are not all here yet
    copied.json           of those, when the rows were all here before
    quarantine.json       tables whose rows wait at a schema change
    gap.json              where something of the stream is missing, after a lost position
    writer.lock           held by the one writer

In a directory a segment grows to `segment_bytes`; in an object store each append is a segment.

    writer.py       appends; recovery.py finds first where the log ends, order.py keeps a table's blocks apart
    reader.py       reads, in any process; notice.py wakes it, backlog.py counts what is not delivered
    entry.py        the values: an append, a block's place, the end
    codec.py        a block as bytes
    index.py        the records of a segment
    spill.py        open transactions
    staging.py      segments that others wrote and the writer adopts
    requeued.py     rows that waited in quarantine and come again, quarantine.json
    bookmark.py     acknowledged.json, position.json; copying.py and gap.py the files of their names
    delivered.py    what the stream tells the log after a checkpoint: how far it is, and what may go
    store.py        where files live: local.py in a directory, objects.py in an object store
    config.py       `log:` of a pipeline
"""

from tidemill.log.config import LogConfig
from tidemill.log.delivered import acknowledge, trim
from tidemill.log.entry import BlockRef, Entry, Tail
from tidemill.log.reader import LogReader
from tidemill.log.writer import LogWriter

__all__ = ["BlockRef", "Entry", "LogConfig", "LogReader", "LogWriter", "Tail", "acknowledge", "trim"]
