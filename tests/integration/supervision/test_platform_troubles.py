"""What is wrong beside the streams: failed checks and paused DAGs of the platform, recorded on a real ledger."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from tests.fakes.launcher import FakeLauncher
from tests.fixtures.streams import continuous_stream
from tests.integration.ledger.test_upkeep import QUALITY
from tests.integration.supervision.test_reconcile_all import UNPAUSED, declared

from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import current_generation
from sluice.ledger.progress_samples import LagObservation
from sluice.ledger.recorded_checks import QualityVerdict, record_quality
from sluice.ledger.stream_troubles import all_troubles
from sluice.processes.deadline import Deadline
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.platform_dags import MISSED_WHILE_PAUSED
from sluice.supervision.platform_troubles import note_paused_dags, troubles_beside_streams
from sluice.supervision.reconciler import reconcile_all
from sluice.supervision.supervisor import Supervisor

NOTHING: Any = None
PAUSED = DagObservation(airflow="ours", is_paused=True)


def one_pass(supervisor: Supervisor, *paused: str, unknown: str = "", broken: str = "") -> None:
    """A pass of the reconciler while some DAGs are paused. What a person has paused raises no alert."""

    def observe_dag(dag: str) -> DagObservation | None:
        if dag == broken:
            raise RuntimeError("the API is away")
        return None if dag == unknown else PAUSED if dag in paused else UNPAUSED

    assert reconcile_all(supervisor, declared(), observe_dag=observe_dag, number=0) == ()


def test_a_paused_dag_is_a_trouble_until_it_is_unpaused(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    del launcher
    one_pass(supervisor, "data_quality", unknown="backfill_gaps", broken="stream_reconciler")

    (trouble,) = all_troubles(ledger)

    assert (trouble.stream, trouble.reason) == ("data_quality", "dag paused")
    assert trouble.explanation == (
        "The DAG data_quality is paused. No table is checked against its expectations. Unpause it in Airflow."
    )
    one_pass(supervisor, "data_quality")
    assert all_troubles(ledger)[0].since == trouble.since, "a pass does not begin it again"
    one_pass(supervisor)
    assert all_troubles(ledger) == ()


def test_once_the_time_of_a_pass_is_over_airflow_is_asked_about_no_further_dag(ledger: Ledger) -> None:
    asked: list[str] = []

    note_paused_dags(ledger, asked.append, by="a test", deadline=Deadline.after(0))

    assert asked == []


class SilentSources(SourceHeads):
    """Sources that do not answer."""

    def observe_lag(self, *_: Any, **__: Any) -> LagObservation:
        """Wait for longer than a pass of these tests takes, unless the test ends."""
        self.is_over.wait(30)
        raise RuntimeError("no answer")

    is_over = threading.Event()


def test_sources_that_do_not_answer_keep_no_dag_from_being_looked_at(supervisor: Supervisor, ledger: Ledger) -> None:
    one_pass(supervisor, "table_maintenance")
    current_generation(ledger, "flights", checkpoints_root="file:///checkpoints")
    increment = continuous_stream(mode="incremental", trigger=None, schedule={"cron": "@daily"})
    watching = replace(supervisor, heads=SilentSources(NOTHING))
    try:
        reconcile_all(watching, declared(increment), observe_dag=lambda _: UNPAUSED, number=0, pass_seconds=2)
    finally:
        SilentSources.is_over.set()
    assert all_troubles(ledger) == ()


def test_every_dag_of_the_platform_is_looked_at(supervisor: Supervisor, ledger: Ledger) -> None:
    one_pass(supervisor, *MISSED_WHILE_PAUSED)

    assert {trouble.stream for trouble in all_troubles(ledger)} == set(MISSED_WHILE_PAUSED)


@pytest.mark.parametrize("verdict", [QualityVerdict.FAILED, QualityVerdict.UNDECIDED])
def test_a_failed_check_is_a_trouble_of_its_table_until_one_passes(ledger: Ledger, verdict: QualityVerdict) -> None:
    record_quality(ledger, replace(QUALITY, verdict=verdict), sentence="id is not null: 3 rows break it.")

    (trouble,) = troubles_beside_streams(ledger, {"bronze.flights"})

    assert (trouble.stream, trouble.reason) == ("bronze.flights", f"check {verdict}")
    assert trouble.explanation == "id is not null: 3 rows break it."
    record_quality(ledger, replace(QUALITY, verdict=QualityVerdict.PASSED), sentence="All hold.")
    assert troubles_beside_streams(ledger, {"bronze.flights"}) == ()


def test_since_when_a_table_fails_is_known(ledger: Ledger) -> None:
    record_quality(ledger, QUALITY, sentence="3 rows break it.")
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.troubles SET since = since - interval '1 h'"))

    record_quality(ledger, QUALITY, sentence="4 rows break it.")

    (trouble,) = all_troubles(ledger)
    assert trouble.explanation == "4 rows break it."
    assert trouble.lasted >= timedelta(hours=1)


def test_the_trouble_of_a_table_that_is_not_checked_any_more_is_cleared(supervisor: Supervisor, ledger: Ledger) -> None:
    record_quality(ledger, QUALITY, sentence="3 rows break it.")

    one_pass(supervisor)

    assert all_troubles(ledger) == (), "no file declares the table with expectations"
