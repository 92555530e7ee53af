# Two commands matter: `make up` (a cluster to play with) and `make test` (everything we check).
# Both set themselves up: Python 3.11 or newer and make are all they need.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
NODES ?= 3
SEED ?= 1
WORKLOAD ?= all
SHARED ?=
MINUTES ?=
OPERATIONS ?=
PARTS ?=
TEST_JOBS ?= 4
PYTEST_ARGS ?=
UP_ARGS ?=
BENCH_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help up test lint format bench chaos sim sim-long robustness proof docs image lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

$(STAMP): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found: install it, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "setup: $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { echo "setup: '$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "setup: installing Holdfast and its tools, checked against the hashes of requirements.lock"
	@# The backend first: a source among the others is then built by the locked one, not by what an isolated build would fetch.
	@sed -n '/^setuptools==/,/[^\\]$$/p' requirements.lock >$(VENV)/backend.lock
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement $(VENV)/backend.lock
	@$(BIN)/python -m pip install --quiet --require-hashes --no-build-isolation --use-pep517 --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "setup: done"

up: $(STAMP) ## start NODES=3 real nodes here, data in ./data; Ctrl-C stops them; UP_ARGS="--base-port 8100"
	@exec $(BIN)/holdfast up --nodes $(NODES) $(UP_ARGS)

lint: $(STAMP) ## ruff, formatting, mypy --strict
	@echo "lint: ruff check" && $(BIN)/ruff check --quiet .
	@echo "lint: ruff format" && $(BIN)/ruff format --quiet --check . || { $(BIN)/ruff format --check .; exit 1; }
	@echo "lint: mypy --strict" && $(BIN)/mypy --strict --no-error-summary

format: $(STAMP) ## rewrite the sources as ruff format has them
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format .

test: lint ## everything but Docker: lint, types, tests, simulation
	@# The tests start hundreds of nodes: without kept bytecode each would compile all of Holdfast anew.
	@echo "test: pytest" && env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -m "not docker" -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder --durations=10 $(PYTEST_ARGS)

sim: $(STAMP) ## one simulated run of each workload: make sim SEED=42, with WORKLOAD=locks of that one; SHARED=1: by the older plans
	@$(BIN)/python -m tests.sim --seed $(SEED) --workload $(WORKLOAD) $(if $(SHARED),--shared)

sim-long: $(STAMP) ## 10,000 simulated runs, or as many as MINUTES=60 allow; goes on where it was left
	@$(BIN)/python -m tests.sim --long --workload $(WORKLOAD) $(if $(MINUTES),--minutes $(MINUTES))

robustness: $(STAMP) ## real processes behind link proxies under faults, histories checked: MINUTES=10 OPERATIONS=1000000
	@$(BIN)/python -m tests.robustness $(if $(MINUTES),--minutes $(MINUTES)) $(if $(OPERATIONS),--operations $(OPERATIONS))

proof: $(STAMP) ## all of it, written to docs/PROOF.md: 10,000 seeds take hours; MINUTES=20: no more for them and real clusters; PARTS="flips fuzz": only those
	@$(BIN)/python -m tests.proof $(if $(MINUTES),--minutes $(MINUTES)) $(if $(PARTS),--parts $(PARTS))

bench: $(STAMP) ## all benchmarks next to etcd, ZooKeeper and Redis: make bench BENCH_ARGS="--only locks --quick"
	@$(BIN)/python -m bench $(BENCH_ARGS)

docs: $(STAMP) ## the documentation as a static site in site/
	@$(BIN)/python docs/build.py

image: $(STAMP) ## the Docker image holdfast:dev, without a network during the build
	@PYTHON=$(BIN)/python docker/build-image

chaos: $(STAMP) ## kill, cut and pause real containers of docker-compose.yml
	@$(BIN)/python -m tests.chaos

lock: ## renew requirements.lock from the bounds in pyproject.toml
	@docker/make-lock $(PYTHON)

clean: ## remove the venv, caches and built files (not ./data)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build docker/wheels
	@find coordinator cluster tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
