"""The bounded jobs of the demo, each started through Airflow: the weather, maintenance, quality, checkpoint health."""

from __future__ import annotations

from datetime import datetime

from sluice.declarations.load_declarations import load_declarations
from sluice.demo.airflow_api import (
    BRONZE_WEATHER,
    CHECKED_TABLES,
    CHECKPOINT_HEALTH,
    GOLD_BY_WEATHER,
    MAINTAINED_TABLES,
    MAINTENANCE,
    QUALITY,
    DagRunObservation,
)
from sluice.demo.demo_progress import STREAMS, DemoStep, StepLog
from sluice.demo.flights_data import drop_weather, open_landing_folder
from sluice.demo.local_platform import LocalPlatform
from sluice.errors import DemonstrationError
from sluice.ledger.batches import PublicationKey
from sluice.ledger.held_batches import HeldBatch, HeldDecision, find_held
from sluice.operations import OperationVerb
from sluice.publication.held_decisions import decide, plan_decision

DEMO = "sluice demo"
"""Whom the ledger names as the person who releases what is held."""


def unpause_streams(platform: LocalPlatform) -> None:
    """Unpause the DAGs of the continuous streams.

    Raises
    ------
    DemonstrationError: when Airflow does not parse them.
    """
    for stream in STREAMS:
        platform.dag_runs.await_known(stream)
        platform.airflow.unpause(stream)


def run_weather(platform: LocalPlatform, log: StepLog, *, flights_until: datetime) -> str:
    """Write weather files, read them with one incremental run, release what a rule of the table holds of them, and wait
    for the run that its new rows trigger. A demo that continues an interrupted one may find all of them written, and
    read: then there is nothing to trigger one.

    Parameters
    ----------
    log: records how long it took.
    flights_until: all flights that departed earlier are in `silver.flights`.

    Returns
    -------
    What was held, and released without the rows that break the rule; empty when nothing was.

    Raises
    ------
    DemonstrationError: when a job fails, or when nothing moves.
    UsageError: when the held batch cannot be released.
    """
    with log.step(DemoStep.WEATHER):
        platform.dag_runs.await_known(GOLD_BY_WEATHER)
        platform.airflow.unpause(GOLD_BY_WEATHER)
        known = _runs(platform, GOLD_BY_WEATHER)
        written = drop_weather(open_landing_folder(platform.settings), ends_at=flights_until)
        run = _run(platform, BRONZE_WEATHER)
        held, released = "", set[PublicationKey]()
        # A demo that was interrupted may have left one, too.
        while (waiting := find_held(platform.ledger, BRONZE_WEATHER)) is not None and waiting.key not in released:
            released.add(waiting.key)
            held = release_weather(platform, log, waiting)
            run = _run(platform, BRONZE_WEATHER)
        if written and not held:
            raise DemonstrationError(
                f"A bad file was dropped, and {BRONZE_WEATHER} has held no batch.",
                next_step=f"See what its rule has found: `sluice batch list {BRONZE_WEATHER}`.",
            )
        if written or platform.airflow.has_raised_asset_events(run):
            platform.dag_runs.await_new(GOLD_BY_WEATHER, known=known)
        for triggered in platform.airflow.runs(GOLD_BY_WEATHER):
            if triggered.run_id not in known or not triggered.has_ended:
                platform.dag_runs.await_success(triggered)
    return held


def release_weather(platform: LocalPlatform, log: StepLog, held: HeldBatch) -> str:
    """Decide as a person does about weather that a rule holds: its rows become visible, those that break the rule go to
    the quarantine. The next run carries it out.

    Returns
    -------
    What was held and what became of it, in a sentence.

    Raises
    ------
    UsageError: when its rows cannot be separated.
    """
    decision, by = held.decision, held.decided_by
    if decision is None:
        stream = load_declarations(platform.settings.pipelines, only=BRONZE_WEATHER).stream(BRONZE_WEATHER)
        plan = plan_decision(platform.ledger, stream, OperationVerb.SEPARATE_BATCH)
        decide(platform.ledger, plan, requested_by=DEMO, planned=plan.digest)
        decision, by = HeldDecision.SEPARATED, DEMO
    sentence = (
        f"A bad file was held, and none of its rows visible: batch {held.key.number} of {BRONZE_WEATHER} breaks "
        f"{held.reason}. "
    )
    if decision is HeldDecision.SEPARATED:
        sentence += f"It was released without those rows; they are in quarantine.{BRONZE_WEATHER}."
    else:
        sentence += f"It was {decision} by {by}."
    log.print(f"[yellow]![/yellow] {sentence}")
    return sentence


def run_maintenance(platform: LocalPlatform, log: StepLog) -> None:
    """Run the maintenance of the tables that receive small files.

    Parameters
    ----------
    log: records how long it took.

    Raises
    ------
    DemonstrationError: when a job fails, or when nothing moves.
    """
    with log.step(DemoStep.MAINTENANCE):
        _run(platform, MAINTENANCE, tables=MAINTAINED_TABLES)


def run_checks(platform: LocalPlatform, log: StepLog) -> None:
    """Run the quality checks, then the checks of the checkpoints.

    Parameters
    ----------
    log: records how long each took.

    Raises
    ------
    DemonstrationError: when a check fails, or when nothing moves.
    """
    with log.step(DemoStep.QUALITY):
        _run(platform, QUALITY, tables=CHECKED_TABLES)
    with log.step(DemoStep.HEALTH):
        _run(platform, CHECKPOINT_HEALTH)


def _run(platform: LocalPlatform, dag_id: str, *, tables: tuple[str, ...] = ()) -> DagRunObservation:
    platform.dag_runs.await_known(dag_id)
    known = _runs(platform, dag_id)
    platform.airflow.unpause(dag_id)
    conf = {"tables": list(tables)} if tables else {}
    return platform.dag_runs.await_success(platform.dag_runs.run_now(dag_id, conf=conf, known=known))


def _runs(platform: LocalPlatform, dag_id: str) -> frozenset[str]:
    return frozenset(run.run_id for run in platform.airflow.runs(dag_id))
