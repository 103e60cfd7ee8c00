#!/bin/sh
# Pins every dependency, extra and tool with its hashes, for any Python from 3.11 on. No host names get into the file.
set -eu
uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 --upgrade \
  --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-package tidemill --quiet -o requirements.lock
# The image has the same versions of what it needs, and nothing else.
uv pip compile pyproject.toml --extra kafka --extra redis --extra clickhouse --extra nats --extra s3 --extra server \
  --extra schedule --extra javascript --extra sql --extra turso --universal --python-version 3.11 -c requirements.lock \
  --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-package tidemill --quiet \
  -o deploy/container/requirements.lock
