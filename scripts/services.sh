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

if [ ! -x /usr/sbin/mariadbd ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    # Debian would start a server of its own at once; the tests only want the binaries.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
      trap 'rm -f "$policy"' EXIT
      printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
    fi
    sh "$(dirname "$0")/apt.sh" mariadb-server || true
  fi
  [ -x /usr/sbin/mariadbd ] ||
    echo "MariaDB is missing: its tests are skipped. As root: apt-get install mariadb-server"
fi

command -v openssl >/dev/null 2>&1 || echo "openssl is missing: tests of TLS are skipped."

"$python" - <<'END'
from pathlib import Path

from tidemill.errors import EnvironmentProblem

try:
    from tidemill.lab.servers.kafka import fetch_jars

    fetch_jars(Path(".services") / "kafka")
except EnvironmentProblem as problem:
    print(f"No Kafka broker ({problem.what}): librdkafka's mock cluster stands in.")
END

"$python" - <<'END'
from pathlib import Path

from tidemill.lab.servers.mysql import fetch
from tidemill.errors import EnvironmentProblem

try:
    fetch(Path(".services") / "mysql")
except EnvironmentProblem as problem:
    print(f"MySQL is missing ({problem.what}): its tests are skipped. {problem.fix}")
END
