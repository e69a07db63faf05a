# make demo    train a model through the switch, beside gloo; SWITCH=bmv2 uses BMv2 instead of the switch model
# make test    everything that can be tested on this machine
# make check   style, types, formatting
# make bench   all-reduce beside gloo: results/bench/
# make setup   only what the others do first: install what is missing

SWITCH ?= model
BIN := .venv/bin
PYTHON_SOURCES := hostlib/inagg p4/inagg_switch controller/inagg_controller mininet/inagg_testbed tests scripts
CXX_SOURCES = $(shell git ls-files -co --exclude-standard '*.cpp' '*.hpp' '*.h')

# Network namespaces need root. The environment is kept: proxies, PATH to p4c and BMv2.
ROOT := $(shell [ "$$(id -u)" -eq 0 ] || echo sudo -E env PATH="$$PATH")

.PHONY: setup demo test check bench format

setup:
	@scripts/setup

demo: setup
	@$(ROOT) $(BIN)/inagg demo --switch $(SWITCH)

test: setup
	@$(ROOT) $(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)

format: setup
	$(BIN)/ruff check --fix $(PYTHON_SOURCES)
	$(BIN)/ruff format $(PYTHON_SOURCES)
	$(BIN)/clang-format -i $(CXX_SOURCES)

bench: setup
	@mkdir -p results/bench
	@$(ROOT) $(BIN)/inagg bench allreduce --workers 4 --elements 1000000 --link 100mbit \
	    --backend gloo --backend inagg:32 --backend inagg:16 --iters 10 --json results/bench/allreduce-4.json
	@$(ROOT) $(BIN)/inagg bench allreduce --workers 8 --elements 1000000 --link 100mbit \
	    --backend gloo --backend inagg:32 --backend inagg:16 --iters 10 --json results/bench/allreduce-8.json
