# Everything a clone needs: python3 (3.11 or newer) and make. `make` alone lists the targets.
# PYTHON=… chooses the interpreter that .venv is made from.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready
PIP    := -m pip --disable-pip-version-check --no-input --quiet

# The tools of the documentation have an environment of their own, so that the tests do not wait for them.
DOCS_VENV  := .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup page up test test-kubernetes test-prometheus test-long test-crash soak format bench docs lock audit clean

# Ends with an error unless PYTHON is there and new enough.
define check_python
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "error: $(PYTHON) not found; install Python 3.11 or newer, or run make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is $$("$(PYTHON)" --version 2>&1); Fairlead needs 3.11 or newer: run make PYTHON=/path/to/python" >&2; exit 1; }
endef

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## create .venv with the pinned versions, and build the web page
	$(try_page)

page: $(READY) ## build the web page, unless it is newer than its sources
	@$(PY) hatch_build.py

# Without a registry of npm there is no page; everything else works.
define try_page
	@$(PY) hatch_build.py || echo "the web page is not built; \`make page\` tries again" >&2
endef

# The stamp lives inside .venv, and .venv is made anew, so no package of an older lock stays behind.
$(READY): pyproject.toml requirements.lock
	$(check_python)
	@echo "setting up $(VENV)"
	@"$(PYTHON)" -m venv --clear $(VENV)
	@$(PY) $(PIP) install --require-hashes -r requirements.lock
	@$(PY) $(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

up: $(READY) ## set up and run Fairlead on this machine
	$(try_page)
	@$(PY) $(VENV)/bin/fairlead up

test: $(READY) ## format check, lint, types and tests
	$(try_page)
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	$(PY) -m mypy
	$(PY) -m pytest -n 2 --dist worksteal
	@echo "tests with a Kubernetes cluster left out: make test-kubernetes runs them"
	@echo "tests with a Prometheus left out: make test-prometheus runs them"

# With BRIEF, tests that cannot be run because nothing can be built are left out, and that is no error.
test-kubernetes: $(READY) ## tests with a real Kubernetes cluster; builds it once into a cache, with Go; BRIEF=1 for those of CI, KUBERNETES="-m kubernetes" for the long ones too
	@if $(PY) -m tests.kubernetes.cluster.programs $(if $(BRIEF),--brief); then \
		$(PY) -m pytest tests/kubernetes $(or $(KUBERNETES),-m "$(if $(BRIEF),brief,kubernetes and not long)"); \
	else test -n "$(BRIEF)"; fi

test-prometheus: $(READY) ## the dashboard and the alert rules in a real Prometheus; builds it once into a cache, with Go; BRIEF=1 for CI
	@if $(PY) -m tests.prometheus.programs $(if $(BRIEF),--brief); then \
		$(PY) -m pytest tests/prometheus -m prometheus; \
	else test -n "$(BRIEF)"; fi

test-long: $(READY) ## every test without Kubernetes and Prometheus, the long ones too
	$(try_page)
	$(PY) -m pytest -n 2 --dist worksteal -m "not kubernetes and not prometheus"

test-crash: $(READY) ## 60 kills among 3,000 tasks, ten seeds: agents, spawners, guards and servers
	$(PY) -m pytest -n 2 -m long tests/agent/test_kill.py -rP

soak: $(READY) ## simulate trouble, seed after seed, until Ctrl-C or a failure; SOAK="--profile storm --first 1000"
	$(PY) -m fairlead.sim.chaos.soak $(SOAK)

format: $(READY) ## format the code and fix what the linter can
	$(PY) -m ruff format
	$(PY) -m ruff check --fix

bench: $(READY) ## run the benchmarks
	$(PY) -m bench

docs: $(DOCS_READY) ## build the documentation as a site, into site/
	PYTHONPATH=src $(DOCS_VENV)/bin/python docs/pages.py build/pages
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict
	@echo "site/index.html"

$(DOCS_READY): pyproject.toml requirements-docs.lock
	$(check_python)
	@echo "setting up $(DOCS_VENV)"
	@"$(PYTHON)" -m venv --clear $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python $(PIP) install --require-hashes -r requirements-docs.lock
	@touch $@

# Pins already in the locks stay as they are; `make lock UPGRADE=1` takes the newest of all.
lock: ## recompile requirements.lock and requirements-docs.lock from pyproject.toml
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && \
	"$(PYTHON)" -m venv "$$tools" && \
	"$$tools/bin/python" $(PIP) install uv && \
	compile() { "$$tools/bin/uv" pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url \
		--no-header --quiet $(if $(UPGRADE),--upgrade) "$$@"; } && \
	compile --group dev -o requirements.lock && \
	compile --extra docs --constraint requirements.lock -o requirements-docs.lock && \
	if grep -n '://' requirements.lock requirements-docs.lock; then echo "error: a lock names an address" >&2; exit 1; fi

# It asks a service on the network, so it is no part of the tests.
audit: ## look for known vulnerabilities in the pinned versions
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && \
	"$(PYTHON)" -m venv "$$tools" && \
	"$$tools/bin/python" $(PIP) install pip-audit && \
	"$$tools/bin/pip-audit" --requirement requirements.lock --requirement requirements-docs.lock \
		--disable-pip --require-hashes --strict --progress-spinner off

clean: ## remove what make and the tools created
	rm -rf $(VENV) $(DOCS_VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache .schemathesis dist build site src/fairlead/page web/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
