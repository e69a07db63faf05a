# SPDX-License-Identifier: Apache-2.0
# make demo    train a model through the switch and compare with gloo; SWITCH=bmv2 uses BMv2, not the switch model;
#              TOPOLOGY=tree:2x4 uses a tree of switches; FAULT=switch@20 kills the switch in one more run
# make test    most tests that can run on this machine (15 to 30 minutes); without root or sudo, those that need neither
# make test-long  the tests and cases with the marker long: other ways of summing, other places of a fault, installations
# make check   style, types, formatting
# make bench   all-reduce compared with gloo, latency, loss, scaling, numerics, switch: results/bench/ (ten minutes)
# make bench-cores  the same by threads of the switch and of the workers, and a worker alone (Linux 6.6), for machines with
#              many processors: results/cores/ (an hour)
# make bench-device  the same for tensors on a GPU, and a trace that Perfetto opens: results/device/ (ten minutes)
# make torch-suite  PyTorch's own distributed tests on backend "inagg", through a switch (three minutes), or with
#              AGGREGATION=shared or server in the other ways
# make torch-ft  PyTorch's own fault-tolerance tests on backend "inagg", with torch 2.14.1 in a fresh virtual environment
#              (5 GB, a quarter of an hour); TORCH_TESTS is a checkout of PyTorch v2.14.1, because torch's wheel lacks these tests
# make exit-hunt  end programs in every state of a group, in every way, on a busy machine; ENDINGS=100 (an hour)
# make attack  floods, forgeries, fuzzing and kills while ranks sum (half an hour): results/attack/. AMOUNT=small is
#              short; ATTACKS="flood kill" selects from api, flood, forge, kill, mutate, p4runtime
# make chaos   each fault of each part in each phase of a job, on real processes (three quarters of an hour):
#              results/chaos/ has the table of docs/faults.md. CHAOS="kill 'switch|leaf'" selects
# make soak    half an hour of training with a fault every ten seconds, then the same without faults: the same weights.
#              SOAK="--seconds 600 --seed 2" takes other ones
# make simulate  whole jobs in virtual time, hit by faults that follow from a seed: 10000 seeds (ten minutes), or SEEDS. A
#              seed that fails is shrunk to a short story
# make explore  every run of jobs with shared slots, and every state of slots, that are larger than those of make test (a
#              quarter of an hour, 6 GB), and more examples of networks
# make sanitize  the C++ core's tests under AddressSanitizer and UndefinedBehaviorSanitizer
# make wheel-test  build the sdist and its wheel, install it with each extra in a fresh virtual environment, use it there;
#              with each Python of PYTHONS="/usr/bin/python3 python3.12 python3.13" that is there
# make release  build the sdist and the wheel of a release into dist/, check them without torch, and print their digests
#              and the command that tags the release. The tree must be clean, and CHANGELOG.md must have the release
# make torch-matrix  the host library's tests with other releases of torch, each in a fresh virtual environment (quarter of
#              an hour and 5 GB each); VERSIONS="2.7.1 2.15.0" selects from those that are supported, TESTS limits the tests,
#              PYTHON=python3.12 takes another Python
# make trainers  train with the libraries that people use, over gloo and taken over by inagg: results/trainers/. TRAINERS=
#              "ddp zero3" selects (an hour for all)
# make torchft  kill replicas that train with torchft's Manager, ten times each over inagg and over gloo: results/torchft/
#              (five minutes)
# make docs    build the site of the documentation and the Python API: build/site/. A link that leads nowhere is an error
# make tidy    clang-tidy over the C++, with the checks of .clang-tidy (quarter of an hour)
# make nightly  everything above that make check and make test cannot hold in their time (four hours), and one table of
#              what ran; PARTS="attack explore" selects, parts that have passed in this state of the tree do not run again
# make diagrams  draw docs/images/*.svg from docs/diagrams
# make setup   install what is missing; all other targets do this first

