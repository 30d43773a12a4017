# gpuscope: `make demo` and `make test` do everything; `make help` tells the rest.
#
#   PYTHON=python3.12    the Python of a new environment (default: the first 3.11 or newer found)
#   EXTRAS=cuda13        extras to install as well: cuda12, cuda13, mpi (comma between two)
#   ARGS="--port 8060"   more arguments for `gpuscope demo`, or for pytest under `make test`

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PACKAGE := .$(if $(EXTRAS),[$(EXTRAS)])
# Empty files that say what is installed: newer than pyproject.toml means nothing to do.
RUN_STAMP := $(VENV)/.installed-run-$(EXTRAS)
TEST_STAMP := $(VENV)/.installed-test-$(EXTRAS)
INSTALL_INPUTS := pyproject.toml scripts/make_venv.sh

.DEFAULT_GOAL := help
.PHONY: help demo test lint format clean

help:
	@echo 'make demo     install gpuscope in $(VENV) and open its page on a shipped trace'
	@echo 'make test     install the tools too; run the linters, the type checker and all tests'
	@echo 'make lint     only the linters and the type checker'
	@echo 'make format   let ruff put the code in form'
	@echo 'make clean    remove the environment and the caches (not .tools)'
	@echo
	@echo 'PYTHON=python3.12   the Python to use      EXTRAS=cuda13   the GPU side as well'
	@echo 'ARGS="…"            more arguments for `gpuscope demo` or pytest'

demo: $(RUN_STAMP)
	$(BIN)/gpuscope demo $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(TEST_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN_STAMP): $(INSTALL_INPUTS)
	scripts/make_venv.sh $(VENV)
	$(BIN)/python -m pip install --quiet --editable '$(PACKAGE)'
	@touch $@

$(TEST_STAMP): $(INSTALL_INPUTS)
	scripts/make_venv.sh $(VENV)
	$(BIN)/python -m pip install --quiet --editable '$(PACKAGE)' --group dev
	@touch $@ $(RUN_STAMP)
