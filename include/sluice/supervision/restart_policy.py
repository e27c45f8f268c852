"""Which failures of a stream count, whether and when it is restarted, and when a person is asked instead. Pure.

| class                               | tries          | the first | then waits | why                                  |
|-------------------------------------|----------------|-----------|------------|--------------------------------------|
| transient, commit conflict, unknown | as declared    | at once   | declared   | it may be over already               |
| infrastructure                      | ten times that | at once   | declared   | or others repair it, in hours        |
| resource                            | at most two    | waits too | ten times  | memory and disk must be freed first  |
| source data lost, poison data,      | none           |           |            | another start would only repeat it   |
| schema, checkpoint, code            |                |           |            |                                      |

The tries of a class are counted among the failures in a row (`count_failures`), so stable uptime, a new declaration
and a person's request reset the count. A wait doubles with every failure of the class, up to the longest one that is
declared, and is shortened by up to a quarter, by a share of each run's own: a hundred streams that lost the same broker
do not restart in the same second. The share is derived from the run's id, so that every look has the same result.

A new declaration resets the count once: when one returns that has failed before, or many take turns, its failures count
together with those of the others. So hosts with different files, of which each sees only failures of the other's
declaration, spend one budget.

The breaker counts differently: all failures within its window before the newest one, whatever stayed up in between. A
run that stays up for the whole window, or a person's request, empties its count.

How long it takes until a dead driver is noticed is in `limits`.

A host whose file differs from that of the live run replaces the run. Which file the next run has is up to the host that
starts it:

| newest runs, oldest first; * replaced | what follows where the file is A                   | where it is B           |
|---------------------------------------|----------------------------------------------------|-------------------------|
| A* B                                  | replaces: somebody went back to A                  | fits                    |
| A* A                                  | fits: an edit that was taken back, or a late start | replaces: it is edited  |
| A* B* A* B                            | files differ                                       | once A has recorded it  |
| A* B* B                               | files differ: B wins every start                   | once A has recorded it  |
| A* A* A                               | files differ: replaced twice for nothing           | files differ            |

A run is replaced for nothing when the next one has the same declaration. Once says nothing: a person takes an edit
back, and a file reaches one host later than another. Three changes of a declaration within `REPLACED_WITHIN` are
followed, as an edit, its correction and a return to the first; another one is not when it returns to a declaration that
was replaced. A new declaration is followed.

The host whose file the live run has cannot always see by the runs that another one wants to replace it; it sees it by
the trouble that the other one has recorded. So every host judges the stream alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import pairwise, takewhile

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.run_declaration import BreakerDeclaration, RestartDeclaration, SupervisionDeclaration
from sluice.failure_reasons import Failure, FailureClass, FailureReason
from sluice.failures.classification import failure_of_run
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.supervision.limits import helps_to_restart, restart_wait, tries_of

UNEXPLAINED = Failure.of(FailureReason.UNEXPLAINED)

MOST_RUNS_READ = 2_000
"""How many runs are read at most to count failures. A stream that failed so often in a row is given up, whatever is
declared."""

MOST_CHANGES = 5
"""Changes of the declaration between failures in a row, within `REPLACED_WITHIN`, of which each may be the repair."""

CRASH_LOOP_FAILURES = 3
"""How many failures in a row make a stream crash looping: one or two may be bad luck."""

CRASH_LOOP_LAUNCHES = 5
"""How many failures within `CRASH_LOOP_WITHIN` do, whatever stayed up in between."""

CRASH_LOOP_WITHIN = timedelta(hours=1)

BECAUSE_CHANGED = "its declaration has changed"
"""Why a run was asked to end, as the ledger stores it."""

REPLACED_WITHIN = timedelta(hours=1)

MOST_RETURNS = 3
"""Changes of the declaration, after which another one that returns to a replaced declaration is not followed."""

MOST_FOR_NOTHING = 1
"""Runs that were replaced by one of the same declaration: one is an edit that was taken back, or a late file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartHistory:
    """The failures that still count against a stream.

    failures: runs that ended without a request, one after the other, the newest included; 0 when the newest one
        ended as requested.
    newest_run_id, newest_ended_at, newest_reason, newest_failure: of the newest of them.
    of_class: those in a row that have the class of the newest; unset: all.
    ends: when every failure since the count was reset ended, newest first, whatever stayed up in between.
    is_back_and_forth: whether hosts with different files have replaced each other's runs.
    crashes: how many failures make the stream crash looping, also while another run of it is up for a moment; 0: it is
        not.
    """

    failures: int = 0
    newest_run_id: str = ""
    newest_ended_at: datetime | None = None
    newest_reason: str = ""
    newest_failure: Failure = UNEXPLAINED
    of_class: int | None = None
    ends: tuple[datetime, ...] = ()
    is_back_and_forth: bool = False
    crashes: int = 0

    @property
    def failures_of_class(self) -> int:
        """Failures in a row that have the class of the newest."""
        return self.failures if self.of_class is None else self.of_class


