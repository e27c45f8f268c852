"""Stops a stream between two batches, and takes its place while the content of its table is exchanged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from sluice.errors import RunAlreadyLiveError
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import ask_to_end, find_run, newest_run
from sluice.processes.deadline import Deadline, wait_until
from sluice.publication.command_runs import CommandMode, is_vacated, run_of_command

STOPPED_WITHIN_SECONDS = 300.0
"""How long a driver may take to end: twenty seconds for a pause between two batches, ninety for a batch, and once more
for a driver that another supervisor has started in between."""

_POLL_SECONDS = 0.05
"""A supervisor that sees the end of the run starts the next one within seconds; the place is taken before that."""


@contextmanager
def stopped_stream(
    ledger: Ledger, stream: str, *, requested_by: str, what: str, seconds: float = STOPPED_WITHIN_SECONDS
) -> Iterator[RunObservation]:
    """End the live run of a stream after its batch, and hold its lease while the block runs. Its desired state stays,
    so that whoever supervises it starts it again afterwards, also when this process dies.

    Parameters
    ----------
    what: what the block does, for example `refresh 7`.

    Yields
    ------
    The run that holds the lease, with a higher token than every run before it.

    Raises
    ------
    RunAlreadyLiveError: when the live run does not end in time.
    """
    with ExitStack() as held:
        yield _take_place(ledger, stream, held, requested_by=requested_by, what=what, deadline=Deadline.after(seconds))


def _take_place(
    ledger: Ledger, stream: str, held: ExitStack, *, requested_by: str, what: str, deadline: Deadline
) -> RunObservation:
    while True:
        live = newest_run(ledger, stream)
        if live is not None and live.is_live:
            because = f"{what} takes its place"
            event = Event(
                name=stream,
                actor=Actor.person(requested_by),
                action=EventAction.END_RUN,
                reason="refresh",
                explanation=f"The run ends after its batch: {because}.",
                run_id=live.run_id,
            )
            ask_to_end(ledger, live.run_id, because=because, event=event)
            _await_end(ledger, live.run_id, deadline)
        try:
            run = run_of_command(ledger, stream, CommandMode.REFRESH, requested_by=requested_by, what=what)
            return held.enter_context(run)
        except RunAlreadyLiveError:
            if deadline.is_over():
                raise


def _await_end(ledger: Ledger, run_id: str, deadline: Deadline) -> None:
    wait_until(
        partial(find_run, ledger, run_id),
        lambda run: not run.is_live or is_vacated(run),
        seconds=max(0.0, deadline.at - time.monotonic()),
        poll_seconds=_POLL_SECONDS,
    )
