"""The staged batches of a run that wait for a person, and those behind them: publication is strictly in order.

    held ─► in the ledger ─► a person decides ─► published, or its marks move past it ─► the ledger forgets it

A thread looks for the decision while anything waits, so that a released batch becomes visible without new input. What
holds a batch stands in its staged snapshot, so a start finds it again, whatever ended the run before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import LedgerError
from sluice.ledger.batches import PublicationKey, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction, record_event
from sluice.ledger.held_batches import (
    HeldBatch,
    HeldDecision,
    hold_batch,
    hold_nothing,
    let_go,
    withdraw_decision,
)
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.mark_moves import reject_batch
from sluice.publication.staged_batch import is_held, rejected_observation
from sluice_spark.delivery.batch_separation import BatchSeparation, InseparableError
from sluice_spark.delivery.delivery_port import BatchGate
from sluice_spark.delivery.publisher import Publisher, StagedByOutput
from sluice_spark.query.row_rules import broken_rules

_log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often the thread looks for a decision while a batch waits: one short query."""

MOST_QUEUED = 10
"""How many batches queue behind a held one where the declaration does not say it."""


def key_of(batch: StagedByOutput) -> PublicationKey:
    """The key of a staged batch."""
    return next(iter(batch.values())).summary.key


@dataclass(slots=True)
class _Waiting:
    """A batch that waits. is_recovered: whether an earlier run has staged it, so that Spark does not report it.
    is_settled: whether it is visible or rejected, and only the ledger has to forget it.
    whole: the batch as a person sees it, once that is known: a separation that was begun counts for nothing."""

    batch: StagedByOutput
    is_recovered: bool
    is_settled: bool = False
    whole: StagedByOutput | None = None

    @property
    def is_held(self) -> bool:
        """Whether a rule holds it; others wait behind one."""
        return is_held(self.batch)


