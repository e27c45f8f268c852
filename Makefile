# Everything a person types. `make help` lists it. Needs only Python 3.11 or newer, make and a shell; the rest is brought.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo down test drill drill-supervision bench matrix lint format lock clean \
        test-unit test-contracts test-spark test-orchestration test-end-to-end test-yarn

PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest

help: ## List what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-26s %s\n", $$1, $$2 }'

setup: ## Bring what everything else needs: packages, Java, jars (quick when repeated)
	@$(PYTHON) include/sluice/stack/bootstrap.py

demo: setup ## Run the whole platform on real flight data and verify it
	@$(BIN)/sluice demo

down: ## Stop the local stack and everything that it started
	@if [ -x $(BIN)/sluice ]; then $(BIN)/sluice stack down; fi

test: setup lint test-unit test-contracts test-spark test-orchestration test-end-to-end ## Run the checks and every test ring
	@echo "All checks and all test rings passed."

drill: setup ## Let publishers race, drivers freeze and drivers die at every place, for hours; needs no other stack
	$(BIN)/python -m tests.faults.publishing_races
	$(BIN)/python -m tests.faults.stopped_publisher
	$(BIN)/python -m tests.faults.stopped_driver
	$(BIN)/python -m tests.faults.long_run --batches 1500
	SLUICE_TEST_EVENT_STREAMS=10 $(PYTEST) tests/spark/test_event_time.py
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

test-unit: setup ## Tests of single parts and of the architecture, no service, seconds
	$(PYTEST) tests/unit tests/architecture

test-contracts: setup ## Every port's fake and its real adapter against the same tests
	$(PYTEST) tests/contracts

test-spark: setup ## Tests on a real Spark
	$(PYTEST) tests/spark

test-orchestration: setup ## Tests on a real Airflow
	$(PYTEST) tests/orchestration

test-end-to-end: setup ## The whole platform as a person uses it
	$(PYTEST) tests/end_to_end

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
	$(BIN)/python -m sluice.prerequisites.lock_jars

clean: down ## Remove everything that was made here: environment, data, caches of tools; the user's cache stays
	rm -rf .venv .sluice .mypy_cache .ruff_cache .pytest_cache .hypothesis
