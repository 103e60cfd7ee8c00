"""The REST and gRPC faces of `service/`: a handler parses, calls and renders.

serve.py         `tidemill serve`: one process with both, the metrics and the pipelines
app.py           all routes, and what every request passes: size, token, rate, idempotency key
connections.py   silent connections are closed
metrics_port.py  what Prometheus asks
guard.py         size of the body, who asks
rate.py          how many requests a second one caller may make
idempotency.py   the answer to a repeated POST
problems.py      errors as application/problem+json
shapes.py        what goes over the wire, for OpenAPI
examples.py      an example of every body and answer, for OpenAPI
access.py        the role that a route needs
system.py        health, version, components, audit trail
pipelines.py     documents and lifecycle
schemas.py       the tables that it has captured
doctor.py        whether everything is there that it needs
checkpoints.py   how far it has come, and moving it
dead_letters.py  events that a sink will never take
log.py           captured events
snapshots.py     copies of its tables
verify.py        whether a sink has what the source has
replay.py        a part of the log once more
runs.py          runs of pipelines with a schedule
recovery.py      after a lost position
sensing.py       inferred schemas, drift
ddl.py           schema changes and decisions on them
events.py        server-sent events: status, batches, errors
rpc/             the same over gRPC
proto/           its interface, for clients in any language
client.py        REST from Python
"""