def count_failures(
    runs: Sequence[RunObservation], *, digest: str, stable_after: timedelta, reset_at: datetime | None
) -> RestartHistory:
    """Count the failures in a row that still count.

    A run that ended while its stream was to run is a failure, whatever its exit code: a continuous stream has no end.
    The count ends at a run that ended as requested, at one that stayed up for `stable_after` (its own end still
    counts), at one of another declaration (it was changed, perhaps to repair the stream), and at `reset_at`. Other
    declarations do not end it when this one has failed before them, or when many take turns.

    Parameters
    ----------
    runs: the newest runs of the stream, newest first; one more than the budget allows is enough.
    digest: of the declaration as it is now.
    stable_after: how long a run must stay up to reset the count.
    reset_at: when the desired state last changed; failures before that do not count.
    """
    takes_turns = _takes_turns(runs, digest=digest, reset_at=reset_at)
    counted = [run for run in runs if _counts(run, reset_at=reset_at) and (takes_turns or _is_of(run, digest))]
    failures = _in_a_row(runs, counted, stable_after=stable_after)
    if not failures:
        return RestartHistory()
    newest = failures[0]
    newest_class = failure_of_run(newest).failure_class
    return RestartHistory(
        failures=len(failures),
        newest_run_id=newest.run_id,
        newest_ended_at=_end(newest),
        newest_reason=(newest.reason or "without a reason").rstrip("."),
        newest_failure=failure_of_run(newest),
        of_class=sum(failure_of_run(run).failure_class is newest_class for run in failures),
        ends=tuple(end for run in counted if (end := _end(run)) is not None),
    )


def _in_a_row(
    runs: Sequence[RunObservation], counted: Sequence[RunObservation], *, stable_after: timedelta
) -> list[RunObservation]:
    """The counted runs without a gap, up to the first one that was stable."""
    failures: list[RunObservation] = []
    for run, other in zip(runs, counted, strict=False):
        if run is not other:
            break
        failures.append(run)
        if _uptime(run) >= stable_after:
            break
    return failures


def _counts(run: RunObservation, *, reset_at: datetime | None) -> bool:
    end = _end(run)
    return end is not None and run.desired_state is DesiredState.RUNNING and (reset_at is None or end > reset_at)


def _is_of(run: RunObservation, digest: str) -> bool:
    return run.declaration_digest == digest


def _takes_turns(runs: Sequence[RunObservation], *, digest: str, reset_at: datetime | None) -> bool:
    """Whether declarations take turns in failing, so that a change is no repair.

    Parameters
    ----------
    digest: of the declaration as it is now. It has failed before a run of another one, or is one of many.
    """
    failed = list(takewhile(partial(_counts, reset_at=reset_at), runs))
    others = [number for number, run in enumerate(failed) if not _is_of(run, digest)]
    if others and any(_is_of(run, digest) for run in failed[others[0] :]):
        return True
    newest = None if not failed else _end(failed[0])
    lately = [run for run in failed if newest is not None and (_end(run) or newest) > newest - REPLACED_WITHIN]
    changes = sum(not _is_of(run, before.declaration_digest) for run, before in pairwise(lately))
    return changes >= MOST_CHANGES


