"""The REST and gRPC faces of `service/`: a handler parses, calls and renders.

serve.py         `tidemill serve`: one process with both, the metrics and the pipelines
app.py           all routes, and what every request passes: size, token, rate, idempotency key
connections.py   silent connections are closed
ports.py         addresses, TLS files, the port of metrics
metrics_port.py  what Prometheus asks
federated_metrics.py   and those of its workers with them
guard.py         size of the body, who asks
rate.py          how many requests a second one caller may make
event_journal.py the last events of all pipelines, for streams that were cut
sse.py           server-sent events: how many streams, and how long
idempotency.py   the answer to a repeated POST
pages.py         long lists a page at a time
problems.py      errors as application/problem+json
shapes.py        what goes over the wire, for OpenAPI
wire_shape.py    what all bodies have in common
examples.py      an example of every body and answer, for OpenAPI
access.py        the role that a route needs
routes/          one module for each subject: documents and lifecycle, dead letters, snapshots, …
rpc/             the same over gRPC
proto/           its interface, for clients in any language
client.py        REST from Python
local_client.py  the same calls on a state store, without a server's address
"""