SWITCH ?= model
TOPOLOGY ?= star
AGGREGATION ?= leased
TORCH_TESTS ?=
ENDINGS ?= 100
ATTACKS ?=
CHAOS ?=
SOAK ?=
SEEDS ?= 10000
AMOUNT ?= full
VERSIONS ?= 2.7.1 2.8.0 2.9.1 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0
TESTS ?=
PYTHON ?=
PYTHONS ?= /usr/bin/python3 python3.12 python3.13
TRAINERS ?=
PARTS ?=
BIN := .venv/bin
PYTHON_SOURCES := contract wire/inagg_wire hostlib/inagg hostlib/inagg_server p4runtime/inagg_p4runtime switch/inagg_switch controller/inagg_controller mininet/inagg_testbed baselines/inagg_baselines simulator/inagg_simulator commands/inagg_commands docs/course docs/diagrams docs/site examples tests scripts deploy
CXX_SOURCES = $(shell git ls-files -co --exclude-standard '*.cpp' '*.hpp' '*.h')

# Network namespaces need root. The environment is kept: proxies, PATH to p4c and BMv2.
ROOT := $(shell [ "$$(id -u)" -eq 0 ] || ! command -v sudo >/dev/null || echo sudo -E env PATH="$$PATH")
CAN_BE_ROOT := $(shell [ "$$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null || echo yes)
NEEDS_ROOT = @[ -n "$(CAN_BE_ROOT)" ] || { echo "make $@ makes network namespaces, which needs root: there is" \
    "no sudo here, so log in as root or install sudo." >&2; exit 1; }

.PHONY: setup demo test test-long torch-suite exit-hunt attack chaos soak simulate explore check bench bench-cores bench-device wheel-test release torch-matrix trainers tidy nightly docs diagrams format sanitize torch-ft torchft

setup:
	@scripts/setup

demo:
	$(NEEDS_ROOT)
	@scripts/setup
	@$(ROOT) $(BIN)/inagg demo --switch $(SWITCH) --topology $(TOPOLOGY) $(if $(FAULT),--fault $(FAULT))

# Without bytecode each of a thousand processes compiles what it imports, and each process of pytest all tests.
unexport PYTHONDONTWRITEBYTECODE

# One more than the processors, up to eight: tests on real networks wait for half of their time, and have real time-outs.
TEST_PROCESSES = $$(n=$$(env -u OMP_NUM_THREADS nproc); echo $$((n < 8 ? n + 1 : 8)))
test: setup
	@$(ROOT) $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder -n $(TEST_PROCESSES) -m "not long"

test-long: setup
	@$(ROOT) $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder -n $(TEST_PROCESSES) -m "long and not alone"
	@$(ROOT) $(BIN)/python -m pytest -m alone

torch-suite:
	$(NEEDS_ROOT)
	@scripts/setup
	@$(ROOT) $(BIN)/python -m tests.hostlib.backend.torch_suite --aggregation $(AGGREGATION)

FT_TESTS := $(if $(TORCH_TESTS),$(wildcard $(abspath $(TORCH_TESTS))/test/distributed/test_c10d_fault_tolerance.py))
torch-ft:
ifeq ($(FT_TESTS),)
	@echo "make torch-ft: skipped: PyTorch's fault-tolerance tests are not in its wheel. Get them with" \
	    "git clone --depth 1 --branch v2.14.1 https://github.com/pytorch/pytorch FOLDER; then make torch-ft TORCH_TESTS=FOLDER"
else
	$(NEEDS_ROOT)
	@scripts/setup
	@TORCH_TESTS="$(abspath $(TORCH_TESTS))" $(ROOT) $(BIN)/python -m tests.packaging.torch_matrix 2.14.1 \
	    --tests tests/hostlib/backend/test_torch_ft.py
endif

exit-hunt:
	$(NEEDS_ROOT)
	@scripts/setup
	@$(ROOT) $(BIN)/python -m tests.hostlib.exit.hunt $(ENDINGS)

attack:
	$(NEEDS_ROOT)
	@scripts/setup
	@$(ROOT) $(BIN)/python -m tests.attack --amount $(AMOUNT) $(ATTACKS)

chaos:
	$(NEEDS_ROOT)
	@scripts/setup
	@$(ROOT) $(BIN)/python -m tests.chaos $(CHAOS)

soak:
	$(NEEDS_ROOT)
	@scripts/setup
	@$(ROOT) $(BIN)/python -m tests.chaos.soak $(SOAK)

simulate: setup
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS)

explore: setup
	$(BIN)/python -m tests.conformance.explore_shared
	$(BIN)/python -m tests.conformance.explore_states
	$(BIN)/python -m pytest -n 2 --hypothesis-profile explore --timeout 3600 -k every_sum_is_exact tests/conformance

check: setup
	$(BIN)/ruff check $(PYTHON_SOURCES)
	$(BIN)/ruff format --check $(PYTHON_SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)

format: setup
	$(BIN)/ruff check --fix $(PYTHON_SOURCES)
	$(BIN)/ruff format $(PYTHON_SOURCES)
	$(BIN)/clang-format -i $(CXX_SOURCES)

bench:
	$(NEEDS_ROOT)
	@scripts/setup
	@mkdir -p results/bench
	@$(BIN)/python -m tests.bench.numerics --json >results/bench/numerics.json
	@$(BIN)/inagg-switch bench p4/inagg.p4 --load bench/four_workers.vectors --json >results/bench/switch.json
	@$(ROOT) $(BIN)/inagg bench suite --folder results/bench

bench-cores:
	$(NEEDS_ROOT)
	@scripts/setup
	@$(ROOT) $(BIN)/python -m tests.bench.cores
	@$(ROOT) $(BIN)/python -m tests.bench.worker_path

bench-device:
	$(NEEDS_ROOT)
	@scripts/setup
	@mkdir -p results/device
	@$(ROOT) $(BIN)/inagg bench device --elements 1000 --elements 100000 --elements 10000000 --elements 40000000 \
	    --json results/device/one_rank.json --plot results/device/one_rank.png --timeline results/device/timeline.json
	@$(ROOT) $(BIN)/inagg bench device --gpu-ranks 2 --steps --elements 100000 --elements 10000000 \
	    --json results/device/all_ranks.json --plot results/device/all_ranks.png

wheel-test:
	$(NEEDS_ROOT)
	@scripts/setup
	@$(ROOT) $(BIN)/python -m tests.packaging $(PYTHONS)

release: setup
	@$(BIN)/python -m tests.packaging.release

torch-matrix:
	$(NEEDS_ROOT)
	@scripts/setup
	@$(ROOT) $(BIN)/python -m tests.packaging.torch_matrix $(VERSIONS) $(if $(PYTHON),--python "$(PYTHON)") $(if $(TESTS),--tests "$(TESTS)")

trainers: setup
	@$(BIN)/python -m tests.trainers $(TRAINERS)

torchft: setup
	@$(BIN)/python -m tests.torchft

docs: setup
	@$(BIN)/python scripts/requirements.py pyproject.toml docs | xargs -d '\n' $(BIN)/python -m pip --quiet \
	    --disable-pip-version-check install --constraint constraints.txt
	@$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going --conf-dir docs/site . build/site
	@echo "docs: build/site/index.html"

# clang-tidy is 150 MB, so that only this target installs it.
tidy: setup
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt clang-tidy
	@$(BIN)/python $(BIN)/run-clang-tidy.py -quiet -hide-progress -clang-tidy-binary $(BIN)/clang-tidy \
	    -p "$$(dirname "$$(ls -t build/cp*/compile_commands.json | head -n 1)")" '^$(CURDIR)/(hostlib|switch)/'

nightly:
	$(NEEDS_ROOT)
	@scripts/setup
	@$(ROOT) $(BIN)/python -m tests.nightly $(PARTS)

diagrams: setup
	$(BIN)/python docs/diagrams

# Builds into .venv, so the stamp is removed: the next setup builds the normal modules again.
sanitize: setup
	rm $(BIN)/../.native
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable . \
	    --config-settings=build-dir=build/sanitize --config-settings=cmake.define.INAGG_SANITIZE=address,undefined
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	    $(BIN)/python -m pytest tests/hostlib/native tests/hostlib/membership/test_racks.py tests/conformance
