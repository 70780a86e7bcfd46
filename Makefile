# Needs Python 3.11 or later with pip, and make. Another interpreter: make venv PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help venv demo test lint
.DEFAULT_GOAL := help

help: ## list what can be made
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

venv: $(STAMP) ## create .venv with everything in it

$(STAMP): pyproject.toml setup.py constraints.txt $(shell find src -name "*.c")
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

test: lint ## lint, then all tests and the examples in docstrings
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 tests src
