"""Decides whether a maintenance run ends red: what one run alone cannot show, the runs before it do.

A step that yielded to writers is tried again by the next run, so once is not a problem and twice in a row is one. A
step that a reader or a late writer blocks is skipped rightly, and each run by itself is green; when every run of the
last days was blocked, the table grows and there is no sign of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from sluice.ledger.maintenance_runs import MaintenanceObservation, MaintenanceStep, StepObservation, StepOutcome
from sluice.maintenance.maintenance_plan import StepReason

BLOCKED_FOR_LONG = timedelta(days=2)
"""How long a step may be blocked: a reader that runs once a day gets its turn, and a person a day to look."""

RUNS_JUDGED = 200
"""How many earlier runs are judged: four days of a table that is maintained every half hour."""

_BLOCKING = frozenset({StepReason.READER_NOT_STARTED, StepReason.READERS_NEED_SNAPSHOTS, StepReason.WRITER_LATE})


def needs_earlier_runs(run: MaintenanceObservation) -> bool:
    """Whether the runs before it decide how a run ends: a step yielded to writers, or was blocked."""
    return any(done.outcome is StepOutcome.YIELDED or _is_blocked(done) for done in run.operations)


def problems_of_run(run: MaintenanceObservation, earlier: Sequence[MaintenanceObservation]) -> tuple[str, ...]:
    """What makes a run end red, a sentence for each step; none when it ends green.

    Parameters
    ----------
    earlier: the runs of the same table before it, newest first; `RUNS_JUDGED` of them are enough.
    """
    return tuple(_problems(run, earlier))


def _problems(run: MaintenanceObservation, earlier: Sequence[MaintenanceObservation]) -> Iterator[str]:
    for done in run.operations:
        sentence = f"{done.step} {done.outcome}, {done.reason}: {done.explanation}"
        if done.outcome in (StepOutcome.REFUSED, StepOutcome.FAILED):
            yield sentence
        elif done.outcome is StepOutcome.YIELDED:
            before = _step(earlier[0], done.step) if earlier else None
            if before is not None and before.outcome is StepOutcome.YIELDED:
                yield f"{sentence}; the run before yielded, too"
        elif _is_blocked(done):
            since = _blocked_since(run, earlier, done.step)
            if run.started_at - since >= BLOCKED_FOR_LONG:
                yield f"{sentence}; every run since {since:%Y-%m-%d %H:%M} UTC was blocked"


def _blocked_since(
    run: MaintenanceObservation, earlier: Sequence[MaintenanceObservation], step: MaintenanceStep
) -> datetime:
    """When the first run of the unbroken row of runs began in which the step was blocked."""
    since = run.started_at
    for before in earlier:
        seen = _step(before, step)
        if seen is None or not _is_blocked(seen):
            break
        since = before.started_at
    return since


def _is_blocked(seen: StepObservation) -> bool:
    return seen.outcome is StepOutcome.SKIPPED and seen.reason in _BLOCKING


def _step(run: MaintenanceObservation, step: MaintenanceStep) -> StepObservation | None:
    return next((seen for seen in run.operations if seen.step is step), None)
