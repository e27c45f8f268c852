"""Each input, output, trigger and mode runs on real services; `make test-full` runs every pair of them."""

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


@pytest.mark.parametrize("combination", sampled(PAIRS, each_once(PAIRS), full=PAIRS), ids=name_of)
def test_a_combination_runs(combination: Combination, words: Services) -> None:
    run_combination(combination, words)
