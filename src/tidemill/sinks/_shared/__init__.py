"""What several sinks need.

encoded        settings of sinks with a wire format; lines and in_order are their deliveries, routing names from
               templates
prefetch       the next piece is made while the server is busy with the last
resume_scheme  the contract of every `resume.py`; resume and pg_resume keep the note at the destination, history in a
               table
images         rows of sinks with tables; upserts their current rows by key, unfollowed those that cannot follow a
               change
places         what a sink occupies; table_name what a table is called in its statements
pg_client      connections of postgres and pgstream; pg_checks what `doctor` asks of both
replayed       rows that events amount to, for `verify`; audit_store and exact_json what it compares with
"""
