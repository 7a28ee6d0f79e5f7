# Needs make, Python 3.11 or newer and Java 17 or 21; everything else goes into .venv and a cache in the home folder.
#
#   make demo    the whole thing on real flights, in five minutes (KEEP=1 leaves it running)
#   make test    every test                      make check   the fast ones, with linters and types
#   make up      a local cluster on ./keytide-data (ARGS="--nodes 3")
#   make bench   benchmarks (ARGS="live --json") make soak    the long fault run
#   make site    the documentation site              make reference  docs/reference, from the code
#   make performance   docs/performance.md with its plots, from benchmarks/results
#   make setup   only .venv                      make clean   remove what these made, but no data

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILE = CUSTOM_COMPILE_COMMAND="make requirements" $(BIN)/pip-compile --quiet --upgrade --generate-hashes \
	--allow-unsafe --strip-extras --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options
# Compiled files are kept, whatever the environment says: tests start Python some hundred times.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q --durations=10
FAST := tests/unit tests/property tests/simulation

.DEFAULT_GOAL := help
.PHONY: help setup jars archive lint style types check fast test demo up hosts bench soak site reference performance requirements format clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

setup: $(STAMP)

# Build tools first: pyspark comes as source, and is built with these pinned ones instead of whatever is newest today.
$(STAMP): requirements.txt requirements-build.txt pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "Keytide needs Python 3.11 or newer; found: $$(python3 --version 2>&1 || true)." >&2; \
		echo "Install it (Debian, Ubuntu: sudo apt-get install python3 python3-venv), or say where: make PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	@if [ ! -x $(BIN)/python ] || ! $(BIN)/python -c '' 2>/dev/null; then \
		echo "Making $(VENV) with $$($(PYTHON) --version) ..."; \
		$(PYTHON) -m venv --clear $(VENV) || { echo "On Debian and Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }; fi
	@echo "Installing Python packages (once; about a minute) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-build.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation -r requirements.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

jars: $(STAMP)
	@$(BIN)/python -m deploy.jars >/dev/null

# Optional: builds begin some seconds sooner.
archive: jars
	@$(BIN)/python -m deploy.archive >/dev/null

lint: style types

style: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

# Types beside tests: mypy has one thread, and where it begins anew (a clone, a new release of it) a minute's work.
check: style
	@$(MAKE) --no-print-directory --jobs 2 types fast

# Of what is generated, a share (tests/share.py); `make test` has a larger one, `make soak` all of it.
fast: $(STAMP)
	$(PYTEST) -n 3 --dist worksteal -m "not slow" $(FAST)

test: lint archive
	KEYTIDE_EXAMPLES=8 $(PYTEST) -n 3 --dist worksteal $(FAST)
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder tests/integration tests/hosts tests/browser

# Three hosts to try things on, as root.
hosts: jars
	@$(BIN)/python -m tests.hosts

demo: jars
	@$(BIN)/keytide demo $(ARGS)

up: jars
	@$(BIN)/keytide up $(ARGS)

bench: jars
	@$(BIN)/python -m benchmarks $(ARGS)

soak: jars
	KEYTIDE_EXAMPLES=all $(PYTEST) -n 3 --dist worksteal $(FAST)
	$(BIN)/python -m tests.soak
	KEYTIDE_MATRIX=all $(PYTEST) tests/integration tests/hosts
	$(BIN)/python -m tests.chaos --minutes $${KEYTIDE_MINUTES:-60} --seed $${KEYTIDE_SEED:-1} $(ARGS)
	$(BIN)/python -m tests.hosts --soak --minutes 10 --seed $${KEYTIDE_SEED:-1}

# The documentation site, in build/site (`make check` builds it too, and looks at its links).
site: $(STAMP)
	@$(BIN)/python -m tests.site

reference: $(STAMP)
	@$(BIN)/python -m tests.reference

# After a benchmark whose figures are to be kept.
performance: $(STAMP)
	@$(BIN)/python -m benchmarks.report

# Compiles pyproject.toml into the two pinned lists; the only thing that changes versions.
requirements: $(STAMP)
	$(COMPILE) --extra demo --extra dev --extra sql --output-file requirements.txt pyproject.toml
	$(COMPILE) --only-build-deps --build-deps-for editable --output-file requirements-build.txt pyproject.toml

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -not -path './keytide-data/*' -prune -exec rm -rf {} +
