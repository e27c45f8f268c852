"""How Spark runs a random case: most interpret their expressions, every seventh compiles them as a driver does.

Each plan of a case is new, so that Spark compiles Java for it that runs a few rows: more than a third of the processor
time of a case.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_COMPILED_OF = 7
"""No divisor of the numbers of kinds that go round with the seeds, so that each kind is compiled too."""

_FEW_ROWS = {"spark.sql.shuffle.partitions": "1"}

_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


def is_compiled(seed: int) -> bool:
    """Whether the case of a seed runs with the compiler and with adaptive plans, as drivers do."""
    return seed % _COMPILED_OF == 0


@contextmanager
def engine_of(spark: SparkSession, seed: int) -> Iterator[None]:
    """Set a session to what the case of a seed runs with; afterwards it is as it was."""
    wanted = _FEW_ROWS if is_compiled(seed) else _FEW_ROWS | _INTERPRETED
    previous = {name: str(spark.conf.get(name)) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in previous.items():
            spark.conf.set(name, value)
