# A fresh machine needs Python 3.11 or newer with pip and venv, make, gcc and git; `make setup` installs the rest.
PYTHON ?= python3
VENV ?= .venv
# Versions that the tests ran with; empty for the newest of each package.
CONSTRAINTS ?= -c constraints.txt
BIN := $(VENV)/bin
STAMP := $(VENV)/.meshwise-setup
WORKERS ?= 2

# Compilers of GPUs and TPUs, in a folder of their own: JAX would look for devices if it found them.
COMPILERS := build/compilers
REQUIREMENT := import sys; from meshwise.targets.packages import requirement_of; print(requirement_of(sys.argv[1]))

.PHONY: help setup train test check-targets format lint types layers check docs bench bench-solver hosts chaos alpacomm-measured clean

help:
	@echo "make train    set up, then train a byte-level GPT on 8 virtual CPU devices"
	@echo "make test     set up, then run the tests (15 minutes at most on 2 cores)"
	@echo "make check    format, lint, types, layers, tests"
	@echo "make check-targets    tests that compile for GPUs and TPUs, without devices"
	@echo "make docs     the site of docs/, in build/site"
	@echo "make bench    named benchmarks, JSON into bench-out/"
	@echo "make hosts    train in two stages on two hosts of this machine, with a slow link (root)"
	@echo "make chaos    kill processes at every instruction of a step, and see training go on (30 minutes)"
	@echo "make alpacomm-measured    AlpaComm's cases between hosts of this machine (root, 10 minutes)"
	@echo "make bench-solver INSTANCES=DIR    the contest's instances in DIR, within their time limits"

setup: $(STAMP)

# The stamp carries the time of the last installation: a second call does nothing.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]" $(CONSTRAINTS)
	@echo "compiling the solver's kernels, once (a minute at most)"
	$(BIN)/python -c "from meshwise.inter.kernel_set import compile_all_kernels; compile_all_kernels()"
	@touch $@

train: setup
	$(BIN)/meshwise train $(ARGS)

# --dist=loadfile keeps a file's compiled programs in one worker.  In the order of collection: the
# default starts with the files of most tests, and ends with few tests that take long.
test: setup
	@$(MAKE) --no-print-directory $(COMPILERS)/cuda || echo "no compiler of GPUs: tests that need it are skipped"
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist=loadfile --no-loadscope-reorder $(ARGS)

check-targets: setup $(COMPILERS)/cuda $(COMPILERS)/tpu
	$(BIN)/python -m pytest -q tests/targets -m "not gpu" $(ARGS)

# An empty file that says that the compiler of a platform is there, in the version for this JAX.
$(COMPILERS)/%: $(STAMP)
	@echo "installing XLA's compiler for $*, without devices (half a GB)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(COMPILERS) \
		"$$($(BIN)/python -c "$(REQUIREMENT)" $*)"
	@touch $@

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/pyright

layers: setup
	$(BIN)/lint-imports

check: lint types layers test

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

bench-solver: setup
	$(BIN)/python -m benchmarks.solver $(INSTANCES) $(ARGS)

hosts: setup
	$(BIN)/python -m evaluation hosts $(ARGS)

chaos: setup
	$(BIN)/python -m evaluation faults $(ARGS)

alpacomm-measured: setup
	$(BIN)/python -m evaluation alpacomm-measured $(ARGS)

clean:
	rm -rf build dist bench-out .pytest_cache .ruff_cache .hypothesis
