# Everything a clone needs: python3 (3.11 or newer) and make. `make` alone lists the targets.
# PYTHON=… chooses the interpreter that .venv is made from.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready
PIP    := $(PY) -m pip --disable-pip-version-check --no-input --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup up test test-long test-crash soak format bench lock audit clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## create .venv with the pinned versions

# The stamp lives inside .venv, and .venv is made anew, so no package of an older lock stays behind.
$(READY): pyproject.toml requirements.lock
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "error: $(PYTHON) not found; install Python 3.11 or newer, or run make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is $$("$(PYTHON)" --version 2>&1); Fairlead needs 3.11 or newer: run make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "setting up $(VENV)"
	@"$(PYTHON)" -m venv --clear $(VENV)
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

up: $(READY) ## set up and run Fairlead on this machine
	@$(PY) $(VENV)/bin/fairlead up

test: $(READY) ## format check, lint, types and tests
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	$(PY) -m mypy
	$(PY) -m pytest -n 2 --dist worksteal

test-long: $(READY) ## every test, the long ones too
	$(PY) -m pytest -n 2 --dist worksteal -m ""

test-crash: $(READY) ## 60 kills among 3,000 tasks, ten seeds: agents, spawners, guards and servers
	$(PY) -m pytest -n 2 -m long tests/agent/test_kill.py -rP

soak: $(READY) ## simulate trouble, seed after seed, until Ctrl-C or a failure; SOAK="--profile storm --first 1000"
	$(PY) -m fairlead.sim.soak $(SOAK)

format: $(READY) ## format the code and fix what the linter can
	$(PY) -m ruff format
	$(PY) -m ruff check --fix

bench: $(READY) ## run the benchmarks
	$(PY) -m bench

# Pins already in the lock stay as they are; `make lock UPGRADE=1` takes the newest of all.
lock: ## recompile requirements.lock from pyproject.toml
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && \
	"$(PYTHON)" -m venv "$$tools" && \
	"$$tools/bin/python" -m pip --disable-pip-version-check --no-input --quiet install uv && \
	"$$tools/bin/uv" pip compile pyproject.toml --group dev --universal --generate-hashes --no-emit-index-url \
		--no-header --quiet $(if $(UPGRADE),--upgrade) -o requirements.lock && \
	if grep -n '://' requirements.lock; then echo "error: requirements.lock names an address" >&2; exit 1; fi

# It asks a service on the network, so it is no part of the tests.
audit: ## look for known vulnerabilities in the pinned versions
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && \
	"$(PYTHON)" -m venv "$$tools" && \
	"$$tools/bin/python" -m pip --disable-pip-version-check --no-input --quiet install pip-audit && \
	"$$tools/bin/pip-audit" --requirement requirements.lock --disable-pip --require-hashes --strict --progress-spinner off

clean: ## remove what make and the tools created
	rm -rf $(VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache .schemathesis dist build site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
