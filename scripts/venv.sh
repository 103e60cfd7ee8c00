#!/bin/sh
# Makes the virtual environment named by $1 and installs requirements.lock, hashes checked, and tidemill on top of it. The
# lock is complete: nothing is resolved (pip would not take the lock's psycopg for a dependency on psycopg[binary]).
# uv if it is there (seconds), else venv and pip (PySpark has to be built, which takes a minute or two).
set -eu
venv=$1

suits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
    if suits "$candidate"; then command -v "$candidate"; return; fi
  done
}

python=$(find_python)

if command -v uv >/dev/null 2>&1; then
  if ! suits "$venv/bin/python"; then
    rm -rf "$venv"
    uv venv --quiet --python "${python:->=3.11}" "$venv"
  fi
  echo "Installing into $venv (uv)"
  # Compiled now, once: every Spark worker is a Python of its own, and would compile all it imports at each start.
  uv pip install --quiet --python "$venv/bin/python" --compile-bytecode --require-hashes --no-deps -r requirements.lock
  uv pip install --quiet --python "$venv/bin/python" --no-deps -e .
  exit
fi

if [ -z "$python" ]; then
  echo "Python 3.11 or newer is needed and was not found. Install it, or name it: make venv PYTHON=/path/to/python3.11" >&2
  exit 3
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  # Debian keeps venv in a package of its own.
  package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    sh "$(dirname "$0")/apt.sh" "$package"
  else
    echo "$python has no venv module. Install the package $package, or uv." >&2
    exit 3
  fi
fi
if ! suits "$venv/bin/python" || [ ! -x "$venv/bin/pip" ]; then
  "$python" -m venv --clear "$venv"
fi
echo "Installing into $venv (pip; the first time takes a few minutes)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -e .
