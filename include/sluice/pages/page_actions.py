"""What a person can do to a stream on its page: the plans of the command line, and the requests behind them.

A page only asks: it changes the ledger, and supervision carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.errors import UsageError
from sluice.launching.launcher_port import LaunchRequest
from sluice.ledger.batches import BatchObservation
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunObservation
from sluice.operations import OperationPlan, OperationVerb
from sluice.pages.stream_lines import ObservingLauncher, StreamLine
from sluice.positions.repair_stream import Repair, plan_repair, repair_stream
from sluice.positions.rewind_plan import RewindPlan, plan_rewind
from sluice.positions.rewind_stream import rewind_stream
from sluice.settings import Settings
from sluice.supervision.control_plans import (
    ControlPlan,
    plan_reset_breaker,
    plan_restart,
    plan_start,
    plan_stop,
)
from sluice.supervision.stream_commands import request_restart, request_start, request_stop, reset_breaker
from sluice.supervision.stream_reset import GenerationChange, plan_reset, reset_stream
from sluice.supervision.supervision_values import SETTLED_BY_START, StreamState
from sluice.supervision.supervisor import Supervisor
from sluice.tables.catalog import open_catalog


class PageVerb(StrEnum):
    """What can be done on a page; the same verbs as `sluice stream …`."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    RESET_BREAKER = "reset-breaker"
    REPAIR = "repair"
    RESET = "reset"


MEANINGS: Mapping[PageVerb, str] = {
    PageVerb.START: "Ask that it runs, and reset its failure count.",
    PageVerb.STOP: "Ask that it stops; it finishes its batch and stays stopped.",
    PageVerb.RESTART: "End its driver between two batches, and start it with its declaration as it is now.",
    PageVerb.RESET_BREAKER: "Reset its failure count, so that it is started again at once.",
    PageVerb.REPAIR: "Write back what was lost or damaged of its position: the checkpoint, or what the ledger knew.",
    PageVerb.RESET: "Leave the checkpoint of the stopped stream: its inputs are read again from their beginning.",
}
"""What each verb does, in one sentence."""

NEEDS_ONE_PERSON = frozenset({PageVerb.REPAIR, PageVerb.RESET})
"""What a page carries out itself, unless another person must approve it. The rest are requests."""