class HeldBatches:
    """What waits of one run. A context manager: leaving it ends the thread, and leaves what waits to the next run.

    Parameters
    ----------
    publish: makes a batch visible, once everything before it is; takes whether an earlier run has staged it.
    separation: stages a batch again without the rows that break the rules which hold it.
    forget: is called with a batch that was rejected.
    on_failure: is called when the thread has failed.
    gate: turns the next batch away when as many queue as may.
    """

    def __init__(
        self,
        ledger: Ledger,
        declaration: StreamDeclaration,
        publisher: Publisher,
        *,
        publish: Callable[[StagedByOutput, bool], None],
        separation: BatchSeparation,
        forget: Callable[[PublicationKey], None],
        on_failure: Callable[[], None],
        gate: BatchGate,
        reached: Reached = unnoticed,
    ) -> None:
        self._ledger, self._declaration, self._publisher = ledger, declaration, publisher
        self._publish, self._forget, self._on_failure = publish, forget, on_failure
        self._gate, self._reached, self._separation = gate, reached, separation
        tables = (one.iceberg for one in declaration.outputs.values())
        declared = [one.max_held_batches for one in tables if one is not None and one.max_held_batches is not None]
        self._most = min(declared, default=MOST_QUEUED)
        self._queue: list[_Waiting] = []
        self._let_go: set[PublicationKey] = set()  # of those that an earlier run has staged: Spark may run one again
        self._recorded: HeldBatch | None = None
        self._changed = threading.Condition()
        self._settling = threading.Lock()
        self._ending = threading.Event()
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits."""
        return bool(self._queue)

    def take_up(self, batches: Sequence[StagedByOutput]) -> None:
        """Take what earlier runs have left: the first one is held. What a person has decided is carried out.

        Raises
        ------
        LedgerError: when the ledger cannot be reached.
        DeliveryError, LakehouseError: when a batch cannot be published, or a mark cannot be moved.
        """
        if not batches:
            hold_nothing(self._ledger, self._declaration.stream)
            return
        self._queue = [_Waiting(batch=batch, is_recovered=True) for batch in batches]
        self._settle()

    def takes(self, batch: StagedByOutput) -> bool:
        """Whether a staged batch has to wait; it is then queued. One that Spark runs again is queued once."""
        with self._changed:
            self._raise_failure()
            if key_of(batch) in self._let_go:  # while it was computed again
                return True
            if not self._queue and not is_held(batch):
                return False
            known = next((one for one in self._queue if key_of(one.batch) == key_of(batch)), None)
            if known is None:
                self._queue.append(_Waiting(batch=batch, is_recovered=False))
            else:
                known.is_recovered = False
            self._changed.notify_all()
        try:
            self._settle()
        except LedgerError as error:
            _log.warning("a held batch is not in the ledger yet: %s", error)  # the thread tries again
        return True

    def await_room(self) -> None:
        """Before a batch is read: wait while as many queue as may. An increment ends instead.

        Raises
        ------
        TurnedAwayError: when the run ends meanwhile.
        Exception: what the thread has failed with.
        """
        with self._changed:
            self._raise_failure()
            if len(self._queue) <= self._most:
                return
            _log.warning("%d batches queue behind a held one: nothing more is read", len(self._queue) - 1)
            self._gate.waits.set()
            try:
                while len(self._queue) > self._most:
                    if self._declaration.mode == "incremental" or self._gate.is_closed:
                        self._gate.turn_away()
                    self._changed.wait(LOOK_SECONDS)
                    self._raise_failure()
            finally:
                self._gate.waits.clear()

    def watch(self) -> None:
        """Begin to look for decisions; nothing is looked for while nothing waits."""
        self._thread = threading.Thread(target=self._work, name="held-batches", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread.

        Raises
        ------
        Exception: what it has failed with.
        """
        self._ending.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while not self._ending.is_set():
            with self._changed:
                self._changed.wait(LOOK_SECONDS if self._queue else None)
            if self._ending.is_set():
                return
            try:
                self._settle()
            except LedgerError as error:
                _log.warning("the ledger does not say what was decided about a held batch: %s", error)
            except Exception as error:  # noqa: BLE001  # the thread's end: the error is kept whole and raised by the run
                _log.error("a held batch could not be let go, so the run ends: %s", error)
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                self._on_failure()
                return

    def _settle(self) -> None:
        """Carry out what a person has decided about the first batch, and publish what no longer waits behind it."""
        with self._settling:
            while self._queue:
                head = self._queue[0]
                if not head.is_settled and not self._carry_out(head):
                    return
                head.is_settled = True
                if head.is_held:
                    let_go(self._ledger, key_of(head.batch))
                    self._recorded = None
                    self._reached(CrashPoint.LET_GO)
                with self._changed:
                    self._queue.pop(0)
                    if head.is_recovered and head.is_held:
                        self._let_go.add(key_of(head.batch))
                    self._changed.notify_all()
            with self._changed:
                self._changed.notify_all()

    def _carry_out(self, head: _Waiting) -> bool:
        """Publish or reject the first batch; whether nothing keeps it any more."""
        if not head.is_held:
            self._publish(head.batch, head.is_recovered)
            return True
        head.whole = head.whole or self._separation.whole(head.batch)
        match self._record(head.whole).decision:
            case None:
                return False
            case HeldDecision.REJECTED:
                self._reject(head.whole)
            case HeldDecision.RELEASED:
                self._publish(head.whole, head.is_recovered)
            case HeldDecision.SEPARATED:
                return self._publish_passing(head)
        return True

    def _publish_passing(self, head: _Waiting) -> bool:
        """Publish a batch without the rows that break a rule; whether they were found again."""
        self._publisher.lease.require()
        try:
            separated = self._separation.without_failing(head.batch)
        except InseparableError as error:
            _log.warning("batch %s waits for a person again: %s", key_of(head.batch), error)
            withdraw_decision(self._ledger, key_of(head.batch), _withdrawal(key_of(head.batch), str(error)))
            return False
        self._publish(separated, head.is_recovered)
        return True

    def _record(self, batch: StagedByOutput) -> HeldBatch:
        found = {name: one.summary.rules.rules for name, one in batch.items() if one.summary.rules is not None}
        holding = {
            name: one.summary.rules.held_by
            for name, one in batch.items()
            if one.summary.rules is not None and one.summary.rules.holds
        }
        held = HeldBatch(
            key=key_of(batch),
            reason=broken_rules(found, "hold"),
            rows={name: one.summary.rows or 0 for name, one in batch.items()},
            queued=len(self._queue) - 1,
            failed={name: {rule: one.failed for rule, one in rules.items()} for name, rules in holding.items()},
            samples={
                name: {rule: one.observed for rule, one in rules.items() if one.condition and one.observed}
                for name, rules in holding.items()
            },
        )
        is_new = self._recorded is None or self._recorded.key != held.key
        self._recorded = hold_batch(self._ledger, held)
        if is_new:
            record_event(self._ledger, _event(held))
            _log.warning("batch %s is held: it breaks %s", held.key, held.reason)
            self._reached(CrashPoint.HELD)
        return self._recorded

    def _reject(self, batch: StagedByOutput) -> None:
        """As `sluice.publication.batch_rejection` does: the ledger's record comes first, and a start completes it."""
        self._publisher.lease.require()
        record_batch(self._ledger, rejected_observation(self._declaration, batch))
        self._reached(CrashPoint.RECORDED)
        targets = [one for one in self._publisher.targets if one.output in batch]  # another may be declared since
        for number, target in enumerate(targets):
            token = self._publisher.token
            reject_batch(
                self._publisher.catalog, target.names, batch[target.output], token=token, reached=self._reached
            )
            if number == 0 and len(targets) > 1:
                self._reached(CrashPoint.FIRST_OUTPUT_PUBLISHED)
        self._forget(key_of(batch))
        _log.warning("batch %s was rejected by a person: none of its rows becomes visible", key_of(batch))


def _withdrawal(key: PublicationKey, why: str) -> Event:
    return Event(
        name=key.stream,
        actor=Actor.component("driver"),
        action=EventAction.HOLD_BATCH,
        reason="rule_changed",
        explanation=f"Batch {key} waits for a person again: {why}",
        evidence={"batch": str(key)},
    )


def _event(held: HeldBatch) -> Event:
    return Event(
        name=held.key.stream,
        actor=Actor.component("driver"),
        action=EventAction.HOLD_BATCH,
        reason="rule_broken",
        explanation=f"Batch {held.key} waits for a person: it breaks {held.reason}.",
        evidence={"batch": str(held.key), "rows": dict(held.rows)},
        occasion=f"held {held.key.number}",
    )
