# The commands of the project; `make help` lists them. They need Python 3.11 or newer, make and bash, and install the rest.
.DEFAULT_GOAL := help
.PHONY: help setup demo down test test-full checks drill drill-supervision bench matrix lint format lock clean \
        test-platform test-rings test-unit test-integration test-integration-tables test-integration-programs \
        test-spark test-spark-read test-spark-write test-orchestration test-end-to-end test-yarn

PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
SELECTION := # of tests, where it is not the one of pyproject.toml
BESIDE := # `nice`, where a ring takes what another one leaves
WITHOUT_SERVICES := lint test-unit
WITH_SERVICES := test-spark-read test-spark-write test-integration-tables test-orchestration test-integration-programs
CHECKS := $(WITHOUT_SERVICES) $(WITH_SERVICES)

# The subjects of the two processes that test Spark. Both take about as long.
SPARK_READ := $(addprefix tests/spark/,sources decoding state refresh maintenance runs)
SPARK_WRITE := $(addprefix tests/spark/,session delivery backfill)

# Those of the two processes of integration: what happens to tables, and everything else.
INTEGRATION_TABLES := $(addprefix tests/integration/,erasure leftovers maintenance positions publication)
INTEGRATION_PROGRAMS := $(addprefix tests/integration/,\
cli demo faults launching ledger pages processes setup sources stack supervision tables test_make.py work)

# With it every ring, and every process that a test starts, would compile the same modules again.
unexport PYTHONDONTWRITEBYTECODE

ifeq ($(MAKECMDGOALS),checks)
# Rings that run in parallel print whole lines only. The filter survives Ctrl-C, so that each ring can report its result.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
WHOLE_LINES := | (trap '' INT; exec sed -u '')
else
.NOTPARALLEL:
endif

help: ## List the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-26s %s\n", $$1, $$2 }'

setup: ## Install what everything else needs: packages, Java, jars (fast when repeated)
	@$(PYTHON) include/sluice/stack/bootstrap.py

# Without the archive of Spark's classes: it takes more processor time than it saves in one demo (decision 0006).
demo: ## Run the whole platform on real flight data and verify it
	@$(PYTHON) include/sluice/stack/bootstrap.py --without-class-archive
	@$(BIN)/sluice demo

down: ## Stop the local stack and every process that it started
	@if [ -x $(BIN)/sluice ]; then $(BIN)/sluice stack down; fi

test: test-platform test-rings ## Run every test ring and the checks; large sets of cases by a sample
	@echo "All checks and all test rings passed."

test-full: ## Run the same with all cases but those of `make drill`
	@$(MAKE) --no-print-directory test SELECTION='-m "not drill"'

# The whole platform is tested first, since beside other rings with services its stacks, which also cost when they wait,
# would run for several times as long. Its waits leave a quarter of two cores: to what needs no service, at a lower
# priority. The other rings share two cores: one that began when another has ended would be alone at the end.
# Those of Spark and of integration run as two processes, each with services of its own.
test-platform: setup
	@$(MAKE) --no-print-directory --jobs=2 BESIDE=nice checks CHECKS="test-end-to-end $(WITHOUT_SERVICES)"

test-rings: setup
	@$(MAKE) --no-print-directory --jobs=5 checks CHECKS="$(WITH_SERVICES)"

checks: $(CHECKS)

