# `make demo` and `make test` set up everything they need in .venv on a machine with Python 3.11.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check docs pictures bench clean

help:  ## show the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; assert sys.version_info[:2] >= (3, 11)' 2>/dev/null \
	  || { echo "Conductor needs Python 3.11 or newer: make demo PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: $(STAMP)  ## plan a published profile, train the scheduler, compare it with every baseline
	$(BIN)/conductor demo

test: $(STAMP)  ## the tests (a few minutes)
	$(BIN)/python -m pytest -q -n 2 -m "not slow and not timing"

test-all: $(STAMP)  ## the tests, the slow ones too
	$(BIN)/python -m pytest -q -n 2 -m "not timing"

check: $(STAMP)  ## format, lint, types, who may import whom
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)  ## the documentation as a site in site/, links checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

pictures: $(STAMP)  ## the pictures of the documentation
	$(BIN)/python docs/pictures/draw.py

bench: $(STAMP)  ## the benchmarks, on one core
	NUMBA_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -p benchmark benchmarks --override-ini addopts=

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
