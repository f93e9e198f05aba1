# Everything a clone needs: python3 (3.11 or newer) and make. `make` alone lists the targets.
# PYTHON=… chooses the interpreter that .venv is made from.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools
PIP    := -m pip --disable-pip-version-check --no-input --quiet

# The tools of the documentation have an environment of their own, so that the tests do not wait for them.
DOCS_VENV  := .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup page beside up test types tests test-kubernetes test-prometheus test-long test-crash soak format generate bench first-minutes docs dist lock audit clean

# Ends with an error unless PYTHON is there and new enough.
define check_python
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "error: $(PYTHON) not found; install Python 3.11 or newer, or run make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is $$("$(PYTHON)" --version 2>&1); Fairlead needs 3.11 or newer: run make PYTHON=/path/to/python" >&2; exit 1; }
endef

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

setup: beside $(TOOLS) ## create .venv with the pinned versions and the tools of the tests, and build the web page
	$(try_page)

page: $(READY) ## build the web page, unless it is newer than its sources
	@"$(PYTHON)" bootstrap.py page

# The page is built while packages are installed, and `up` does not wait for it.
beside:
	$(check_python)
	@"$(PYTHON)" bootstrap.py beside

# Without a registry of npm there is no page; everything else works.
try_page = @"$(PYTHON)" bootstrap.py page || true

# What running needs. The stamps live inside .venv, and .venv is made anew, so no package of an older lock stays behind.
$(READY): pyproject.toml requirements.lock requirements-dev.lock
	$(check_python)
	@"$(PYTHON)" bootstrap.py run
	@touch $@

# The tools of the tests, added to it.
$(TOOLS): $(READY)
	@"$(PYTHON)" bootstrap.py tools
	@touch $@

up: beside $(READY) ## set up and run Fairlead on this machine; UP="--port 7171" for its options
	@$(PY) $(VENV)/bin/fairlead up $(UP)

test: beside $(TOOLS) ## format check, lint, types and tests
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	@$(MAKE) --no-print-directory -j 2 types tests
	@echo "tests with a Kubernetes cluster left out: make test-kubernetes runs them"
	@echo "tests with a Prometheus left out: make test-prometheus runs them"

# Beside the tests, so that these do not wait for it.
types: $(TOOLS)
	nice $(PY) -m mypy

tests: $(TOOLS)
	$(PY) -m pytest -n 2 --dist worksteal

# With BRIEF, tests that cannot be run because nothing can be built are left out, and that is no error.
test-kubernetes: $(TOOLS) ## tests with a real Kubernetes cluster; builds it once into a cache, with Go; BRIEF=1 for those of CI, KUBERNETES="-m kubernetes" for the long ones too
	@if $(PY) -m tests.kubernetes.cluster.programs $(if $(BRIEF),--brief); then \
		$(PY) -m pytest tests/kubernetes $(or $(KUBERNETES),-m "$(if $(BRIEF),brief,kubernetes and not long)"); \
	else test -n "$(BRIEF)"; fi

test-prometheus: $(TOOLS) ## the dashboard and the alert rules in a real Prometheus; builds it once into a cache, with Go; BRIEF=1 for CI
	@if $(PY) -m tests.prometheus.programs $(if $(BRIEF),--brief); then \
		$(PY) -m pytest tests/prometheus -m prometheus; \
	else test -n "$(BRIEF)"; fi

test-long: beside $(TOOLS) ## every test without Kubernetes and Prometheus, the long ones too
	$(try_page)
	$(PY) -m pytest -n 2 --dist worksteal -m "not kubernetes and not prometheus"

test-crash: $(TOOLS) ## 60 kills among 3,000 tasks, ten seeds: agents, spawners, guards and servers
	$(PY) -m pytest -n 2 -m long tests/agent/test_kill.py -rP

soak: $(TOOLS) ## simulate trouble, seed after seed, until Ctrl-C or a failure; SOAK="--profile storm --first 1000"
	$(PY) -m tests.chaos.soak $(SOAK)

generate: $(TOOLS) ## write the files that follow from the operations of the API
	$(PY) generate.py

format: $(TOOLS) ## format the code and fix what the linter can
	$(PY) -m ruff format
	$(PY) -m ruff check --fix

bench: $(TOOLS) ## run the benchmarks
	$(PY) -m bench

first-minutes: ## measure the first minutes of a new user, in a clone with empty caches; TESTS=1 for the first test too
	@"$(PYTHON)" -m bench.newcomer $(if $(TESTS),--tests)

docs: $(DOCS_READY) ## build the documentation as a site, into site/; a broken link is an error
	PYTHONPATH=src $(DOCS_VENV)/bin/python docs/pages.py build/pages
	$(DOCS_VENV)/bin/python -m zensical build --clean --strict
	@echo "site/index.html"

$(DOCS_READY): pyproject.toml requirements-docs.lock
	$(check_python)
	@echo "setting up $(DOCS_VENV)"
	@"$(PYTHON)" -m venv --clear $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python $(PIP) install --require-hashes -r requirements-docs.lock
	@touch $@

# Pins already in the locks stay as they are; `make lock UPGRADE=1` takes the newest of all. The lock of the tools has all
# that the others have, at the same versions.
lock: ## recompile the locks (requirements*.lock) from pyproject.toml
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && \
	"$(PYTHON)" -m venv "$$tools" && \
	"$$tools/bin/python" $(PIP) install uv && \
	compile() { "$$tools/bin/uv" pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url \
		--no-header --quiet $(if $(UPGRADE),--upgrade) "$$@"; } && \
	compile --group dev -o requirements-dev.lock && \
	compile --constraint requirements-dev.lock -o requirements.lock && \
	compile --extra docs --constraint requirements-dev.lock -o requirements-docs.lock && \
	if grep -n '://' requirements*.lock; then echo "error: a lock names an address" >&2; exit 1; fi

# It asks a service on the network, so it is no part of the tests.
audit: ## look for known vulnerabilities in the pinned versions
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && \
	"$(PYTHON)" -m venv "$$tools" && \
	"$$tools/bin/python" $(PIP) install pip-audit && \
	"$$tools/bin/pip-audit" --requirement requirements-dev.lock --requirement requirements-docs.lock \
		--disable-pip --require-hashes --strict --progress-spinner off

dist: $(TOOLS) ## build the wheel and the source distribution of this tree, into dist/
	$(PY) -m hatchling build --directory dist

clean: ## remove what make and the tools created
	rm -rf $(VENV) $(DOCS_VENV) .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache .schemathesis dist build site src/fairlead/page src/fairlead/page.* web/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
