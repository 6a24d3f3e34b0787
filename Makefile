PYTHON ?= python3
BIN = .venv/bin

.PHONY: setup demo test lint clean

setup: .venv/.ready  ## make .venv with everything in it

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup  ## train the embedded policy with GRPO and with DPPO, print the table
	$(BIN)/dppo demo

test: setup  ## the whole test suite
	$(BIN)/pytest

lint: setup  ## format, rules, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

clean:
	rm -rf .venv runs
