# The front door. `make` alone prints this table of contents.
#
# Every target sets up what it needs, may be run again without harm, and works as root or not.

SECONDS ?= 15
CYCLES  ?= 20
MINUTES ?= 30
WHAT    ?= postgres
ARGS    ?=
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.complete
# Decode and encode kernels are compiled once and kept here; Spark's workers inherit it.
export NUMBA_CACHE_DIR ?= $(CURDIR)/build/numba

# Some shells forbid .pyc files; then each of Spark's many Python processes compiles its imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo venv services java quick test check format lock bench crash soak docs clean

help: ## this table of contents
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo

##@ Look
demo: $(STAMP) java ## watch changes of a real PostgreSQL arrive (SECONDS=15)
	@$(BIN)/tidemill demo --seconds $(SECONDS) $(ARGS)
docs: $(STAMP) ## write the generated pages of docs/ anew
	@$(BIN)/python scripts/generate.py

##@ Work
venv: $(STAMP) ## .venv with tidemill and its tools, from requirements.lock
quick: $(STAMP) ## tests that need no server and no Spark, in less than two minutes
	$(BIN)/pytest -q -m quick $(ARGS)
test: $(STAMP) services ## every test, against real servers; of kill matrices a sample (ARGS="-k name")
	$(BIN)/pytest --durations=30 $(ARGS)
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
bench: $(STAMP) services ## speed on this machine, WHAT=postgres, mysql, sinks, formats or profile (ARGS=--json)
	$(BIN)/tidemill bench $(WHAT) $(ARGS)
crash: $(STAMP) services ## kill -9 and compare, CYCLES=20 times, each sink and source at each failpoint
	TIDEMILL_MATRIX=whole TIDEMILL_CRASH_CYCLES=$(CYCLES) $(BIN)/pytest tests/crash tests/delivery --timeout 0 $(ARGS)
soak: $(STAMP) services ## the same for MINUTES=30, new seeds until time is up
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

$(STAMP): requirements.lock pyproject.toml
	@sh scripts/venv.sh $(VENV)
	@touch $@
