"""Keeps static inputs of files up to date, while a query runs.

Spark plans every batch again, and so reads tables again. But it lists the files of a folder only once, when the stream
starts, and this module repeats that. A batch that runs meanwhile keeps what it was planned with. Inputs that may be
reused for a while are read from copies (`static_copies`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.source_declarations import FilesSource

_log = logging.getLogger(__name__)

LISTING_SECONDS = 1.0
"""The age limit of a list of files: a batch sees the files that were there a second before it started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What keeps a static input up to date, and how often it is done."""

    input: str
    every_seconds: float
    renew: Callable[[], None]


class Renewals:
    """The renewals of a stream, and when each was last made.

    Parameters
    ----------
    renewals: what is done how often.
    """

    def __init__(self, renewals: Sequence[Renewal]) -> None:
        self._renewals = renewals
        self._made_at: dict[str, float] = {}

    def renew_due(self, *, now_seconds: float) -> None:
        """Make every renewal that is due; the first time, all. A failed renewal is tried again at the next call.

        Parameters
        ----------
        now_seconds: of a monotonic clock.
        """
        for renewal in self._renewals:
            made_at = self._made_at.get(renewal.input)
            if made_at is not None and now_seconds - made_at < renewal.every_seconds:
                continue
            try:
                renewal.renew()
            except (PySparkException, Py4JJavaError) as error:
                _log.warning("the static input %s cannot be read again: %s", renewal.input, str(error).splitlines()[0])
            else:
                self._made_at[renewal.input] = now_seconds

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Renew at once, and then whenever a renewal is due, on a thread of its own, until the block ends."""
        if not self._renewals:
            yield
            return
        over = threading.Event()
        period_seconds = min(renewal.every_seconds for renewal in self._renewals)
        self.renew_due(now_seconds=time.monotonic())

        def work() -> None:
            while not over.wait(min(period_seconds, LISTING_SECONDS)):
                self.renew_due(now_seconds=time.monotonic())

        thread = threading.Thread(target=work, name="static-inputs", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def renewals_of(declared: Mapping[str, InputDeclaration], opened: Mapping[str, DataFrame]) -> Renewals:
    """What keeps the static inputs of a stream up to date.

    Parameters
    ----------
    declared: the inputs by name. opened: the DataFrame of each.
    """
    return Renewals([renewal for name in declared for renewal in _renewals_of(name, declared[name], opened[name])])


def _renewals_of(name: str, declared: InputDeclaration, rows: DataFrame) -> Iterator[Renewal]:
    is_listed = isinstance(declared.declared_source.source, FilesSource)
    if is_listed and not declared.is_stream and declared.refresh is None:
        yield Renewal(input=name, every_seconds=LISTING_SECONDS, renew=partial(list_files_again, rows))


def list_files_again(rows: DataFrame) -> None:
    """List the files of a folder again, of which Spark keeps the first list."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    for index in range(leaves.size()):
        leaves.apply(index).relation().location().refresh()
