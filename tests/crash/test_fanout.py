"""Two sinks of one pipeline, one of them optional and sometimes away, while the processes around them are killed.

Both must end up with every event, once: each group of sinks has its own position to come back to.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.crash.actors import RunActor, on_stage, uncounted_changes, wait_for, write_pipeline
from tests.crash.delivered import from_files
from tests.crash.postgres import PostgresHarness
from tests.crash.replay import Replay
from tests.crash.workload import Load
from tidemill.service.position.positions import sink_positions

# The first two end the driver, the last a worker: a new driver takes seconds, so that there are no more than needed.
FAILPOINTS = ("stream.delivered:3", "stream.checkpointed:3", "worker.written:3")
_SECONDS = 180


def test_an_optional_sink_that_is_away_while_all_is_killed_misses_nothing_and_doubles_nothing(
    source: PostgresHarness, evidence: Path
) -> None:
    main, beside, away = evidence / "main", evidence / "beside", evidence / "away"
    beside.mkdir()
    sinks = [
        {"type": "files", "config": {"id": "main", "path": str(main)}},
        {"type": "files", "config": {"id": "beside", "path": str(beside), "required": False}},
    ]
    run = RunActor(evidence, write_pipeline(evidence, source.source("proof"), sinks), FAILPOINTS[0])

    def reached() -> int:
        kept = [at.checkpoint for at in sink_positions(run.pipeline)]
        return min(each.offset if each else 0 for each in kept)

    with on_stage(run):
        run.begin(source)
        with Load(source, seed=5, pause=0.08, rows_per_second=800).running():
            for point in FAILPOINTS:
                if run.crash_at != point:
                    wait_for(lambda: not run.alive, _SECONDS, "the driver lives")
                    if beside.is_dir():  # a file where the directory was: nothing can be written there
                        beside.rename(away)
                        beside.write_text("not a directory")
                    run.crash_at = point
                    run.keep_running()
                run.wait_for_failpoint(_SECONDS)
            wait_for(lambda: "stream.retrying" in run.output, _SECONDS, "nobody missed the sink")
            beside.unlink()
            away.rename(beside)
            time.sleep(0.5)
        run.crash_at = ""
        expected = source.tally().total()

        def caught_up() -> bool:
            run.keep_running()
            return reached() >= expected + uncounted_changes(run.pipeline, source)

        wait_for(caught_up, _SECONDS, lambda: f"{reached()} of {expected} delivered:\n{run.testimony()}")
        assert run.stop() == 0, run.output[-5000:]
    for directory in (main, beside):
        replay = Replay(source.keys, counts_ddl=source.COUNTS_DDL)
        replay.take(from_files(directory))
        found = replay.compare(source)
        assert not found, f"{directory.name}:\n" + "\n".join(found[:20])
        assert (replay.duplicates, replay.events) == (0, expected), directory.name
