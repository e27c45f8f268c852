"""Does the bounded work of one pool: increments, intervals, refreshes, gap searches, maintenance and checks of tables.

    spark-submit --master 'local[*]' jobs/run_work.py --application-id=8c1d7f0e-… --pool=spark_default-1f0a77c2 …

The settings come from the environment (`SLUICE_*`), what there is to do from the queue in the ledger. It is started by
`sluice.work.start_application`, for the task or command whose item waits, and ends when nothing has come for a while.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from functools import partial

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.run_declaration import EngineDeclaration
from sluice.errors import LaunchError
from sluice.launching.spark_submit import RunWork, parse_arguments
from sluice.ledger.applications import end_application, find_application
from sluice.ledger.connection import open_ledger
from sluice.ledger.work_items import hand_back
from sluice.publication.crash_points import unnoticed
from sluice.settings import load_settings
from sluice.work.pools import LINGER_SECONDS, EngineProfile, files_digest
from sluice_spark.run.job import run_job
from sluice_spark.run.stop_request import SIGNALS, StopRequest
from sluice_spark.session.item_sessions import ItemSessions, hand_context_on
from sluice_spark.session.session import new_ui_key
from sluice_spark.work.application import News, WorkApplication
from sluice_spark.work.application_health import Wear, reporting
from sluice_spark.work.item_work import ReachedOfItem

_log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(run_work, parse_arguments(RunWork, argv)))


def run_work(command: RunWork, *, reached: ReachedOfItem = unnoticed) -> None:
    """Do the items of a pool until there is none for a while.

    Parameters
    ----------
    reached: is called at each step of each item.

    Raises
    ------
    LaunchError: when the files of the deployment have changed since the application was asked for.
    LedgerError: when the ledger does not know the application, or cannot be reached at its start.
    """
    settings = load_settings()
    stop = StopRequest()
    hand_context_on()
    SIGNALS.take_in_python()
    SIGNALS.add(stop)
    with open_ledger(settings.ledger_url) as ledger:
        pool = find_application(ledger, command.application_id).pool
        declarations = load_declarations(settings.pipelines)
        # What was imported until now was there when the application was asked for, if the files are still the same.
        if not pool.digest.startswith(f"{files_digest(settings)}-"):
            end_application(ledger, command.application_id, reason="the files of the deployment have changed")
            raise LaunchError(
                f"Application {command.application_id} does nothing: the files of the deployment have changed since it "
                "was asked for.",
                next_step="Nothing is to be done: who waits for it starts another one.",
            )
        profile = EngineProfile(
            engine=EngineDeclaration(cores=int(command.cores) if command.cores else None),
            with_delta=command.with_delta == "yes",
            repeats_tasks=command.repeats_tasks == "yes",
        )
        ui_key = new_ui_key(is_declared=command.ui == "yes")
        sessions = ItemSessions(profile, name=f"sluice {pool.name}", ui_key=ui_key, opened=SIGNALS.take_in_jvm)
        with News(settings.ledger_url, pool=pool.name) as news:
            application = WorkApplication(
                application=command.application_id,
                settings=settings,
                declarations=declarations,
                ledger=ledger,
                sessions=sessions,
                news=news,
                is_worn=Wear(sessions=sessions).reason,
                stop=stop,
                linger_seconds=LINGER_SECONDS,
                reached=reached,
            )
            with reporting(application):
                reason = application.serve()
                hand_back(ledger, command.application_id)
        end_application(ledger, command.application_id, reason=reason)
        _log.info("the application ends: %s", reason)
        sessions.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
