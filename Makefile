# One verb a line; the longer logic is in scripts/. Needs GNU make, Python 3.11 and git.

PROFILE ?=
PORT ?= 3000
BIN := .venv/bin

export BENTOML_DO_NOT_TRACK := True
export VLLM_NO_USAGE_STATS := 1
ifdef PYTHON
export PYTHON
endif

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup serve test check bench bench-books bench-check bench-gate bench-outside bench-overload bench-scale bench-start lock prove-crash soak clean

help: ## say what there is (this list)
	@echo 'make <target> [PORT=$(PORT)] [PROFILE=cpu|gpu] [PYTHON=python3.11]'
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='	' read -r target what; do \
		printf '  %-14s %s\n' "$$target" "$$what"; done

setup: ## install the locked packages and this project into .venv (once; then it costs nothing)
	@sh scripts/setup.sh $(PROFILE)

serve: setup ## fetch and verify the demo release, then serve it on http://127.0.0.1:PORT
	$(BIN)/jubako release fetch
	exec $(BIN)/jubako serve --port $(PORT)

test: setup check ## run every check and every test: unit, contract, end to end
	$(BIN)/jubako release fetch
	$(BIN)/python -m pytest $(wildcard tests/unit) $(wildcard tests/contract) $(wildcard tests/e2e) $(PYTEST_ARGS)

check: setup ## format, lint, types and the rooms' boundaries (seconds)
	$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --diff . ; exit 1; }
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary src tests $(wildcard service.py)
	$(BIN)/lint-imports --no-logo

prove-crash: setup ## kill the server thirty times under load; the books must be whole after each (20 minutes)
	$(BIN)/jubako release fetch
	JUBAKO_TESTS_KILLS=30 $(BIN)/python -m pytest tests/e2e/test_crash.py -s $(PYTEST_ARGS)

bench: setup ## measure CPU per token and request, speed and latency beside vLLM's own server (25 minutes)
	$(BIN)/jubako release fetch
	$(BIN)/python -m tests.bench.speed run

bench-check: setup ## fail if a streamed token's CPU, beside vLLM's own server's, is over its budget (5 minutes)
	$(BIN)/jubako release fetch
	$(BIN)/python -m tests.bench.speed check

bench-books: setup ## measure what the books cost in CPU per streamed token; fails above five percent (10 minutes)
	$(BIN)/jubako release fetch
	PYTHONPATH=. $(BIN)/python -m tests.bench.books

bench-gate: setup ## measure one decision of the admission queue; fails if it grows with queue or tenants
	PYTHONPATH=. $(BIN)/python -m tests.bench.gate

bench-outside: setup ## have GuideLLM, in an environment of its own, measure Jubako and vLLM's own server (10 minutes)
	$(BIN)/jubako release fetch
	@sh scripts/outside.sh
	$(BIN)/python -m tests.bench.outside run

bench-overload: setup ## measure goodput, refusals and fairness under overload, beside vLLM's own server (20 minutes)
	$(BIN)/jubako release fetch
	$(BIN)/python -m tests.bench.overload run

bench-start: setup ## measure the time to ready beside vLLM's own server; fails above 1.10 times (10 minutes)
	$(BIN)/jubako release fetch
	$(BIN)/python -m tests.bench.start run

bench-scale: setup ## measure what a request costs from 10 to 10,000 tenants, a token from 1 to 256 streams (7 minutes)
	$(BIN)/jubako release fetch
	$(BIN)/python -m tests.bench.scale run

soak: setup ## half an hour of mixed load, disconnects and errors; fails if anything is left or gets slower (35 minutes)
	$(BIN)/jubako release fetch
	$(BIN)/python -m tests.bench.soak run

lock: ## solve pyproject.toml into requirements/*.txt (UPGRADE=1 takes newer versions; needs the network)
	@sh scripts/lock.sh $(if $(UPGRADE),--upgrade)

clean: ## remove the environment and every cache; the API key and the stored models stay
	rm -rf .venv .jubako/lock-tools .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/jubako.egg-info
