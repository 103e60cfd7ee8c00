"""The routes of the REST API, one module for each subject; `api/app.py` puts them together.

system        health, version, components, audit trail
pipelines     documents and lifecycle
schemas       the tables that it has captured
doctor        whether everything is there that it needs
checkpoints   how far it has come, and moving it
dead_letters  events that a sink will never take
log           captured events
snapshots     copies of its tables
verify        whether a sink has what the source has
replay        a part of the log once more
runs          runs of pipelines with a schedule
recovery      after a lost position
sensing       inferred schemas, drift
ddl           schema changes and decisions on them
events        server-sent events: status, batches, errors
"""
