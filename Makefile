# Everything a person types. `make help` lists it. Needs only Python 3.11 or newer, make and bash; the rest is brought.
.DEFAULT_GOAL := help
.PHONY: help setup demo down test checks drill drill-supervision bench matrix lint format lock clean \
        test-unit test-integration test-spark test-orchestration test-end-to-end test-yarn

PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
CHECKS := lint test-unit test-spark test-orchestration test-integration test-end-to-end
CHECKS_AT_ONCE := 3

# Without it every ring, and every process that a test starts, would compile the same modules anew.
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(MAKECMDGOALS),checks)
# Side by side they print whole lines only. The filter outlives Ctrl-C, so that each ring can say how it ended.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
WHOLE_LINES := | (trap '' INT; exec sed -u '')
else
.NOTPARALLEL:
endif

help: ## List what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-26s %s\n", $$1, $$2 }'

setup: ## Bring what everything else needs: packages, Java, jars (quick when repeated)
	@$(PYTHON) include/sluice/stack/bootstrap.py

demo: setup ## Run the whole platform on real flight data and verify it
	@$(BIN)/sluice demo

down: ## Stop the local stack and everything that it started
	@if [ -x $(BIN)/sluice ]; then $(BIN)/sluice stack down; fi

# A ring waits for its services about as long as it computes, so three of them fill two cores. The longest begins first.
test: setup ## Run the checks and every test ring, three at a time
	@$(MAKE) --no-print-directory --jobs=$(CHECKS_AT_ONCE) checks
	@echo "All checks and all test rings passed."

checks: $(CHECKS)

# Ten times the random streams of `make test` may take ten times as long.
drill: setup ## Let publishers race, drivers freeze and drivers die at every place, for hours; needs no other stack
	$(BIN)/python -m tests.faults.publishing_races
	$(BIN)/python -m tests.faults.stopped_publisher
	$(BIN)/python -m tests.faults.stopped_driver
	$(BIN)/python -m tests.faults.long_run --batches 1500
	SLUICE_TEST_EVENT_STREAMS=10 $(PYTEST) tests/spark/test_event_time.py --timeout=6000
	$(BIN)/python -m tests.faults.crash_table
	@$(MAKE) --no-print-directory drill-supervision

drill-supervision: setup ## Kill and freeze drivers and Airflow while flights flow through the demo's streams; part of drill
	$(BIN)/python -m tests.faults.supervision_drill

BENCHMARKS := delivery_time supervised_time publication_time triggerer_lag parse_time merge_time fast_trigger forgetting_batches

bench: setup ## Measure deliveries and publications beside the same work by hand, a triggerer, parsing, the ledger; needs no other stack
	@failed=; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name || failed="$$failed $$name"; done; \
		if [ -n "$$failed" ]; then echo "Beyond their limits:$$failed"; exit 1; fi

lint: setup ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-unit: setup ## Tests of single parts and of the architecture: no service, no database, no Airflow; seconds
	$(PYTEST) tests/unit tests/architecture $(WHOLE_LINES)

test-integration: setup ## Tests with real databases, catalogs, programs and processes; the contract suites of the ports
	$(PYTEST) tests/contracts tests/integration $(WHOLE_LINES)

test-spark: setup ## Tests on a real Spark
	$(PYTEST) tests/spark $(WHOLE_LINES)

test-orchestration: setup ## Tests on a real Airflow
	$(PYTEST) tests/orchestration $(WHOLE_LINES)

test-end-to-end: setup ## The whole platform as a person uses it
	$(PYTEST) tests/end_to_end $(WHOLE_LINES)

test-yarn: setup ## Tests on a real YARN of one node; fetches 80 MB once, and is no part of `make test`
	$(PYTEST) tests/yarn

matrix: setup ## Run every input, output, trigger and mode together that Spark allows; a table and reasons
	@$(BIN)/python -m tests.matrix

format: setup ## Put the code into the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## Write uv.lock and ivy.lock anew after pyproject.toml or ivy.xml was changed
	@[ -x $(BIN)/uv ] || $(MAKE) setup
	$(BIN)/uv lock
	$(BIN)/python -m sluice.setup.lock_jars

clean: down ## Remove everything that was made here: environment, data, caches of tools; the user's cache stays
	rm -rf .venv .sluice .mypy_cache .ruff_cache .pytest_cache .hypothesis
