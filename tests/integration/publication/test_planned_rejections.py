"""A rejection that is planned at one place and carried out at another: as it was shown, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.fixtures.drill import first_of
from tests.fixtures.publication import Workbench
from tests.fixtures.stack import Stack
from tests.integration.publication.test_batch_commands import Deployment, deployment, former

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.output_declaration import OutputDeclaration
from sluice.declarations.rule_declaration import RuleDeclaration
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT, ScheduleDeclaration
from sluice.errors import RunAlreadyLiveError, UsageError
from sluice.ledger.batches import PublicationKey, recent_batches
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.held_batches import HeldBatch, HeldDecision, find_held, hold_batch
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, newest_run, record_end
from sluice.operations import OperationPlan, OperationVerb
from sluice.pages.job_plans import plan_batch_run
from sluice.publication.batch_rejection import Rejection, RejectionState, plan_rejection, reject
from sluice.publication.command_runs import CommandMode, run_of_command
from sluice.publication.crash_points import CrashPoint
from sluice.publication.held_decisions import decide, plan_decision
from sluice.publication.settle_output import abandon_output, plan_settlement
from sluice.publication.staged_batch import StagedMode
from sluice.publication.staging_table import load_staging_table, staged_files
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog

__all__ = ["deployment", "former"]
ANN = "airflow: stream_control, ann"


def declared(deployment: Deployment) -> LoadedStream:
    """The stream as its file declares it."""
    return load_declarations(deployment.folder, only=deployment.stream).stream(deployment.stream)


def planned(deployment: Deployment, settings: Settings) -> OperationPlan[Rejection]:
    """The rejection of the next batch as it is planned now."""
    return plan_rejection(open_catalog(settings), deployment.ledger, declared(deployment).declaration)


def carried_out(deployment: Deployment, settings: Settings, plan: OperationPlan[Rejection]) -> Rejection:
    """The rejection as it was planned, carried out."""
    return reject(
        open_catalog(settings),
        deployment.ledger,
        declared(deployment).declaration,
        number=plan.seen.key.batch,
        requested_by=ANN,
        planned=plan.digest,
    )


@pytest.mark.parametrize("is_planned", first_of(True, False), ids=["planned before", "at once"])
def test_a_batch_that_a_person_has_released_is_not_rejected(
    deployment: Deployment, settings: Settings, *, is_planned: bool
) -> None:
    deployment.stage(0, 1, 2)
    plan = planned(deployment, settings)
    held = HeldBatch(key=plan.seen.key, reason="a rule by 1 of 2 rows", rows={"main": 2, "other": 2})
    hold_batch(deployment.ledger, held)
    release = plan_decision(deployment.ledger, declared(deployment), OperationVerb.RELEASE_BATCH)
    decide(deployment.ledger, release, requested_by="bob")

    with pytest.raises(UsageError, match="was released by bob, and no run has carried that out yet") as refused:
        carried_out(deployment, settings, plan) if is_planned else planned(deployment, settings)

    assert refused.value.next_step == (
        f"Start the stream, which publishes it: `sluice stream start {deployment.stream}`."
    )
    assert recent_batches(deployment.ledger, deployment.stream, limit=5) == ()


def test_a_released_batch_whose_files_are_gone_is_rejected(deployment: Deployment, settings: Settings) -> None:
    """No run can publish it, and what the run says then names this way."""
    deployment.stage(0, 1, 2)
    deployment.stage(1, 3)
    held = HeldBatch(key=planned(deployment, settings).seen.key, reason="a rule", rows={"main": 2, "other": 2})
    hold_batch(deployment.ledger, held)
    release = plan_decision(deployment.ledger, declared(deployment), OperationVerb.RELEASE_BATCH)
    decide(deployment.ledger, release, requested_by="bob")
    staging = load_staging_table(deployment.benches[1].catalog, deployment.benches[1].output)
    (first, _) = deployment.benches[1].staged()
    for file in staged_files(staging, [first])[first.snapshot_id]:
        staging.io.delete(file.file_path)

    plan = planned(deployment, settings)

    assert plan.steps[0].sentence.endswith(" bob has released it, and 1 of its files are gone.")
    assert carried_out(deployment, settings, plan).state is RejectionState.NEW
    (event,) = recent_events(deployment.ledger, EventSubject.STREAM, deployment.stream, limit=1)
    assert (event.action, event.evidence["released_by"], event.evidence["files_gone"]) == ("reject_batch", "bob", 1)
    assert find_held(deployment.ledger, deployment.stream) is None
    assert deployment.next_driver() == [[3], [3]], "what waits behind it becomes visible"


def test_a_held_batch_that_is_rejected_under_the_lease_cannot_be_released(
    deployment: Deployment, settings: Settings
) -> None:
    deployment.stage(0, 1, 2)
    plan = planned(deployment, settings)
    held = HeldBatch(key=plan.seen.key, reason="a rule by 1 of 2 rows", rows={"main": 2, "other": 2})
    hold_batch(deployment.ledger, held)
    release = plan_decision(deployment.ledger, declared(deployment), OperationVerb.RELEASE_BATCH)

    assert carried_out(deployment, settings, plan).state is RejectionState.NEW

    with pytest.raises(UsageError, match="waits no more, or somebody else has decided about it"):
        decide(deployment.ledger, release, requested_by="bob")
    assert [
        one.action for one in recent_events(deployment.ledger, EventSubject.STREAM, deployment.stream, limit=5)
    ] == ["reject_batch"]


def test_a_held_batch_is_decided_before_it_is_recorded_as_rejected(deployment: Deployment, settings: Settings) -> None:
    """Otherwise a release in between would be accepted, and nothing would come of it."""
    deployment.stage(0, 1, 2)
    plan = planned(deployment, settings)
    hold_batch(deployment.ledger, HeldBatch(key=plan.seen.key, reason="a rule", rows={"main": 2, "other": 2}))
    seen: list[tuple[HeldDecision | None, str | None]] = []

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.RECORDED:
            held = find_held(deployment.ledger, deployment.stream)
            assert held is not None
            seen.append((held.decision, held.decided_by))
            with pytest.raises(UsageError, match="was rejected by"):
                plan_decision(deployment.ledger, declared(deployment), OperationVerb.RELEASE_BATCH)

    reject(
        open_catalog(settings),
        deployment.ledger,
        declared(deployment).declaration,
        number=0,
        requested_by=ANN,
        reached=reached,
    )

    assert seen == [(HeldDecision.REJECTED, ANN)]
    assert find_held(deployment.ledger, deployment.stream) is None


@pytest.fixture
def settings(services_environment: Stack) -> Settings:
    """The settings of the catalog that the tables are in."""
    return services_environment.settings()


def test_a_plan_shows_the_next_batch_and_is_carried_out_as_shown(deployment: Deployment, settings: Settings) -> None:
    deployment.stage(0, 1, 2)
    deployment.stage(1, 3)

    plan = planned(deployment, settings)

    assert plan.seen.key.batch == 0
    assert f"Batch {deployment.stream}:1:0 would be rejected: 2 rows of main, 2 rows of other" in plan.steps[0].sentence
    assert recent_events(deployment.ledger, EventSubject.STREAM, deployment.stream, limit=5) == (), (
        "a plan changes nothing"
    )
    done = carried_out(deployment, settings, plan)
    assert done.state is RejectionState.NEW
    (event,) = recent_events(deployment.ledger, EventSubject.STREAM, deployment.stream, limit=5)
    assert (event.action, event.actor.name, event.evidence["batch"]) == (
        "reject_batch",
        ANN,
        f"{deployment.stream}:1:0",
    )
    again = carried_out(deployment, settings, plan)
    assert again.state is RejectionState.COMPLETE
    assert deployment.next_driver() == [[3], [3]]


def test_a_batch_that_is_another_one_by_now_is_not_rejected(deployment: Deployment, settings: Settings) -> None:
    deployment.stage(0, 1, 2)
    shown = planned(deployment, settings)
    for bench in deployment.benches:
        bench.begin_as(2)
        bench.as_run(2).stage(0, [5])

    now = planned(deployment, settings)

    assert (now.seen.key.batch, now.digest == shown.digest) == (0, False)
    now.require_same(None)
    with pytest.raises(UsageError, match="is another one than was shown"):
        now.require_same(shown.digest)
    with pytest.raises(UsageError, match="The plan is out of date"):
        carried_out(deployment, settings, shown)
    assert recent_batches(deployment.ledger, deployment.stream, limit=5) == ()
    assert recent_events(deployment.ledger, EventSubject.STREAM, deployment.stream, limit=5) == ()


def test_what_is_staged_for_a_former_output_since_its_plan_is_not_abandoned(
    deployment: Deployment, former: Workbench
) -> None:
    declaration = declared(deployment).declaration
    shown = plan_settlement(
        former.catalog, deployment.ledger, declaration, output="former", verb=OperationVerb.ABANDON_OUTPUT
    )
    former.stage(2, [4], mode=StagedMode(mode="append", table=former.output.target))

    with pytest.raises(UsageError, match="The plan is out of date"):
        abandon_output(
            former.catalog,
            deployment.ledger,
            declaration,
            output="former",
            requested_by=ANN,
            planned=shown.digest,
        )

    assert len(former.staged()) == 3
    assert recent_events(deployment.ledger, EventSubject.STREAM, deployment.stream, limit=5) == ()


def test_nothing_is_planned_while_a_driver_lives_or_when_nothing_waits(
    deployment: Deployment, settings: Settings
) -> None:
    with pytest.raises(UsageError, match=r"No batch of .* waits for its publication"):
        planned(deployment, settings)
    deployment.stage(0, 1)
    run = admit_run(
        deployment.ledger, stream=deployment.stream, mode="continuous", declaration_digest="d", launched_by="a test"
    )
    with pytest.raises(RunAlreadyLiveError):
        planned(deployment, settings)
    record_end(deployment.ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="the test is over")


@pytest.mark.parametrize("needs_another", [False, True])
def test_a_page_says_who_carries_it_out_and_who_must_approve(
    deployment: Deployment, settings: Settings, needs_another: bool
) -> None:
    deployment.stage(0, 1)

    plan = plan_batch_run(
        deployment.ledger,
        settings.model_copy(update={"approval_by_another": needs_another}),
        declared(deployment),
        OperationVerb.REJECT_BATCH,
        declarations=None,
    )

    assert "A run of the DAG stream_control does this under your name" in plan.steps[-1].sentence
    assert ("the approval of another person" in plan.steps[-1].sentence) is needs_another


def test_a_page_plans_what_the_command_line_plans_about_a_held_batch(
    deployment: Deployment, settings: Settings
) -> None:
    stream, key = declared(deployment), PublicationKey(stream=deployment.stream, generation=1, batch=3)
    rows = ['{"price":-1.10}', '{"sums":[{"Price":null}]}']
    every = load_declarations(deployment.folder, only=deployment.stream)
    masking = replace(stream, declaration=stream.declaration.model_copy(update={"masked_columns": ("price",)}))
    with pytest.raises(UsageError, match="none is"):
        plan_batch_run(deployment.ledger, settings, stream, OperationVerb.RELEASE_BATCH, declarations=every)
    hold_batch(
        deployment.ledger,
        HeldBatch(
            key=key,
            reason="price_is_positive by 1 of 2 rows of main",
            rows={"main": 2},
            samples={"main": {"price_is_positive": json.dumps(rows)}},
        ),
    )

    for verb, becomes in (
        (OperationVerb.RELEASE_BATCH, "All of it becomes visible, 2 rows of main: "),
        (OperationVerb.REJECT_BATCH, "It is discarded, 2 rows of main never become visible: "),
    ):
        plan = plan_batch_run(deployment.ledger, settings, stream, verb, declarations=every)
        assert plan.steps[1].sentence.startswith(becomes)
        assert (plan.digest, plan.verb) == (plan_decision(deployment.ledger, stream, verb).digest, verb)
        assert "breaks price_is_positive by 1 of 2 rows of main" in plan.steps[0].sentence
        for known, shown in (
            (every, [f"Rows of main that break price_is_positive, for example: {', '.join(rows)}."]),
            (None, []),
            (replace(every, streams={stream.name: masking}), []),
        ):
            plan = plan_batch_run(deployment.ledger, settings, stream, verb, declarations=known)
            assert [one.sentence for one in plan.steps if "for example" in one.sentence] == shown
        assert "A run of the DAG stream_control does this under your name" in plan.steps[-1].sentence


BY_ITSELF = "the next run of its DAG does it first; trigger one to have it at once"


@pytest.mark.parametrize(
    ("schedule", "first"),
    [
        (None, BY_ITSELF),
        (ScheduleDeclaration(cron="@daily"), BY_ITSELF),
        (ScheduleDeclaration(cron="@daily", tables=("a.b",)), BY_ITSELF),
        (
            ScheduleDeclaration(tables=("a.b",)),
            "a run of its DAG, which the reconciler triggers within a minute or two",
        ),
    ],
)
def test_a_plan_says_which_run_carries_a_decision_out(
    deployment: Deployment, schedule: ScheduleDeclaration | None, first: str
) -> None:
    stream, key = declared(deployment), PublicationKey(stream=deployment.stream, generation=1, batch=3)
    hold_batch(deployment.ledger, HeldBatch(key=key, reason="a rule by 1 of 2 rows", rows={"main": 2}))
    scheduled = replace(stream, declaration=stream.declaration.model_copy(update={"schedule": schedule}))

    plan = plan_decision(deployment.ledger, scheduled, OperationVerb.RELEASE_BATCH)

    assert first in plan.steps[1].sentence


@pytest.mark.parametrize("is_merged", [False, True])
def test_only_rows_that_are_staged_as_they_came_are_separated(deployment: Deployment, is_merged: bool) -> None:
    stream, key = declared(deployment), PublicationKey(stream=deployment.stream, generation=1, batch=3)
    iceberg = {"table": "a.b", "mode": "merge", "keys": ["id"]} if is_merged else {"table": "a.b"}
    outputs = {"main": OutputDeclaration.model_validate({"iceberg": iceberg})}
    separable = replace(
        stream,
        declaration=stream.declaration.model_copy(update={"quarantine": True, "outputs": outputs}),
        rules={"main": (RuleDeclaration.model_validate({"name": "r", "expression": "id > 0"}),)},
    )
    held = HeldBatch(key=key, reason="r", rows={"main": 2, QUARANTINE_OUTPUT: 0}, failed={"main": {"r": 1}})
    hold_batch(deployment.ledger, held)

    if is_merged:
        with pytest.raises(UsageError, match="main is merged, and of each key only the newest row is staged"):
            plan_decision(deployment.ledger, separable, OperationVerb.SEPARATE_BATCH)
    else:
        plan = plan_decision(deployment.ledger, separable, OperationVerb.SEPARATE_BATCH)
        assert "go to the quarantine with these names" in plan.steps[1].sentence


def test_the_run_of_a_command_that_was_interrupted_has_failed(deployment: Deployment) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        run_of_command(
            deployment.ledger, deployment.stream, CommandMode.REJECTION, requested_by=ANN, what="the rejection"
        ),
    ):
        raise KeyboardInterrupt

    ended = newest_run(deployment.ledger, deployment.stream)
    assert ended is not None
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 1)
    assert ended.reason == "the rejection ended early: KeyboardInterrupt: "
