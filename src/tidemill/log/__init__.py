"""The change log: what capture appends and the stream delivers. The two loops share nothing else.

A log is a directory or a pyarrow.fs URI with

    <base offset>.seg     blocks, one after the other (codec.py)
    <base offset>.idx     one checked record per append; an append exists when its record does (index.py)
    spill-*.seg           transactions still open at the source (spill.py)
    acknowledged.json     what the stream has delivered (bookmark.py)
    position.json         where the source stands while the log rests
    writer.lock           held by the one writer

In a directory a segment grows to `segment_bytes`; in an object store each append is a segment.
"""

from tidemill.log.config import LogConfig
from tidemill.log.delivered import acknowledge, trim
from tidemill.log.entry import BlockRef, Entry, Tail
from tidemill.log.reader import LogReader
from tidemill.log.writer import LogWriter

__all__ = ["BlockRef", "Entry", "LogConfig", "LogReader", "LogWriter", "Tail", "acknowledge", "trim"]
