# Everything a clone needs, from python3 and make alone. Each target sets up what it uses.
PYTHON ?= python3
VENV := .venv
TINKER := .venv-tinker
BIN := $(VENV)/bin
TBIN := $(TINKER)/bin
SOURCES := $(shell find -L src -type f -not -name "*.pyc") pyproject.toml

# The trainer's own pins: the package does not depend on them.
# Another cookbook, in a venv of its own: make tinker-test TINKER=.venv-other COOKBOOK='tinker-cookbook @ git+https://...'
TORCH := torch==2.13.0
COOKBOOK := tinker-cookbook>=0.5.8

# Processes that share the unit tier; 0 plays it in one, as `.venv/bin/python -m pytest` does.
WORKERS ?= auto

.PHONY: help demo test tinker-test lint format lock bench bench-rollouts clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

demo: $(TINKER)/.installed  ## train a small model on GridSim, here, with no key and no GPU
	$(TBIN)/agent-env train bundles/gridsim --local --runs .demo/runs

test: $(VENV)/.wheel  ## the unit tier, against the built wheel
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 8 --dist worksteal

tinker-test: $(TINKER)/.installed  ## the trainer tier, on the real tinker-cookbook
	$(TBIN)/python -m pytest tst/tinker --timeout=240

lint: $(VENV)/.wheel  ## format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/.installed  ## write the formatting
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:  ## write requirements.lock (hashes, all dependencies of the unit tier)
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --quiet uv
	.venv-lock/bin/uv lock --upgrade
	.venv-lock/bin/uv export --quiet --frozen --no-emit-project --no-header --group test --group lint --group build \
		--format requirements-txt --output-file requirements.lock
	rm -rf .venv-lock

bench: $(VENV)/.wheel  ## what an episode, a run in the index and an import cost
	$(BIN)/python bench/episodes.py
	$(BIN)/python bench/importing.py
	$(BIN)/python bench/index.py

bench-rollouts: $(TINKER)/.installed  ## what a rollout costs beside the cookbook's own; about three minutes
	$(TBIN)/python bench/rollouts.py

clean:  ## remove what the targets made
	rm -rf $(VENV) $(TINKER) .venv-lock dist build .demo

$(VENV)/.installed: requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements.lock
	touch $@

$(VENV)/.wheel: $(VENV)/.installed $(SOURCES)
	rm -rf dist
	$(BIN)/python -m build --quiet --wheel --no-isolation --outdir dist
	$(BIN)/pip install --quiet --no-deps --force-reinstall dist/agent_env-*.whl
	touch $@

$(TINKER)/.installed: pyproject.toml Makefile
	$(PYTHON) -m venv $(TINKER)
	$(TBIN)/pip install --quiet 'pip>=25.1'
	$(TBIN)/pip install --quiet '$(TORCH)'
	$(TBIN)/pip install --quiet '$(TORCH)' '$(COOKBOOK)' --editable '.[tinker]' --group test --group tinker
	touch $@
