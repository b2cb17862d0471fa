# make demo    sets up .venv, plays a game, turns it and a sample run into datasets, shows and samples them
# make test    sets up .venv and runs the tests
# make bench   runs the benchmarks and writes their tables into README.md

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench clean

demo: $(VENV)/dev
	$(BIN)/python -m benchmarks.demo

test: $(VENV)/dev lint
	$(BIN)/python -m pytest

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(VENV)/bench
	$(BIN)/python -m benchmarks

# A stamp per set of packages: made anew when the project's metadata change.
$(VENV)/dev: setup.cfg pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

$(VENV)/bench: $(VENV)/dev
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) build .pytest_cache .hypothesis .ruff_cache *.egg-info
