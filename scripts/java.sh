#!/bin/sh
# Spark runs on Java 17 or newer.
set -eu

major() {
  command -v java >/dev/null 2>&1 && java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

[ "$(major || true)" ] && [ "$(major)" -ge 17 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  sh "$(dirname "$0")/apt.sh" openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless
  [ "$(major)" -ge 17 ] && exit 0
fi
echo "Java 17 or newer is needed by Spark and was not found. Install one (Debian: openjdk-17-jre-headless) and try again." >&2
exit 3
