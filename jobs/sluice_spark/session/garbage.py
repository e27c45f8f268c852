"""Collects Python's garbage in a driver after every batch.

Every loaded table has a file system of its own, whose connections are only closed by Python's cyclic garbage collector.
By default the collector runs after many allocations: by then, 60 batches of a small stream had 550 open files, and a
process may have 1,024.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache

from pyspark.sql import DataFrame

from sluice_spark.session.item_context import in_this_context


@cache
def exclude_imports() -> None:
    """Exclude the objects that exist now, above all imported modules, from collections: once in a process.

    A collection of those 240,000 objects takes 0.16 s and blocks all other threads of Python. A collection of the 500
    objects that a batch leaves takes 1 ms.
    """
    gc.collect()
    gc.freeze()


def swept(deliver: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Wrap a delivery for `foreachBatch`: garbage is collected after every batch. It has the context of the run."""
    deliver = in_this_context(deliver)

    def deliver_and_sweep(batch: DataFrame, number: int) -> None:
        deliver(batch, number)
        gc.collect()

    return deliver_and_sweep
