"""Dead letters: what a sink will never take, kept with its reason until somebody delivers it again or lets it go.

record   one of them, and how they travel from a worker to the driver
store    the SQLite file they are kept in, its limits, and what happens when it is full
config   `dlq:` of a pipeline
"""

from tidemill.dlq.config import DlqConfig
from tidemill.dlq.record import DELIVER, DeadLetterRecord, pack, unpack
from tidemill.dlq.store import DeadLetters, Kept, Mark

__all__ = ["DELIVER", "DeadLetterRecord", "DeadLetters", "DlqConfig", "Kept", "Mark", "pack", "unpack"]