def count_crashes(
    runs: Sequence[RunObservation],
    *,
    digest: str,
    stable_after: timedelta,
    reset_at: datetime | None,
    now: datetime,
) -> int:
    """How many failures make a stream crash looping: in a row, or within a time; 0 when it is not.

    A live run that is up for a moment ends no crash loop: it must stay up for `stable_after`, and for twice as long as
    those that failed, or two hours.

    Parameters
    ----------
    runs: the newest of the stream, live or ended. The others: as `count_failures`.
    """
    live = runs[0] if runs and runs[0].is_live else None
    ended = runs[1:] if live is not None else runs
    history = count_failures(ended, digest=digest, stable_after=stable_after, reset_at=reset_at)
    lately = sum(end > now - CRASH_LOOP_WITHIN for end in history.ends)
    crashes = max(history.failures if history.failures >= CRASH_LOOP_FAILURES else 0, lately)
    if crashes < CRASH_LOOP_FAILURES or (history.failures < CRASH_LOOP_FAILURES and lately < CRASH_LOOP_LAUNCHES):
        return 0
    longest = max(_uptime(run) for run in ended[: max(history.failures, lately)])
    is_over = live is not None and _uptime(live) >= max(stable_after, min(2 * longest, 2 * CRASH_LOOP_WITHIN))
    return 0 if is_over else crashes


def _end(run: RunObservation) -> datetime | None:
    """When a run ended; none while it is live. A lost run ended with its last heartbeat; its loss was noticed later."""
    return _last_sign(run) if run.state is RunState.LOST else run.ended_at


def _uptime(run: RunObservation) -> timedelta:
    return _last_sign(run) - run.launched_at


def _last_sign(run: RunObservation) -> datetime:
    return run.heartbeat_at or run.launched_at


def history_of(
    runs: Sequence[RunObservation],
    wanted: LoadedStream,
    *,
    reset_at: datetime | None,
    now: datetime,
    files_differ: bool = False,
) -> RestartHistory:
    """What earlier runs of a stream say about the next decision.

    Parameters
    ----------
    runs: the newest of the stream, as many as `runs_that_count`.
    reset_at: when a person last asked something of the stream.
    files_differ: whether a host has recorded that hosts have different files.
    """
    stable_after = wanted.declaration.supervision.restart.stable_after
    history = count_failures(runs, digest=wanted.digest, stable_after=stable_after, reset_at=reset_at)
    returns = is_back_and_forth(runs, digest=wanted.digest, reset_at=reset_at, now=now, is_known=files_differ)
    crashes = count_crashes(runs, digest=wanted.digest, stable_after=stable_after, reset_at=reset_at, now=now)
    return replace(history, is_back_and_forth=returns, crashes=crashes)


def runs_that_count(wanted: LoadedStream, newest: RunObservation, before: RunObservation | None = None) -> int:
    """How many of the newest runs a decision about a stream needs; 0: the newest one alone says what is due.

    Parameters
    ----------
    before: the run before the newest one; unset: there is none, or it is not known.
    """
    if newest.is_live and newest.declaration_digest == wanted.digest:
        stable_after = wanted.declaration.supervision.restart.stable_after
        may_loop = _may_be_of_a_crash_loop(newest, before, stable_after=stable_after)
        return 2 * CRASH_LOOP_LAUNCHES if may_loop else 0
    is_at_rest = not newest.is_live and newest.desired_state is DesiredState.STOPPED
    supervision = wanted.declaration.supervision
    return 0 if is_at_rest else runs_to_read(supervision.restart, supervision.breaker)


