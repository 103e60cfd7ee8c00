"""Loop one: from the database into the change log. Its own process, so that it may be killed and restarted alone.

__main__      the process: `python -m tidemill.capture`, started by `tidemill run`; fork_server forks those of a
              server
loop          the loop itself
open_log      opens the log for writing
snapshot      brings chunks of tables into the log where they belong; window is what of a chunk may still be said then,
              shared_windows one for all chunks that wait, portions how much comes beside changes, copied_tables which
              tables have come whole, copying_notes what the log says of it
confirmed     the position that was confirmed to the source
recovery      begins anew after a lost position; failed_transaction is the one that an operator may skip
requeue       rows of a table that waited in quarantine, once more
catalog_scan  the catalog against the registry, by interval
lease         until when the process may work; signals ends it
status        what it says of itself: effort how busy it is, trace its half of a trace, source_end for `run --once`
"""
