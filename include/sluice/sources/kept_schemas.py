"""Keeps the schemas of a run's inputs in the ledger, and asks the ledger no more often than it must."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger
from sluice.ledger.source_schemas import SeenSchema, record_seen_schema

_log = logging.getLogger(__name__)

AWAY_SECONDS = 60.0
"""How long what was away is left alone: a try takes up to half a minute, and a batch may be there each second."""

_MOST_KEPT = 200
"""Schemas of one input that a run knows again; more are a write each."""


class KeptSchemas:
    """The schemas that one thread of a run has seen of its inputs.

    Parameters
    ----------
    ledger: unset for a run that keeps nothing.
    clock: in seconds.
    """

    def __init__(self, stream: str, ledger: Ledger | None, *, clock: Callable[[], float] = monotonic) -> None:
        self._stream = stream
        self._ledger = ledger
        self._clock = clock
        self._away_until = clock()
        self._last: dict[str, SeenSchema] = {}
        self._kept: dict[str, dict[frozenset[tuple[str, str]], None]] = {}
        self._newest: dict[str, SeenSchema] = {}

    def see(self, seen: SeenSchema) -> bool:
        """Take a schema. One of many that the run has kept before waits for `keep_newest`.

        Returns
        -------
        Whether it is kept. A ledger that is away stops no batch: the schema is kept at its next sight after a pause.
        """
        if self._ledger is None:
            return True
        if seen.is_one_of_many and frozenset(seen.fields.items()) in self._kept.get(seen.input, {}):
            self._newest[seen.input] = seen
            return True
        return self._keep(self._ledger, seen)

    def keep_newest(self) -> None:
        """Keep which of the many schemas of each input was the last one in a batch: a write at most, and none when it
        is the last one that is kept."""
        if self._ledger is not None:
            for seen in self._newest.values():
                self._keep(self._ledger, seen)
        self._newest.clear()

    def _keep(self, ledger: Ledger, seen: SeenSchema) -> bool:
        last = self._last.get(seen.input)
        if last is not None and last.fields == seen.fields:
            return True
        if self._clock() < self._away_until:
            return False
        try:
            record_seen_schema(ledger, self._stream, seen)
        except LedgerError as error:
            _log.warning("the schema of the input %s could not be kept: %s", seen.input, error)
            self._away_until = self._clock() + AWAY_SECONDS
            return False
        self._last[seen.input] = seen
        kept = self._kept.setdefault(seen.input, {})
        kept[frozenset(seen.fields.items())] = None
        if len(kept) > _MOST_KEPT:
            del kept[next(iter(kept))]
        return True