def _may_be_of_a_crash_loop(newest: RunObservation, before: RunObservation | None, *, stable_after: timedelta) -> bool:
    """Whether a live run may be one of many that fail: not when it is up for long, and not when the one before it
    was stable and ended so long ago that it, and all before it, count for nothing any more."""
    if _uptime(newest) >= max(stable_after, 2 * CRASH_LOOP_WITHIN):
        return False
    end = None if before is None else _end(before)
    if before is None or end is None:
        return True
    forgotten_at = end + max(CRASH_LOOP_WITHIN, REPLACED_WITHIN)
    return _uptime(before) < stable_after or _last_sign(newest) < forgotten_at


class RestartVerdict(StrEnum):
    """Whether a failed stream is restarted, and why not."""

    RESTART = "restart"
    WOULD_NOT_HELP = "would_not_help"
    BREAKER_OPEN = "breaker_open"
    BUDGET_SPENT = "budget_spent"


def judge_restart(supervision: SupervisionDeclaration, history: RestartHistory) -> RestartVerdict:
    """Decide whether the stream is restarted after its newest failure.

    Parameters
    ----------
    history: at least one failure.
    """
    failure_class = history.newest_failure.failure_class
    if not helps_to_restart(failure_class):
        return RestartVerdict.WOULD_NOT_HELP
    if is_breaker_open(supervision.breaker, history.ends):
        return RestartVerdict.BREAKER_OPEN
    if history.failures_of_class > tries_of(supervision.restart, failure_class) or history.failures >= MOST_RUNS_READ:
        return RestartVerdict.BUDGET_SPENT
    return RestartVerdict.RESTART


def wait_after(supervision: SupervisionDeclaration, history: RestartHistory) -> timedelta:
    """How long after the end of the newest failure the stream is restarted."""
    return restart_wait(
        supervision.restart,
        history.newest_failure.failure_class,
        failures=history.failures_of_class,
        run_id=history.newest_run_id,
    )


def is_breaker_open(breaker: BreakerDeclaration | None, ends: Sequence[datetime]) -> bool:
    """Whether too many runs failed within the window that ends with the newest failure.

    The window ends there and not now, so that an open breaker does not close merely because time passes.

    Parameters
    ----------
    ends: of all failures since the count was reset, newest first.
    """
    if breaker is None or not ends:
        return False
    return sum(end > ends[0] - breaker.window for end in ends) >= breaker.failures


def runs_to_read(restart: RestartDeclaration, breaker: BreakerDeclaration | None) -> int:
    """How many of the newest runs a decision needs: one more than the budgets of all classes together allow, so that
    failures of several classes that take turns spend the budget of one of them."""
    most = sum(tries_of(restart, each) for each in FailureClass) + 1
    return min(MOST_RUNS_READ, max(most, breaker.failures if breaker is not None else 0))


def is_back_and_forth(
    runs: Sequence[RunObservation],
    *,
    digest: str,
    reset_at: datetime | None,
    now: datetime,
    is_known: bool = False,
) -> bool:
    """Whether hosts with different files have replaced each other's runs, so that another replacement would not help.

    Parameters
    ----------
    runs: of the stream, newest first; the newest one is live.
    digest: of the declaration as it is read now.
    reset_at: when a person last asked something of the stream; what was replaced before does not count.
    is_known: whether a host has recorded that already.
    """
    since = max(at for at in (now - REPLACED_WITHIN, reset_at) if at is not None)
    replaced = [run for run in runs if _is_replaced(run, since)]
    followed = [(run, after) for after, run in pairwise(runs) if _is_replaced(run, since)]
    for_nothing = sum(run.declaration_digest == after.declaration_digest for run, after in followed)
    if for_nothing > MOST_FOR_NOTHING:
        return True
    if len(replaced) + for_nothing < MOST_RETURNS:
        return False
    fits = runs[0].declaration_digest == digest
    return is_known if fits else any(run.declaration_digest == digest for run in replaced)


def _is_replaced(run: RunObservation, since: datetime) -> bool:
    return run.end_asked_because == BECAUSE_CHANGED and run.end_asked_at is not None and run.end_asked_at > since
