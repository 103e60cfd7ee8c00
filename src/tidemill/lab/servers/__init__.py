"""Private servers, started and stopped by us: for the demo, the benches and the tests. Never for production.

process             a server as one child process; identity runs it where we are root, tls makes its certificate
data_server         a database that may be killed and goes on with its data
postgres            PostgreSQL
mysql               MySQL; mariadb its sibling, mysql_family what both have in common
kafka               Kafka, a real broker where there is one
nats                NATS with JetStream
valkey              Valkey or Redis
seaweedfs           S3
spark               a standalone Spark cluster; virtual_host another host on this machine
clickhouse_standin  the real engine under an HTTP front of ours
starrocks_standin   Stream Load and the MySQL side, as the manual says
http_receiver       takes what the http sink sends, by a script; collector the same of traces
"""
