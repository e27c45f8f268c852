"""One increment of a stream, from its admission to its recorded end."""

from __future__ import annotations

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.run_values import RunObservation
from sluice.publication.command_runs import admit_own_run
from sluice.settings import Settings
from sluice_spark.run.job import recorded_end
from sluice_spark.run.stop_request import StopRequest
from sluice_spark.run.supervised_run import SupervisedRun
from sluice_spark.session.session import Sessions


def admit_increment(ledger: Ledger, stream: LoadedStream, *, launched_by: str) -> RunObservation:
    """Admit a run of an incremental stream, carried out by this process.

    Parameters
    ----------
    launched_by: who asked, for people who read it.

    Raises
    ------
    RunAlreadyLiveError: when another run of the stream is live, or may be.
    """
    return admit_own_run(
        ledger,
        stream=stream.name,
        mode=stream.declaration.mode,
        declaration_digest=stream.digest,
        launched_by=launched_by,
        event=Event(
            name=stream.name,
            actor=Actor.component(launched_by),
            action=EventAction.LAUNCH,
            reason="increment",
            explanation=f"An increment of {stream.name} begins.",
        ),
    )


def run_increment(
    settings: Settings,
    ledger: Ledger,
    stream: LoadedStream,
    *,
    launched_by: str,
    sessions: Sessions,
    ui_key: str | None,
    stop: StopRequest,
) -> None:
    """Run a stream over everything that is there now.

    Parameters
    ----------
    launched_by: who asked, for people who read it.
    sessions: opens the session that it works in.
    ui_key: of the application, as for `SupervisedRun`.
    stop: what asks it to stop.

    Raises
    ------
    UsageError: when the stream is a continuous one.
    RunAlreadyLiveError: when another run of the stream is live.
    Exception: as `SupervisedRun.work` raises it.
    """
    if stream.declaration.mode != "incremental":
        raise UsageError(
            f"{stream.name} is a {stream.declaration.mode} stream.",
            next_step=f"Start it with `sluice stream start {stream.name}`.",
        )
    run = admit_increment(ledger, stream, launched_by=launched_by)
    with recorded_end(ledger, run.run_id) as say_reason:
        work = SupervisedRun(
            settings=settings,
            ledger=ledger,
            stream=stream,
            run=run,
            sessions=sessions,
            stop=stop,
            ui_key=ui_key,
        )
        say_reason(work.work())
