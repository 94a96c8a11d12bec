# Each command is enough alone: it makes .venv and installs what it needs. Say `make` for the list.

PYTHON ?= python3
DEMO_ARGS ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Twice quiet: errors only, not the warnings of whatever package index is configured.
INSTALL := $(PIP) install -qq --constraint constraints.txt
INSTALL_INPUTS := pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*)
SMOKE := build/smoke
# One pytest process on one core, at most four: every one of them loads TensorFlow.
WORKERS = $(shell $(BIN)/python -c 'import os; n = os.cpu_count() or 1; print(min(n, 4) if n > 1 else 0)')

.PHONY: help demo test test-long check wheel clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo        train on real data, reducing gradients across 8 logical devices (DEMO_ARGS="--devices 3")'
	@echo 'make test        run every test, counts kept small (PYTEST_ARGS="-k mean")'
	@echo 'make test-long   run every test with the full counts'
	@echo 'make check       format, lint, types, layers, budgets, doctests, spelling, and the wheel in a fresh venv'
	@echo 'make wheel       build the source archive and the wheel into dist/'
	@echo 'make clean       remove .venv and everything built'
	@echo 'All take PYTHON=/path/to/python (3.11 or newer) the first time.'

demo: $(VENV)/.demo
	@$(BIN)/treefold demo $(DEMO_ARGS)

test: $(VENV)/.test
	@$(BIN)/python -m pytest -q -n $(WORKERS) $(PYTEST_ARGS)

test-long: $(VENV)/.test
	@TREEFOLD_CASES=full $(BIN)/python -m pytest -q -n $(WORKERS) $(PYTEST_ARGS)

check: $(VENV)/.dev
	@echo 'check: format';    $(BIN)/ruff format --quiet --check --diff .
	@echo 'check: lint';      $(BIN)/ruff check --quiet .
	@echo 'check: types';     $(BIN)/mypy --no-error-summary
	@echo 'check: layers';    out=$$($(BIN)/lint-imports 2>&1) || { echo "$$out"; exit 1; }
	@echo 'check: budgets';   $(BIN)/python tools/check_budgets.py
	@echo 'check: spelling';  $(BIN)/codespell
	@echo 'check: doctests';  $(BIN)/python -m pytest -q --import-mode=prepend --doctest-modules src
	@$(MAKE) --no-print-directory wheel
	@echo 'check: the wheel in a fresh venv'
	@$(BIN)/python -m venv --clear $(SMOKE)
	@$(SMOKE)/bin/python -m pip --disable-pip-version-check install -qq -c constraints.txt dist/*.whl
	@cd $(SMOKE) && bin/python -I ../../tools/smoke.py

wheel: $(VENV)/.dev
	@echo 'building dist/ (compiles the native core)'
	@rm -rf dist
	@out=$$($(BIN)/python -m build 2>&1) || { echo "$$out"; exit 1; }

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "treefold needs Python 3.11 or newer, but $(PYTHON) is older. Name another: make PYTHON=python3.12 ...")'
	@echo 'creating $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# An extra includes the ones before it, so installing it also brings their stamps up to date.
COVERED_demo := demo
COVERED_test := demo test
COVERED_dev := demo test dev

$(VENV)/.demo $(VENV)/.test $(VENV)/.dev: $(VENV)/.%: $(INSTALL_INPUTS) | $(VENV)/.created
	@echo 'installing treefold[$*] into $(VENV) (compiles the native core; the first time takes minutes)'
	@$(INSTALL) --editable '.[$*]'
	@touch $(COVERED_$*:%=$(VENV)/.%)
