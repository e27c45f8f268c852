"""One increment of a stream, from its declaration to its recorded end."""

from __future__ import annotations

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import UsageError
from sluice.launching.job_command import RunIncrement
from sluice.ledger.connection import open_ledger
from sluice.settings import load_settings
from sluice_spark.run.admission import admit_increment
from sluice_spark.run.job import recorded_end
from sluice_spark.run.stop_request import StopRequest
from sluice_spark.run.supervised_run import SupervisedRun
from sluice_spark.session.run_sessions import Sessions, own_session


def run_increment(command: RunIncrement, *, sessions: Sessions = own_session, stop: StopRequest | None = None) -> None:
    """Run a stream over everything that is there now.

    Parameters
    ----------
    sessions: opens the session that it works in.
    stop: what asks it to stop; one of its own when it is not given.

    Raises
    ------
    UsageError: when the stream is a continuous one.
    RunAlreadyLiveError: when another run of the stream is live.
    Exception: as `SupervisedRun.work` raises it.
    """
    settings = load_settings()
    stream = load_declarations(settings.pipelines, only=command.stream).stream(command.stream)
    if stream.declaration.mode != "incremental":
        raise UsageError(
            f"{stream.name} is a {stream.declaration.mode} stream.",
            next_step=f"Start it with `sluice stream start {stream.name}`.",
        )
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        run = admit_increment(ledger, stream, launched_by=command.launched_by)
        with recorded_end(ledger, run.run_id) as say_reason:
            work = SupervisedRun(
                settings=settings,
                ledger=ledger,
                stream=stream,
                run=run,
                sessions=sessions,
                stop=stop or StopRequest(),
            )
            say_reason(work.work())
