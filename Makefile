# Needs Python 3.11 or newer, make and a package index; everything else goes into .venv.

PYTHON ?= python3
SEEDS ?= 100
N ?= 2000
SEED ?= 0
PYTHONS ?=
CAMPAIGN ?= campaign
CAMPAIGN_SEEDS ?= 100000
TARGET ?= zabd
SERVER ?= zabd
MINUTES ?= 12
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# With their bytecode kept, as an installation has it, members start with half the CPU.
export PYTHONDONTWRITEBYTECODE :=

# What is installed, and when: each stamp is older than the files that decide about it, or it reruns.
RUNTIME := $(VENV)/.runtime-installed
TOOLS := $(VENV)/.tools-installed

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow runbook tutorial check format sim sim-determinism sim-campaign sim-recipes differential compat compat-kazoo compat-clients bench bench-all bench-compare bench-recipes bench-paper bench-scale bench-many bench-availability bench-micro bench-check bench-failover bench-clients bench-sim clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 24

venv: $(TOOLS) ## Create .venv with zabd and the tools of development

demo: $(RUNTIME) ## Three real members, duplicated requests, a killed leader, a verdict
	$(BIN)/zabctl demo

test: $(TOOLS) ## Every test but the slow ones
	$(BIN)/pytest -n auto -m "not slow and not compat" $(ARGS)

test-slow: $(TOOLS) ## The slow tests: real processes, real timeouts, many kills
	$(BIN)/pytest -m "slow and not compat" $(ARGS)

runbook: $(TOOLS) ## Run the commands of docs/how-to/dedup-runbook.md as they stand
	$(BIN)/python -m tests.runbook docs/how-to/dedup-runbook.md

tutorial: $(TOOLS) ## Run the commands of docs/tutorial.md as they stand
	$(BIN)/python -m tests.runbook docs/tutorial.md

compat: $(TOOLS) ## Other people's clients on SERVER (zabd, or java for Debian's ZooKeeper)
	COMPAT_SERVER=$(SERVER) $(BIN)/pytest -m compat -rs -s tests/compat $(ARGS)

compat-kazoo: $(TOOLS) ## Only kazoo's own suite on SERVER; results in build/compat
	$(BIN)/python -m tests.compat.kazoo_suite.suite --server $(SERVER) $(ARGS)

compat-clients: $(TOOLS) ## All but kazoo's suite on SERVER
	COMPAT_SERVER=$(SERVER) $(BIN)/pytest -m compat -rs --ignore tests/compat/kazoo_suite tests/compat $(ARGS)

check: $(TOOLS) ## Format, lint, types and import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src tests/typing
	$(BIN)/lint-imports

format: $(TOOLS) ## Rewrite the sources the way `check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sim: $(RUNTIME) ## Run SEEDS fresh seeds of the simulator
	$(BIN)/zabctl sim run --seeds $(SEEDS)

sim-determinism: $(RUNTIME) ## Compare the traces of SEEDS seeds over hash seeds, orders and PYTHONS
	$(BIN)/zabctl sim determinism --seeds $(SEEDS) $(foreach python,$(PYTHONS),--python $(python)) $(ARGS)

sim-campaign: $(RUNTIME) ## Run CAMPAIGN_SEEDS seeds at all levels, resumable, into the folder CAMPAIGN
	$(BIN)/zabctl sim campaign $(CAMPAIGN) --seeds $(CAMPAIGN_SEEDS) $(ARGS)

sim-recipes: $(TOOLS) ## Run SEEDS seeds of each recipe's campaign, resumable (ARGS='--recipe lock' for one)
	$(BIN)/python -m tests.client.recipe_campaigns --seeds $(SEEDS) $(ARGS)

differential: $(TOOLS) ## Compare TARGET with Debian's ZooKeeper, over N scripts of random requests
	$(BIN)/python -m tests.compat.differential -n $(N) --seed $(SEED) --target $(TARGET)

bench: $(RUNTIME) ## Measure three members on this machine: rate, latency, CPU (into docs/benchmarks)
	$(BIN)/zabctl bench --out docs/benchmarks $(ARGS)

bench-compare: $(TOOLS) ## The same beside Debian's ZooKeeper and etcd, where installed, in MINUTES, against the goals
	$(BIN)/python bench/compare.py --minutes $(MINUTES) --out docs/benchmarks $(ARGS)

bench-all: ## All of docs/benchmarks, one after the other: on a machine that does nothing else
	$(MAKE) bench bench-compare bench-availability bench-many bench-scale bench-recipes bench-paper -k ARGS=

bench-recipes: $(TOOLS) ## Locks and deduplication a second, hand-over, a holder's death; kazoo's lock beside ours
	$(BIN)/python bench/recipes.py --out docs/benchmarks $(ARGS)

bench-paper: $(RUNTIME) ## The pictures of the ZooKeeper paper: shares of reads, failures over time, bursts
	$(BIN)/zabctl bench --paper --out docs/benchmarks $(ARGS)

bench-scale: $(RUNTIME) ## A million znodes: memory, loading, snapshots under load, joining
	$(BIN)/python bench/scale.py --out docs/benchmarks $(ARGS)

bench-many: $(RUNTIME) ## Ten thousand clients of one member: sessions, watchers, herds
	$(BIN)/python bench/many_clients.py --out docs/benchmarks $(ARGS)

bench-availability: $(RUNTIME) ## Leaders killed and frozen, followers killed, restarts, starts
	$(BIN)/python bench/availability.py --out docs/benchmarks $(ARGS)

bench-micro: $(TOOLS) ## What the parts of a request cost
	$(BIN)/python bench/micro.py $(ARGS)

bench-check: $(TOOLS) ## Fail if a part of a request takes more instructions than when last committed
	$(BIN)/python bench/micro.py --check $(ARGS)

bench-failover: $(RUNTIME) ## Measure how long no write is acknowledged when the leader dies
	$(BIN)/python bench/kill_leader.py $(ARGS)

bench-clients: $(TOOLS) ## Compare our client with kazoo on the same server, in turns
	$(BIN)/python bench/clients.py $(ARGS)

bench-sim: $(TOOLS) ## The simulator: events a second, times real time, how small failing runs become
	$(BIN)/python bench/simulator.py $(ARGS)

clean: ## Remove .venv and what the tools left behind
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage

$(RUNTIME): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "zabd needs Python 3.11 or newer, which $(PYTHON) is not: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[metrics,shell]'
	@$(PIP) --only-binary :all: uvloop || echo "No uvloop for this Python: asyncio's own loop serves." >&2
	@touch $@

$(TOOLS): $(RUNTIME)
	$(PIP) --editable '.[dev]'
	@touch $@
