"""Tables that change on their way through the stream, as the driver of one group sees it.

barrier      makes a schema change at every sink before rows go on; known_table is what a sink has since
decisions    what a decision on a schema change means for the barrier, and when the wait for one is over
quarantine   tables whose rows are left out until their schema change is decided
structures   the columns that processors give; known_file is their way to Spark's planning
sensing      what lanes saw of the events' schemas, merged, compared and kept
"""
