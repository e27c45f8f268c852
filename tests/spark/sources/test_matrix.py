"""Inputs, outputs, triggers and modes run on real services; `make test-full` runs every pair of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.drill import sampled
from tests.matrix.choosing import each_once, pairwise, runnable_combinations
from tests.matrix.running import name_of, run_combination
from tests.matrix.services import Services, services_in

from sluice.declarations.checks.combinations import Combination
from sluice.ledger.connection import open_ledger
from sluice.settings import Settings


@pytest.fixture(scope="module")
def words(spark: SparkSession, settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Sources that hold the words."""
    folder = tmp_path_factory.mktemp("matrix")
    with (
        open_ledger(settings.ledger_url.get_secret_value()) as ledger,
        services_in(folder, spark=spark, settings=settings, ledger=ledger) as services,
    ):
        yield services


PAIRS = pairwise(runnable_combinations())
ELSEWHERE = ("kafka_to_iceberg_processing_time_append", "kinesis_to_kafka_once_update", "files_to_delta_once_append")
"""Of those that hold each part once: what other tests of every run have of Iceberg, and of Delta (`test_sinks.py`)."""

SAMPLE = [one for one in each_once(PAIRS) if name_of(one) not in ELSEWHERE]


@pytest.mark.parametrize("combination", sampled(PAIRS, SAMPLE, full=PAIRS), ids=name_of)
def test_a_combination_runs(combination: Combination, words: Services) -> None:
    run_combination(combination, words)