_CARRIED_OUT = (
    "This page only asks. The task of the stream carries it out within seconds; while its DAG is paused, the DAG "
    "stream_reconciler does within about a minute."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageActions:
    """The actions of one person.

    actor: the person, as the ledger names them.
    """

    ledger: Ledger
    settings: Settings
    actor: str

    def plan(self, verb: PageVerb, stream: LoadedStream) -> OperationPlan[GenerationChange | Repair | None]:
        """What would be done now. Nothing is changed.

        Raises
        ------
        RunAlreadyLiveError, UsageError, CheckpointError: when a reset is refused; the message says why.
        LakehouseError: when the catalog does not answer, for a repair.
        """
        if verb in NEEDS_ONE_PERSON:
            self._require_one_person_suffices(verb)
        if verb is PageVerb.RESET:
            return plan_reset(self.ledger, stream, self.settings)
        if verb is PageVerb.REPAIR:
            return plan_repair(self.ledger, open_catalog(self.settings), stream, self.settings)
        return _PLANS[verb](self.supervisor(), stream).followed_by(_CARRIED_OUT)

    def carry_out(self, verb: PageVerb, stream: LoadedStream, *, planned: str) -> None:
        """Save the request with its event.

        Parameters
        ----------
        planned: the digest of the confirmed plan; it is carried out only as it was shown.

        Raises
        ------
        UsageError: when somebody has asked something of the stream since.
        RunAlreadyLiveError, UsageError, CheckpointError, UnpublishableError: when a reset or a repair is refused.
        """
        if verb not in NEEDS_ONE_PERSON:
            self.plan(verb, stream).require_same(planned)
            _REQUESTS[verb](self, stream)
            return
        self._require_one_person_suffices(verb)
        how: dict[str, Any] = {"planned": planned, "asked_by": self.actor}
        if verb is PageVerb.RESET:
            reset_stream(self.ledger, stream, self.settings, **how)
        else:
            repair_stream(self.ledger, open_catalog(self.settings), stream, self.settings, **how)

    def plan_rewind(self, declarations: Declarations, stream: str, batch: int) -> RewindPlan:
        """What taking a stream and its tables back to a batch would do now. Nothing is changed.

        Raises
        ------
        UsageError: when another person must approve it, or nothing was published.
        DeliveryError, LakehouseError: when something cannot be read.
        """
        self._require_one_person_suffices(OperationVerb.REWIND)
        catalog = open_catalog(self.settings)
        return plan_rewind(self.ledger, catalog, declarations, self.settings, stream=stream, batch=batch)

    def rewind(self, declarations: Declarations, stream: str, batch: int, *, planned: str) -> None:
        """Take a stream back as it was shown.

        Parameters
        ----------
        planned: the digest of the confirmed plan.

        Raises
        ------
        UsageError: when it is another plan by now, or another person must approve it. SluiceError: as `rewind_stream`.
        """
        self._require_one_person_suffices(OperationVerb.REWIND)
        how: dict[str, Any] = {"planned": planned, "asked_by": self.actor}
        catalog = open_catalog(self.settings)
        rewind_stream(self.ledger, catalog, declarations, self.settings, stream=stream, batch=batch, **how)

    def _require_one_person_suffices(self, verb: PageVerb | OperationVerb) -> None:
        if self.settings.approval_by_another:
            raise UsageError(
                f"This deployment needs the approval of another person for a {verb} (SLUICE_APPROVAL_BY_ANOTHER), "
                "and a page asks only one.",
                next_step=f"Trigger the DAG stream_control with the verb {verb}; another person approves it there.",
            )

    def supervisor(self) -> Supervisor:
        """A supervisor that can observe and plan."""
        return Supervisor(
            ledger=self.ledger, launcher=ObservingLauncher(), request_for=_no_request, launched_by=self.actor
        )


def verbs_for(line: StreamLine, *, resets_need_another: bool) -> tuple[PageVerb, ...]:
    """What can be done to a stream in its state, the likeliest first.

    Parameters
    ----------
    resets_need_another: whether another person must approve a reset or a repair, whom a page cannot ask.
    """
    grave = () if resets_need_another else (PageVerb.REPAIR, PageVerb.RESET)
    if line.state in SETTLED_BY_START:  # a start settles it, also of a stream that runs or waits
        return (PageVerb.START, PageVerb.STOP)
    if line.has_live_run:
        live = (PageVerb.RESTART, PageVerb.STOP)
        return live if not line.is_healthy else (PageVerb.STOP, PageVerb.RESTART)
    if line.state is StreamState.STOPPED:
        return (PageVerb.START, *grave)
    if line.mode == "incremental":  # its schedule starts it, and it has no breaker
        return (PageVerb.STOP, *grave[:1])
    return (PageVerb.START, PageVerb.STOP, PageVerb.RESET_BREAKER, *grave[:1])


def batches_to_go_back_to(
    line: StreamLine, batches: Sequence[BatchObservation], *, rewinds_need_another: bool
) -> frozenset[int]:
    """The batches that a stopped stream can be asked to go back to: those of its newest generation but the newest one.

    Parameters
    ----------
    batches: the recorded ones, newest first.
    rewinds_need_another: whether another person must approve it, whom a page cannot ask.
    """
    if line.state is not StreamState.STOPPED or line.has_live_run or rewinds_need_another:
        return frozenset()
    return frozenset(one.key.batch for one in batches[1:] if one.key.generation == batches[0].key.generation)


def _no_request(stream: LoadedStream, run: RunObservation) -> LaunchRequest:
    raise UsageError(f"A page shows no command line of {stream.name}, run {run.run_id}.")


_PLANS: Mapping[PageVerb, Callable[[Supervisor, LoadedStream], ControlPlan]] = {
    PageVerb.START: lambda supervisor, stream: plan_start(supervisor, stream, shows_command=False),
    PageVerb.STOP: lambda supervisor, stream: plan_stop(supervisor, stream.name, mode=stream.declaration.mode),
    PageVerb.RESTART: lambda supervisor, stream: plan_restart(supervisor, stream, shows_command=False),
    PageVerb.RESET_BREAKER: plan_reset_breaker,
}

_REQUESTS: Mapping[PageVerb, Callable[[PageActions, LoadedStream], object]] = {
    PageVerb.START: lambda own, stream: request_start(own.ledger, stream.name, requested_by=own.actor),
    PageVerb.STOP: lambda own, stream: request_stop(own.ledger, stream.name, requested_by=own.actor),
    PageVerb.RESTART: lambda own, stream: request_restart(own.ledger, stream.name, requested_by=own.actor),
    PageVerb.RESET_BREAKER: lambda own, stream: reset_breaker(own.supervisor(), stream, requested_by=own.actor),
}
