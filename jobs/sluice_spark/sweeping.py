"""Lets go of what a driver's Python holds between batches, before it is too much.

Every table that is loaded brings a file system of its own, with connections that only Python's collector of cycles
closes. Left to itself the collector comes when many objects have come and gone: 60 batches of a small stream held 550
open files by then, and a process may have 1,024.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import count

from pyspark.sql import DataFrame

_EVERY_BATCHES = 10
"""A collection takes 0.1-0.2 s; so often it costs a batch at most 20 ms, and no more than 170 files were open."""


def swept(deliver: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """The same delivery, for `foreachBatch`, with a collection after every tenth batch."""
    delivered = count(1)

    def deliver_and_sweep(batch: DataFrame, number: int) -> None:
        deliver(batch, number)
        if next(delivered) % _EVERY_BATCHES == 0:
            gc.collect()

    return deliver_and_sweep
