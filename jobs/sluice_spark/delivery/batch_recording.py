"""Joins what Spark and the publication report of a batch, with its figures, and records the batch in the ledger.

Spark reports what a batch did after it was staged; the publication reports when the batch became visible. With grouped
publication these are minutes apart. A batch that is visible and not recorded stays in the staging tables, so that a
crash in between loses no record.

Only staged files have metrics that are read for the commit, and they become the figures of the batch. A merge is read
by Spark, and what is written directly was never staged: neither has figures.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from tenacity import retry, retry_if_exception_type, stop_when_event_set, wait_exponential

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import masked_columns_of_table
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT, StreamDeclaration
from sluice.errors import LedgerError, SluiceError
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.hourly_figures import ColumnFigures
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.publish_batches import Publication
from sluice.tables.column_facts import figures_of

_log = logging.getLogger(__name__)

_MASKS_KNOWN_SECONDS = 3600.0
"""How long masks of streams before this one are not read again: all declarations are read for it."""

Figures = Mapping[str, Mapping[str, ColumnFigures]]
"""By output and column."""


@dataclass(slots=True, kw_only=True)
class DeclaredMasks:
    """The columns of which a stream, or one before it, masks something.

    folder: of the declarations. now_seconds: a clock that never goes back.
    """

    declaration: StreamDeclaration
    folder: Path
    now_seconds: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, frozenset[str] | None]] = field(default_factory=dict)

    def of(self, table: str) -> frozenset[str] | None:
        """The columns of a table that the stream writes, in lower case; none when it is not known which they are."""
        own = self.declaration.masked_names
        if not self.declaration.tables_read:
            return own
        now = self.now_seconds()
        if table not in self._known or now - self._known[table][0] >= _MASKS_KNOWN_SECONDS:
            self._known[table] = (now, self._read(table))
        _, before = self._known[table]
        return None if before is None else own | before

    def _read(self, table: str) -> frozenset[str] | None:
        try:
            declarations = load_declarations(self.folder)
        except (SluiceError, OSError) as error:
            _log.warning("the masked columns of %s are not known, so no bounds of columns are kept: %s", table, error)
            return None
        if len(declarations.streams) < len(declarations.stream_names):  # one that is broken may mask a column
            return None
        return masked_columns_of_table(declarations, table)


@dataclass(slots=True, kw_only=True)
class KeptFigures:
    """The figures of the batches of one run.

    masked_of: as `DeclaredMasks.of`. is_kept: not those of the shadow of a refresh, whose table no stream declares.
    """

    masked_of: Callable[[str], frozenset[str] | None]
    is_kept: bool = True
    _kept: dict[PublicationKey, dict[str, Mapping[str, ColumnFigures]]] = field(default_factory=dict)

    def note(self, output: str, table: str, published: Publication) -> None:
        """Keep the figures of what has become visible in an output. Rejected rows have none."""
        schema = published.staged_schema
        if not self.is_kept or output == QUARANTINE_OUTPUT or schema is None:
            return
        try:
            masked = self.masked_of(table)
            for batch in published.published:
                figures = figures_of(published.staged_files.get(batch.snapshot_id, ()), schema, masked=masked)
                self._kept.setdefault(batch.summary.key, {})[output] = figures
        except Exception as error:  # noqa: BLE001  # the batch is visible: its publication must not fail for its figures
            _log.warning("the figures of a batch for %s are not known: %r", table, error)

    def take(self, key: PublicationKey) -> Figures:
        """The figures of a batch, which are not kept any longer."""
        return self._kept.pop(key, {})


HandOver = Callable[[BatchObservation, Callable[[], None]], None]
"""Takes a batch to record, at once, and calls the function when the ledger has it."""

_NO_FIGURES: Figures = MappingProxyType({})
_LONGEST_WAIT_SECONDS = 10.0
_CLOSING_SECONDS = 15.0
"""How long the end of a run waits for the last records. A ledger that is away longer loses the records of the last
batches and no data: the tables hold the batches."""


class Recording:
    """The batches of one run on their way into the ledger.

    Parameters
    ----------
    hand_over: takes the observation of each batch.
    awaits_publication: whether batches become visible in tables; otherwise Spark's report is complete.
    reached: is called with `RECORDED` when the ledger has a batch.
    """

    def __init__(self, hand_over: HandOver, *, awaits_publication: bool = True, reached: Reached = unnoticed) -> None:
        self._hand_over = hand_over
        self._awaits_publication = awaits_publication
        self._reached = reached
        self._changed = threading.Condition()
        self._observed: dict[PublicationKey, BatchObservation] = {}
        self._published: dict[PublicationKey, tuple[Mapping[str, int], Figures]] = {}
        self._staged_again: dict[PublicationKey, BatchObservation] = {}
        self._unrecorded: set[PublicationKey] = set()

    @property
    def unrecorded(self) -> frozenset[PublicationKey]:
        """The batches that are visible and that the ledger does not have yet."""
        with self._changed:
            return frozenset(self._unrecorded)

    def observed(self, batch: BatchObservation) -> None:
        """Take what Spark reported of a batch."""
        with self._changed:
            self._observed[batch.key] = batch
            if not self._awaits_publication:
                self._published[batch.key] = (batch.snapshot_ids, {})
        self._hand_over_if_whole(batch.key)

    def published(self, key: PublicationKey, snapshot_ids: Mapping[str, int], figures: Figures = _NO_FIGURES) -> None:
        """Take note that a batch is visible. snapshot_ids: of the targets, by output. figures: of its columns."""
        with self._changed:
            self._published[key] = (snapshot_ids, figures)
            self._unrecorded.add(key)
        self._hand_over_if_whole(key)

    def staged_again(self, batch: BatchObservation) -> None:
        """Take what a batch is made of since it was staged again, which Spark's report of it does not say."""
        with self._changed:
            self._staged_again[batch.key] = batch

    def recovered(self, batch: BatchObservation) -> None:
        """Take a batch that an earlier driver staged and that this one knows from its snapshots alone."""
        with self._changed:
            self._unrecorded.add(batch.key)
        self._hand_over(batch, lambda: self._recorded(batch.key))

    def awaits_repetition(self, key: PublicationKey) -> None:
        """Take note of a visible batch that Spark runs again and then reports; until then it counts as unrecorded."""
        with self._changed:
            self._unrecorded.add(key)

    def forget(self, key: PublicationKey) -> None:
        """Leave out what Spark reported of a batch that a person has rejected: the ledger has it as that."""
        with self._changed:
            self._observed.pop(key, None)

    def await_settled(self, timeout_seconds: float) -> bool:
        """Wait until the ledger has every batch that is visible, at most so long. Returns whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unrecorded, timeout_seconds)

    def _hand_over_if_whole(self, key: PublicationKey) -> None:
        with self._changed:
            if key not in self._observed or key not in self._published:
                return
            batch, (snapshot_ids, figures) = self._observed.pop(key), self._published.pop(key)
            if (now := self._staged_again.pop(key, None)) is not None:
                rows, refused = now.published_rows, now.refused_rows
                batch = replace(batch, published_rows=rows, refused_rows=refused, rule_results=now.rule_results)
        whole = replace(batch, snapshot_ids=snapshot_ids, column_figures=figures)
        self._hand_over(whole, lambda: self._recorded(key))

    def _recorded(self, key: PublicationKey) -> None:
        self._reached(CrashPoint.RECORDED)
        with self._changed:
            self._unrecorded.discard(key)
            self._changed.notify_all()


class LedgerWriter:
    """Records batches in the ledger on a thread of its own, so that a slow ledger never slows a batch.

    A context manager: leaving it writes what is left.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._queue: queue.SimpleQueue[tuple[BatchObservation, Callable[[], None]] | None] = queue.SimpleQueue()
        self._giving_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ledger-writer", daemon=True)

    def __enter__(self) -> LedgerWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join(_CLOSING_SECONDS)
        self._giving_up.set()
        if self._thread.is_alive():
            _log.error("%d batches could not be recorded in the ledger", self._queue.qsize())

    def hand_over(self, batch: BatchObservation, recorded: Callable[[], None]) -> None:
        """Take a batch to record, and return at once. recorded: is called when the ledger has the batch."""
        self._queue.put((batch, recorded))

    def _work(self) -> None:
        while (handed_over := self._queue.get()) is not None:
            batch, recorded = handed_over
            try:
                self._record(batch)
                recorded()
            except LedgerError as error:
                _log.error("batch %d could not be recorded: %s", batch.key.batch, error)
            except Exception:  # noqa: BLE001  # a defect in one record must not end the thread that writes all the others
                _log.exception("batch %d could not be recorded", batch.key.batch)

    def _record(self, batch: BatchObservation) -> None:
        patiently = retry(
            retry=retry_if_exception_type(LedgerError),
            wait=wait_exponential(multiplier=0.2, max=_LONGEST_WAIT_SECONDS),
            stop=stop_when_event_set(self._giving_up),
            before_sleep=lambda _: _log.warning("the ledger does not answer; batch %d waits", batch.key.batch),
            reraise=True,
        )
        patiently(record_batch)(self._ledger, batch)
