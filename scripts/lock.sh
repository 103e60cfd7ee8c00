#!/bin/sh
# Pins every dependency, extra and tool with its hashes, for any Python from 3.11 on. No host names get into the file.
set -eu
uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 --upgrade \
  --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-package tidemill --quiet -o requirements.lock
