"""Hosts whose files differ replace each other's runs a few times, and not without end."""

from __future__ import annotations

from tests.fakes.launcher import FakeLauncher
from tests.fixtures.reconciling import reconcile
from tests.fixtures.streams import continuous_stream
from tests.fixtures.supervised_runs import deliver_first_batch, process_of

from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import beat, newest_run, recent_runs
from sluice.supervision.stream_status import observe_rows
from sluice.supervision.stream_verdict import StreamState, verdict_of
from sluice.supervision.supervision_values import SupervisionAction, SupervisionReason
from sluice.supervision.supervisor import Supervisor, plan_supervision, supervise

WANTED = continuous_stream(restart={"first_delay": "1 millisecond"})
UNPAUSED = DagObservation(airflow="ours", is_paused=False)


def test_workers_with_different_files_do_not_replace_each_other_without_end(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = supervise(supervisor, WANTED).run
    assert run is not None
    beat(ledger, run.run_id)
    deliver_first_batch(ledger, run, WANTED)
    other = continuous_stream(digest="other", restart={"first_delay": "1 millisecond"})
    for turn in range(20):
        wanted = other if turn % 2 == 0 else WANTED
        done = reconcile(supervisor, wanted, dag=UNPAUSED).supervised
        if done.decision.reason is SupervisionReason.FILES_DIFFER:
            break
        newest = newest_run(ledger, "flights")
        assert newest is not None
        launcher.end(process_of(newest), exit_code=0)
        again = supervise(supervisor, wanted).run
        assert again is not None
        beat(ledger, again.run_id)
    assert len(recent_runs(ledger, "flights", limit=99)) == 4
    health = verdict_of(done.decision)
    assert (health.is_healthy, "the hosts of Airflow probably hold different files" in health.explanation) == (
        False,
        True,
    )
    edited = continuous_stream(digest="edited", restart={"first_delay": "1 millisecond"})
    assert plan_supervision(edited, ledger=ledger, launcher=launcher).decision.action is SupervisionAction.REPLACE


def test_a_host_that_only_replaces_stops_too_and_the_one_that_starts_reports_it(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    other = continuous_stream(digest="other", restart={"first_delay": "1 millisecond"})
    for _ in range(20):
        run = supervise(supervisor, WANTED).run  # it wins every start
        assert run is not None
        beat(ledger, run.run_id)
        if (replaced := supervise(supervisor, other)).decision.reason is SupervisionReason.FILES_DIFFER:
            break
        assert replaced.decision.reason is SupervisionReason.STOPPING
        launcher.end(process_of(run), exit_code=0)
    assert len(recent_runs(ledger, "flights", limit=99)) == 3
    alert = reconcile(supervisor, WANTED, dag=UNPAUSED).supervised.decision
    assert (alert.action, alert.reason) == (SupervisionAction.ADOPT, SupervisionReason.FILES_DIFFER)
    for wanted in (WANTED, other):
        verdict = observe_rows([wanted], ledger=ledger, launcher=launcher, heads=None)[0].verdict
        assert (verdict.state, verdict.is_healthy) == (StreamState.FILES_DIFFER, False)
    asked = set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
    assert asked.changed_at is not None
    again = plan_supervision(other, ledger=ledger, launcher=launcher).decision
    assert again.action is SupervisionAction.REPLACE, "a person's request starts the count again"
