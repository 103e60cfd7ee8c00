#!/bin/sh
# Installs the first of the named Debian packages that can be had. Root only; the caller has checked.
set -eu
export DEBIAN_FRONTEND=noninteractive
for attempt in as-is updated; do
  for package in "$@"; do
    echo "Installing $package"
    if apt-get install -qq -y --no-install-recommends -o Dpkg::Options::=--force-confold \
      -o DPkg::Lock::Timeout=120 "$package" >/dev/null 2>&1; then
      exit 0
    fi
  done
  [ "$attempt" = updated ] || apt-get update -qq >/dev/null 2>&1 || true
done
echo "None of these packages could be installed: $*" >&2
exit 1
