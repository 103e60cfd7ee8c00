# The front door. `make` alone prints this table of contents.
#
# Every target sets up what it needs, may be run again without harm, and works as root or not.

SECONDS ?= 15
CYCLES  ?= 20
MINUTES ?= 30
WHAT    ?= postgres
ARGS    ?=
# Three test processes, a file at a time, in our order; each has servers and a Spark session of its own. Tests wait for servers, retries
# and deadlines half of their time: two processes left one of two cores idle.
SIDE_BY_SIDE ?= -n 3 --dist loadfile --no-loadscope-reorder
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.complete
# Java's classes as tests load them, so that Spark and Kafka start in a third of the CPU time. Without them tests only take longer.
CLASSES := build/spark.jsa build/kafka.jsa
# Decode and encode kernels are compiled once and kept here; Spark's workers inherit it.
export NUMBA_CACHE_DIR ?= $(CURDIR)/build/numba

# Some shells forbid .pyc files; then each of Spark's many Python processes compiles its imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo up ps logs down venv services java quick test check format lock bench figures crash soak docs clean

help: ## this table of contents
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo

##@ Look
demo: $(STAMP) java ## watch changes of a real PostgreSQL arrive (SECONDS=15)
	@$(BIN)/tidemill demo --seconds $(SECONDS) $(ARGS)
up: $(STAMP) services ## servers for the examples, on loopback: prints their addresses (ARGS="postgres kafka" for some)
	@$(BIN)/python -m tidemill.lab.stack up $(ARGS)
ps: $(STAMP) ## which of them are up
	@$(BIN)/python -m tidemill.lab.stack ps $(ARGS)
logs: $(STAMP) ## what they said last
	@$(BIN)/python -m tidemill.lab.stack logs $(ARGS)
down: $(STAMP) ## ends what `make up` started, and removes its data
	@$(BIN)/python -m tidemill.lab.stack down $(ARGS)
docs: $(STAMP) ## write the generated pages of docs/ anew
	@$(BIN)/python scripts/generate.py

##@ Work
venv: $(STAMP) ## .venv with tidemill and its tools, from requirements.lock
quick: $(STAMP) ## tests that need no server and no Spark, in three processes: a minute or two
	$(BIN)/pytest -q -m quick $(SIDE_BY_SIDE) $(ARGS)
test: $(STAMP) services $(CLASSES) ## every test, against real servers; of kill matrices a sample (ARGS="-k name")
	$(BIN)/pytest $(SIDE_BY_SIDE) --durations=30 $(ARGS)
check: $(STAMP) ## lint, formatting, types, import directions, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python scripts/generate.py --check
format: $(STAMP) ## let ruff format and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

##@ Prove
figures: $(STAMP) services ## the pictures of the docs, measured anew (twenty minutes; needs root, and nothing beside it)
	mkdir -p build/bench
	$(BIN)/tidemill bench postgres --mode real_time --mode micro_batch --large 0 --latency-seconds 0 --json --plot docs/images/bench-postgres.svg > build/bench/postgres.json
	$(BIN)/tidemill bench latency --rate 10 --rate 100 --rate 1000 --rate 10000 --seconds 10 --json --plot docs/images/bench-latency.svg > build/bench/latency.json
	$(BIN)/tidemill bench latency --cluster --seconds 10 --json --plot docs/images/bench-cluster.svg > build/bench/cluster.json
	$(BIN)/tidemill bench lanes --json --plot docs/images/bench-lanes.svg > build/bench/lanes.json
	$(BIN)/tidemill bench snapshot --json --plot docs/images/bench-snapshot.svg > build/bench/snapshot.json

bench: $(STAMP) services ## speed on this machine, WHAT=postgres, latency, lanes, mysql, sqlite, snapshot, sinks, formats, processors, sensing, server or profile (ARGS=--json)
	$(BIN)/tidemill bench $(WHAT) $(ARGS)
crash: $(STAMP) services $(CLASSES) ## kill -9 and compare, CYCLES=20 times, each sink and source at each failpoint
	TIDEMILL_MATRIX=whole TIDEMILL_CRASH_CYCLES=$(CYCLES) $(BIN)/pytest tests/crash tests/delivery --timeout 0 $(ARGS)
soak: $(STAMP) services $(CLASSES) ## the same for MINUTES=30, new seeds until time is up
	TIDEMILL_MATRIX=whole TIDEMILL_SOAK_MINUTES=$(MINUTES) $(BIN)/pytest tests/crash --timeout 0 $(ARGS)

##@ House-keeping
services: $(STAMP) java ## servers the tests want (installs them if root, else says what is missing)
	@sh scripts/services.sh $(BIN)/python
java: ## Java 17 or newer, which Spark needs (installs it if root)
	@sh scripts/java.sh
lock: ## requirements.lock anew (needs uv and a network)
	sh scripts/lock.sh
clean: ## everything that was built or fetched, except what is committed
	rm -rf $(VENV) build dist .services .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

build/%.jsa: $(STAMP) | services
	-@$(BIN)/python -m tests.support.$*_start $@

$(STAMP): requirements.lock pyproject.toml
	@sh scripts/venv.sh $(VENV)
	@touch $@