# Ten times as many random streams as in `make test` may take ten times as long.
drill: setup ## Race publishers, freeze drivers and kill them at every point, for hours; no other stack may run
	$(BIN)/python -m tests.faults.publishing_races
	$(BIN)/python -m tests.faults.stopped_publisher
	$(BIN)/python -m tests.faults.stopped_driver
	$(BIN)/python -m tests.faults.ledger_failover
	$(BIN)/python -m tests.faults.long_run --batches 1500
	SLUICE_TEST_EVENT_STREAMS=10 $(PYTEST) -m full tests/spark/state/test_event_time.py --timeout=6000
	$(BIN)/python -m tests.faults.differential --cases 1000
	$(BIN)/python -m tests.faults.differential --cases 500 --seed 1000 --time-zone Europe/Berlin
	$(BIN)/python -m tests.faults.differential --cases 500 --seed 1500 --time-zone America/St_Johns
	$(BIN)/python -m tests.faults.crash_table
	$(BIN)/python -m tests.faults.expired_input
	$(BIN)/python -m tests.faults.table_starts
	$(BIN)/python -m tests.faults.evolving_producer --minutes 30
	$(BIN)/python -m tests.faults.upkeep_beside_streams
	$(PYTEST) -m drill tests/integration --timeout=1200
	$(PYTEST) -m drill tests/spark --timeout=1200
	TZ=Europe/Berlin SLUICE_TEST_SEEDS=170:335 $(PYTEST) tests/spark/backfill/test_any_history.py --timeout=1200
	TZ=America/St_Johns SLUICE_TEST_SEEDS=335:500 $(PYTEST) tests/spark/backfill/test_any_history.py --timeout=1200
	$(PYTEST) -m drill tests/orchestration --timeout=1200
	SLUICE_TEST_REPEATED_DEMO=1 $(PYTEST) tests/end_to_end/test_demo.py
	$(BIN)/python -m tests.faults.supervision_sequences
	$(BIN)/python -m tests.faults.mutated_declarations
	$(BIN)/python -m tests.faults.visible_troubles
	@$(MAKE) --no-print-directory drill-supervision

drill-supervision: setup ## Kill and freeze drivers and Airflow while the demo's streams run; part of drill
	$(BIN)/python -m tests.faults.supervision_drill

BENCHMARKS := delivery_time supervised_time publication_time decode_time triggerer_lag parse_time merge_time fast_trigger \
              retention_time ledger_year pages_time reconciler_pass backfill_time increment_time idle_tables binpack_time \
              rule_time small_files many_files

bench: setup ## Measure deliveries, publications, a triggerer, parsing, the ledger, the pages, backfills, increments and idle tables against baselines; no other stack may run
	@failed=; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name || failed="$$failed $$name"; done; \
		if [ -n "$$failed" ]; then echo "Benchmarks beyond their limits:$$failed"; exit 1; fi

lint: setup ## Check style, format and types
	$(BESIDE) $(BIN)/ruff check .
	$(BESIDE) $(BIN)/ruff format --check .
	$(BESIDE) $(BIN)/mypy

test-unit: setup ## Run the tests of single parts and of the architecture: no service, no database, no Airflow; seconds
	$(BESIDE) $(PYTEST) $(SELECTION) tests/unit tests/architecture $(WHOLE_LINES)

test-integration: setup ## Run the tests with real databases, catalogs, programs and processes, and the contract suites
	$(PYTEST) $(SELECTION) tests/contracts tests/integration $(WHOLE_LINES)

test-integration-tables: setup
	$(PYTEST) $(SELECTION) $(INTEGRATION_TABLES) $(WHOLE_LINES)

test-integration-programs: setup
	$(PYTEST) $(SELECTION) tests/contracts $(INTEGRATION_PROGRAMS) $(WHOLE_LINES)

test-spark: setup ## Run the tests on a real Spark
	$(PYTEST) $(SELECTION) tests/spark $(WHOLE_LINES)

test-spark-read: setup
	$(PYTEST) $(SELECTION) $(SPARK_READ) $(WHOLE_LINES)

test-spark-write: setup
	$(PYTEST) $(SELECTION) $(SPARK_WRITE) $(WHOLE_LINES)

test-orchestration: setup ## Run the tests on a real Airflow
	$(PYTEST) $(SELECTION) tests/orchestration $(WHOLE_LINES)

test-end-to-end: setup ## Run the tests of the whole platform as a user runs it
	$(PYTEST) $(SELECTION) tests/end_to_end $(WHOLE_LINES)

test-yarn: setup ## Run the tests on a real YARN of one node; fetches 80 MB once, and is not part of `make test`
	$(PYTEST) tests/yarn

matrix: setup ## Run every combination of input, output, trigger and mode that Spark allows, and print a table with reasons
	@$(BIN)/python -m tests.matrix

format: setup ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## Rewrite uv.lock and ivy.lock after a change of pyproject.toml or ivy.xml
	@[ -x $(BIN)/uv ] || $(MAKE) setup
	$(BIN)/uv lock
	$(BIN)/python -m sluice.setup.jars

clean: down ## Remove the environment, the data and the caches of tools from this folder; the user's cache stays
	rm -rf .venv .sluice .mypy_cache .ruff_cache .pytest_cache .hypothesis
