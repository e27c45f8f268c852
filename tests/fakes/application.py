"""A Spark application of the queue without Spark: it claims items, does each as its file says, and records its end.

Its log has the form of a real one: each line about an item names it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from tests.fakes.batches import publish_batch
from tests.fakes.behaviour import Behaviour, behaviour_of

from sluice.errors import LedgerUnreachableError
from sluice.launching.job_output import FAILURE_MARK, REASON_MARK
from sluice.ledger.applications import beat, end_application, end_if_idle
from sluice.ledger.backfill_attempts import BackfillState, begin_attempt, end_attempt
from sluice.ledger.connection import Ledger, database_time, open_ledger
from sluice.ledger.work_items import claim, end_item, hand_back, withdrawn_among
from sluice.ledger.work_values import WorkItem, WorkKind, WorkState
from sluice.processes.deadline import Deadline
from sluice.work.choose_items import Bench, IntervalLane, interval_of
from sluice.work.pools import LINGER_SECONDS, item_label

APPLICATIONS = "applications"
"""The subject of the behaviour of applications themselves: one that fails does so before it reports to the ledger."""

INTERVAL_ROWS = {"read": 3, "published": 3}
"""What a replaced interval has."""

_LOOK_SECONDS, _IDLE_LOOK_SECONDS = 0.1, 0.5
"""Between two looks at the ledger; the second when the last one found nothing to do. A look takes 10 ms of a processor,
and an application that lingers, or whose item hangs, is there for minutes."""
_LANE = IntervalLane(at_once=3, together=1)


def run_application(application: str) -> None:
    """Do items until there are none for as long as the last ones say, or a signal asks for the end."""
    own = behaviour_of(APPLICATIONS)
    if own.fails_with:
        sys.stderr.write("".join(f"{line}\n" for line in last_lines(own)))
        sys.exit(1)
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    with open_ledger(os.environ["SLUICE_LEDGER_URL"]) as ledger:
        FakeApplication(ledger=ledger, application=application).serve(asked_to_end)


def last_lines(behaviour: Behaviour) -> list[str]:
    """What a job that fails so writes last."""
    return [f"{REASON_MARK}{behaviour.reason}", f"{FAILURE_MARK}{behaviour.fails_with}"]


@dataclass(slots=True, kw_only=True)
class FakeApplication:
    """An application at work; all of its items go on at the same time."""

    ledger: Ledger
    application: str
    running: dict[str, WorkItem] = field(default_factory=dict)
    lingers_until: Deadline = field(default_factory=lambda: Deadline.after(LINGER_SECONDS))
    look_seconds: float = _LOOK_SECONDS

    def serve(self, asked_to_end: threading.Event) -> None:
        """Claim and do items until the end."""
        while not asked_to_end.wait(self.look_seconds):
            try:
                if self._turn():
                    return
            except LedgerUnreachableError as error:
                self._say(f"goes on without the ledger: {error}")
        hand_back(self.ledger, self.application)
        end_application(self.ledger, self.application, reason="signalled")

    def _turn(self) -> bool:
        """Look at everything once. Returns whether this was the last time."""
        if not beat(self.ledger, self.application):
            sys.exit("the ledger counts this application as ended")
        for withdrawn in withdrawn_among(self.ledger, list(self.running)):
            self._say("was stopped", self.running.pop(withdrawn))
        for item in claim(self.ledger, self.application, self._bench().choose):
            self._say(f"{item.kind} of {item.subject}, asked by {item.asked_by}, attempt {item.attempt}", item)
            self.running[item.item] = item
        at_work = list(self.running.values())
        for item in at_work:
            self._go_on(item)
        self.look_seconds = _LOOK_SECONDS if len(self.running) < len(at_work) else _IDLE_LOOK_SECONDS
        is_idle = not self.running and self.lingers_until.is_over()
        return is_idle and end_if_idle(self.ledger, self.application, reason="no further work came")

    def _bench(self) -> Bench:
        running = list(self.running.values())
        return Bench(running=running, lane_of=lambda _: _LANE, now=database_time(self.ledger))

    def _go_on(self, item: WorkItem) -> None:
        """End an item as its file says, unless it hangs."""
        behaviour = behaviour_of(item.subject)
        if behaviour.hangs:
            return
        if behaviour.fails_with:
            said = last_lines(behaviour)
            for line in said:
                self._say(line, item, level="ERROR")
            end_item(self.ledger, item, self.application, WorkState.FAILED, failure="\n".join(said))
        else:
            self._publish(item, behaviour)
            end_item(self.ledger, item, self.application, WorkState.DONE)
            self._say(f"{item.kind} of {item.subject} is done", item)
        del self.running[item.item]
        until = Deadline.after(item.linger_seconds)
        self.lingers_until = max(self.lingers_until, until, key=lambda deadline: deadline.at)

    def _publish(self, item: WorkItem, behaviour: Behaviour) -> None:
        """Leave in the ledger what the work of an item leaves there."""
        if item.kind is WorkKind.INCREMENT and behaviour.publishes:
            publish_batch(self.ledger, item.subject, run_id="an increment")
        if item.kind is WorkKind.INTERVAL:
            interval = interval_of(item)
            key = begin_attempt(
                self.ledger, item.subject, start=interval.start, end=interval.end, launched_by=item.asked_by
            )
            end_attempt(self.ledger, key, BackfillState.PUBLISHED, rows=INTERVAL_ROWS, snapshot_id=2**60 + key.attempt)

    @staticmethod
    def _say(sentence: str, item: WorkItem | None = None, *, level: str = "INFO") -> None:
        mark = f"[{item_label(UUID(item.item))}] " if item is not None else ""
        print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {level} {mark}{sentence}", flush=True)  # noqa: T201  # its log
