# Needs Python 3.11 or later with pip, and make. Another interpreter: make venv PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help venv demo test test-oldest test-newest lint
.DEFAULT_GOAL := help

help: ## list what can be made
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

venv: $(STAMP) ## create .venv with everything in it

$(STAMP): pyproject.toml setup.py constraints.txt $(shell find src -name "*.[ch]")
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo 'installing torch and what else is needed, a minute or two'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP) ## train a TreeLSTM on small trees and compare policies
	$(BIN)/edbatch demo

lint: $(STAMP) ## style, formatting, types, import order
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest tests/test_torch_door.py

test: lint ## lint, then all tests and the examples in docstrings
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 tests src

# Each in an environment of its own, .venv-oldest and .venv-newest; pip brings some gigabytes.
test-oldest: .venv-oldest/.installed ## all tests with the oldest torch that pyproject.toml allows
	OMP_NUM_THREADS=1 .venv-oldest/bin/pytest --numprocesses 2 tests src

test-newest: .venv-newest/.installed ## all tests with the newest torch there is
	OMP_NUM_THREADS=1 .venv-newest/bin/pytest --numprocesses 2 tests src

.venv-oldest/.installed: TORCH = torch==$(shell sed -n 's/^dependencies.*"torch>=\([0-9.]*\)".*/\1/p' pyproject.toml)
.venv-newest/.installed: TORCH = torch

.venv-oldest/.installed .venv-newest/.installed: pyproject.toml setup.py $(shell find src -name "*.[ch]")
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --upgrade '$(TORCH)' --editable '.[dev]'
	touch $@
