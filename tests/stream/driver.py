"""A pipeline's driver as its own process, to be killed: delivers the log in its directory to a scribe, then exits.

python -m tests.stream.driver DIRECTORY LANES MAX_EVENTS [MASTER [MODE]]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.stream.conftest import TRIGGER, install_scribe
from tidemill.checkpoints.file import FileCheckpoints, FileConfig
from tidemill.config.spec import Batch, CommitPolicy, Trigger
from tidemill.dlq import DeadLetters
from tidemill.log import LogReader
from tidemill.state import open_store
from tidemill.stream.loop import StreamLoop
from tidemill.stream.position.commit_policy import Policy
from tidemill.stream.position.ledger import Ledger
from tidemill.stream.spark.session import create_session


def main(directory: Path, lanes: int, max_events: int, master: str = "local[2]", mode: str = TRIGGER.mode) -> None:
    log = str(directory / "log")
    spark = create_session("driver", master=master)
    install_scribe(spark, directory)
    policy = Policy.of("mill", CommitPolicy(), {"s": True})
    dead_letters = DeadLetters(directory / "dlq.sqlite")
    store, state = FileCheckpoints(FileConfig(), state_dir=directory), open_store(str(directory / "state.sqlite"))
    ledger = Ledger(policy, store, log, state=state)
    loop = StreamLoop(
        policy.groups[0], ledger, "source", log,
        [("scribe", {"id": "s", "directory": str(directory)})], spark=spark, spark_dir=directory / "spark",
        batch=Batch(max_events=max_events), lanes=lanes, dead_letters=dead_letters,
        trigger=Trigger.model_validate({"mode": mode}),
    )  # fmt: skip
    loop.start()
    deadline = time.monotonic() + 300
    while loop.checkpoint.offset < LogReader(log).tail().offset and time.monotonic() < deadline:
        if loop.await_end(1):
            break
    loop.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
