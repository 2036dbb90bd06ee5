# Every target installs what it needs into .venv first. `run` and `demo` install redrive and its dependencies; all
# others also install the extra `dev` of pyproject.toml.
PYTHON  ?= python3
PYTHONS ?=
VENV    := .venv
BIN     := $(VENV)/bin
EXTRA   ?= dev
NAME    ?=
# Tests wait for servers more than they compute: two workers per core.
WORKERS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2))
# The tests of `make test-fast`: no service, and no processes as in tests/acceptance and tests/faults.
FAST    := tests/unit tests/conformance tests/golden tests/test_docs.py -m 'not service and not slow and not soak'
ARGS    ?=
MINUTES ?= 60
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup run demo test test-fast coverage test-pythons soak check format docs bench clean

help:            ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# $(1): what to install, for example .[dev]
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "redrive needs Python 3.11 or newer; set PYTHON=python3.x")'
	@test -x $(BIN)/python || { echo "Creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing $(1) into $(VENV)"
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '$(1)'
endef

$(VENV)/.run: pyproject.toml constraints.txt
	$(call install,.)
	@touch $@

$(VENV)/.$(EXTRA): pyproject.toml constraints.txt
	$(call install,.[$(EXTRA)])
	@touch $@ $(VENV)/.run

run: $(VENV)/.run  ## run the server with an embedded broker, data in redrive-data (ARGS='--port 0')
	$(BIN)/redrive serve --data redrive-data $(ARGS)

demo: $(VENV)/.run ## run a demo shop in which many things fail, for a minute (ARGS='--data shop')
	$(BIN)/redrive demo --seconds 60 $(ARGS)

setup: $(VENV)/.$(EXTRA) ## create .venv with everything a contributor needs

test: setup      ## run all tests (ARGS='-k name' selects)
	$(PYTEST) $(ARGS)

test-fast: setup ## run the tests that need no service, in under three minutes on two cores
	$(PYTEST) $(FAST) $(ARGS)

coverage: setup  ## run the tests of test-fast and report which lines of redrive they run (build/coverage)
	$(PYTEST) $(FAST) --cov --cov-report=term:skip-covered --cov-report=html:build/coverage $(ARGS)

test-pythons:    ## run the unit tests on each installed Python from 3.11 on (PYTHONS='python3.12')
	scripts/test-pythons $(ARGS) -- $(PYTHONS)

soak: setup      ## repeat the long tests with new seeds (MINUTES=60; ARGS='--only simulation --full')
	$(BIN)/python scripts/soak.py --minutes $(MINUTES) $(ARGS)

check: setup     ## ruff, mypy --strict, import-linter, the language of documentation and messages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	scripts/check-language

format: setup    ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup      ## build the documentation site in build/docs (warnings are errors)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/doctrees docs build/docs
	@echo "Open build/docs/index.html"

bench: setup     ## run benchmarks (NAME=store-sqlite ARGS=--quick; without NAME: list them)
	$(BIN)/python -m benchmarks $(NAME) $(ARGS)

clean:           ## remove environments and caches
	rm -rf $(VENV) .venv-3.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage build dist
