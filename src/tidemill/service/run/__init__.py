"""One pipeline while it runs: its capture process, its streams, its state, and who hears of it.

supervisor       one pipeline through all its runs; pipeline_run is one of them
capture_process  its capture; capture_fork_server where a server forks it
stream_group     the stream of one group of sinks, stream_groups those of a pipeline; spark_session is shared by all
trigger_modes    who is in real time, where the session has few slots
session_slots    who holds which slots of the session, and what is left for those that start
ownership        who may work on the state directory
status           what it looks like from outside: lag, notices, dead_letters and quarantines are parts of it
record           its changes of state, in the state store
subscribers      who hears of it; metering feeds metrics, run_sensing sends drift to a sink
once             `run --once`; interrupts are an operator's signals, start_profile where the time of a start goes
"""
