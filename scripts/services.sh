#!/bin/sh
# Servers that the tests use beside the embedded PostgreSQL 18. What cannot be had is said, and its tests are skipped.
set -eu
python=$1

if [ ! -x /usr/lib/postgresql/15/bin/postgres ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    # Debian would create and start a cluster of its own; the tests only want the binaries.
    if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
      mkdir -p /etc/postgresql-common
      echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    fi
    sh "$(dirname "$0")/apt.sh" postgresql-15 || true
  fi
  [ -x /usr/lib/postgresql/15/bin/postgres ] ||
    echo "PostgreSQL 15 is missing: its tests are skipped. As root: apt-get install postgresql-15"
fi

command -v openssl >/dev/null 2>&1 || echo "openssl is missing: tests of TLS are skipped."

"$python" - <<'END'
from pathlib import Path

from tidemill.errors import EnvironmentProblem

try:
    from tidemill.control.servers.kafka import fetch_jars

    fetch_jars(Path(".services") / "kafka")
except EnvironmentProblem as problem:
    print(f"No Kafka broker ({problem.what}): librdkafka's mock cluster stands in.")
END
