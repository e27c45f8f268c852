"""Whether an error of Spark says which line of Python has built the expression that failed, item by item.

PySpark asks the setting of whichever session is active first, and keeps the answer for the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pyspark.errors.utils

_are_named: ContextVar[bool] = ContextVar("names_call_sites", default=False)


def choose_call_sites_by_context() -> None:
    """Let PySpark ask the context of the thread instead. For an application of many items."""
    pyspark.errors.utils.is_debugging_enabled = _are_named.get


@contextmanager
def call_sites(*, named: bool) -> Iterator[None]:
    """Whether they are named in the block, and in what has its context."""
    token = _are_named.set(named)
    try:
        yield
    finally:
        _are_named.reset(token)
