# Every target sets up what it needs in .venv; nothing else has to be run first.
PYTHON ?= python3
PYTHONS ?=
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
NAME   ?=
# Tests wait for servers more than they compute: two at a time for each core.
WORKERS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2))
ARGS   ?=
MINUTES ?= 60

.DEFAULT_GOAL := help
.PHONY: help setup run demo test test-pythons soak check format bench clean

help:            ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "redrive needs Python 3.11 or newer; set PYTHON=python3.x")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(READY)  ## make .venv with everything a contributor needs

run: $(READY)    ## run the server with a broker of its own, data in redrive-data (ARGS='--port 0')
	$(BIN)/redrive serve --data redrive-data $(ARGS)

demo: $(READY)   ## a shop in which everything goes wrong, for a minute (ARGS='--data shop')
	$(BIN)/redrive demo --seconds 60 $(ARGS)

test: $(READY)   ## run all tests (ARGS='-k name' to choose)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-pythons:    ## run the unit tests on each Python from 3.11 on that is found (PYTHONS='python3.12')
	scripts/test-pythons $(ARGS) -- $(PYTHONS)

soak: $(READY)   ## repeat the long tests with fresh seeds (MINUTES=60; ARGS='--only simulation --full')
	$(BIN)/python scripts/soak.py --minutes $(MINUTES) $(ARGS)

check: $(READY)  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)  ## run benchmarks (NAME=store-sqlite ARGS=--quick; no NAME lists them)
	$(BIN)/python -m benchmarks $(NAME) $(ARGS)

clean:           ## remove environments and caches
	rm -rf $(VENV) .venv-3.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
