"""`tidemill bench`: speed as ratios to a baseline measured in the same run, because machines are noisy.

command    the commands; show and plots are their output
material   blocks without a database; load the table and changes that databases get, drain runs a pipeline over a
           backlog, scratch its folder and servers
processes  CPU time and memory by the part that a process plays
profile    each stage alone
postgres   from end to end; mysql and sqlite likewise
soak       memory over time; soak_load the changes that are delivered meanwhile
latency    from commit to checkpoint: place on one machine or a cluster, steps by traces, alone the machine by itself
lanes      what more lanes bring; command_lanes its command
snapshot   copies of tables: copied the databases, copy_latency changes meanwhile
sinks      every sink beside the plainest client loop (baselines)
formats    wire formats; processors and sensing what is done to blocks before
server     what a server costs
"""

from __future__ import annotations

from tidemill.lab.bench.command import app

__all__ = ["app"]
