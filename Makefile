PYTHON ?= python3
BIN = .venv/bin
VERL = .venv-verl/bin

# Two processes; each test process computes with one thread (tests/conftest.py).
PARALLEL = --numprocesses 2 --dist worksteal

.PHONY: setup demo test test-slow test-verl lint clean

setup: .venv/.ready  ## make .venv with everything in it

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup  ## train the embedded policy with GRPO and with DPPO, print the table
	$(BIN)/dppo demo

test: setup  ## every property, by two processes
	$(BIN)/pytest $(PARALLEL)

test-slow: setup  ## what is marked slow: long loops and commands whose parts `make test` covers
	$(BIN)/pytest $(PARALLEL) -m slow

.venv-verl/.ready: pyproject.toml constraints-verl.txt
	$(PYTHON) -m venv .venv-verl
	$(VERL)/pip install --quiet --constraint constraints-verl.txt torch
	$(VERL)/pip install --quiet --constraint constraints-verl.txt --editable '.[verl]' pytest
	touch $@

test-verl: .venv-verl/.ready  ## the adapter for verl, in an environment of its own: verl and TRL need other versions
	$(VERL)/pytest tests_verl

lint: setup  ## format, rules, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

clean:
	rm -rf .venv .venv-verl runs
