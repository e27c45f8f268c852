"""What a page does to a stream, with a real ledger: it plans, it asks, and it starts and ends nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.deployment import deployment_environment
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import LaunchError, UsageError
from sluice.launching.launcher_port import LaunchRequest
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import find_desired_state, set_desired_state
from sluice.ledger.events import EventObservation, EventSubject, recent_events
from sluice.ledger.generations import current_generation
from sluice.ledger.run_values import DesiredState, RunObservation
from sluice.ledger.runs import admit_run, beat, newest_run
from sluice.pages.page_actions import NEEDS_ONE_PERSON, PageActions, PageVerb
from sluice.pages.stream_lines import ObservingLauncher
from sluice.processes.process_identity import ProcessIdentity
from sluice.settings import Settings, load_settings

ANN = "airflow: pages, ann"
VERBS = (PageVerb.START, PageVerb.STOP, PageVerb.RESTART, PageVerb.RESET_BREAKER)


@pytest.fixture
def clicks(tmp_path: Path) -> LoadedStream:
    """A declared stream."""
    for table in ("bronze.flights", "silver.flights"):
        write_table(tmp_path, table)
    write_continuous_stream(tmp_path, "clicks")
    return load_declarations(tmp_path).stream("clicks")


@pytest.fixture
def actions(ledger: Ledger) -> PageActions:
    """The actions of a person; these verbs need no settings."""
    settings: Any = None
    return PageActions(ledger=ledger, settings=settings, actor=ANN)


def a_live_run(ledger: Ledger) -> RunObservation:
    """A run whose driver reports."""
    run = admit_run(ledger, stream="clicks", mode="continuous", declaration_digest="d", launched_by="a test")
    beat(ledger, run.run_id)
    return run


def events(ledger: Ledger) -> list[EventObservation]:
    """What was recorded of the stream, oldest first."""
    return list(reversed(recent_events(ledger, EventSubject.STREAM, "clicks", limit=20)))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("is_live", [False, True])
def test_a_plan_has_steps_and_changes_nothing(
    ledger: Ledger, actions: PageActions, clicks: LoadedStream, verb: PageVerb, is_live: bool
) -> None:
    run = a_live_run(ledger) if is_live else None

    plan = actions.plan(verb, clicks)

    assert len(plan.steps) >= 2
    assert "This page only asks" in plan.steps[-1].sentence
    assert all(step.command == () for step in plan.steps)
    assert events(ledger) == []
    assert find_desired_state(ledger, "clicks").changed_at is None
    assert (newest_run(ledger, "clicks") is None) == (run is None)


def confirm(actions: PageActions, verb: PageVerb, stream: LoadedStream) -> None:
    """Carry out what is planned now."""
    actions.carry_out(verb, stream, planned=actions.plan(verb, stream).digest)


@pytest.mark.parametrize("verb", [verb for verb in PageVerb if verb not in NEEDS_ONE_PERSON])
def test_a_plan_is_out_of_date_when_somebody_has_asked_something_since(
    ledger: Ledger, actions: PageActions, clicks: LoadedStream, verb: PageVerb
) -> None:
    """What its driver does meanwhile makes no other plan: one that crashes each minute can still be stopped."""
    set_desired_state(ledger, "clicks", DesiredState.RUNNING, requested_by="bob")
    shown = actions.plan(verb, clicks).digest
    a_live_run(ledger)
    assert actions.plan(verb, clicks).digest == shown
    set_desired_state(ledger, "clicks", DesiredState.STOPPED, requested_by="bob")
    with pytest.raises(UsageError, match="The plan is out of date"):
        actions.carry_out(verb, clicks, planned=shown)
    assert find_desired_state(ledger, "clicks").requested_by == "bob"
    assert events(ledger) == []


def test_a_restart_asks_the_live_run_to_end_and_the_stream_to_run(
    ledger: Ledger, actions: PageActions, clicks: LoadedStream
) -> None:
    run = a_live_run(ledger)

    confirm(actions, PageVerb.RESTART, clicks)

    asked = newest_run(ledger, "clicks")
    assert asked is not None
    assert (asked.run_id, asked.is_live) == (run.run_id, True), "the page waits for nothing"
    assert asked.end_asked_because == f"restarted by {ANN}"
    assert find_desired_state(ledger, "clicks").effective_state is DesiredState.RUNNING
    assert [(event.action, event.actor.name, event.run_id) for event in events(ledger)] == [
        ("restart", ANN, run.run_id)
    ]


def test_start_and_stop_are_the_newest_request_with_its_event(
    ledger: Ledger, actions: PageActions, clicks: LoadedStream
) -> None:
    confirm(actions, PageVerb.STOP, clicks)
    assert find_desired_state(ledger, "clicks").desired_state is DesiredState.STOPPED
    confirm(actions, PageVerb.START, clicks)
    assert find_desired_state(ledger, "clicks").desired_state is DesiredState.RUNNING
    confirm(actions, PageVerb.RESET_BREAKER, clicks)

    assert [(event.action, event.actor.name) for event in events(ledger)] == [
        ("stop", ANN),
        ("start", ANN),
        ("reset_breaker", ANN),
    ]
    assert newest_run(ledger, "clicks") is None, "a page starts no driver"


@pytest.mark.full  # three plans ask a catalog that is not there again and again; every run shows that for other verbs
def test_a_page_leaves_the_generation_alone_that_was_shown(
    ledger: Ledger, clicks: LoadedStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_login = {"SLUICE_CATALOG__OAUTH2_SERVER_URI": "http://127.0.0.1:1/token"}
    for name, value in (deployment_environment(tmp_path, pipelines=tmp_path) | no_login).items():
        monkeypatch.setenv(name, value)
    asked = PageActions(ledger=ledger, settings=load_settings(), actor=ANN)
    current_generation(ledger, "clicks", checkpoints_root=asked.settings.checkpoints)
    set_desired_state(ledger, "clicks", DesiredState.STOPPED)
    shown = asked.plan(PageVerb.RESET, clicks).digest

    asked.carry_out(PageVerb.RESET, clicks, planned=shown)
    with pytest.raises(UsageError, match="The plan is out of date"):
        asked.carry_out(PageVerb.RESET, clicks, planned=shown)

    assert [event.action for event in events(ledger)] == ["open_generation", "reset"]


def test_a_page_resets_nothing_where_another_person_must_approve(actions: PageActions, clicks: LoadedStream) -> None:
    asked = replace(actions, settings=Settings.model_construct(approval_by_another=True))
    unread: Any = None

    for ask in (
        lambda: asked.plan(PageVerb.RESET, clicks),
        lambda: asked.carry_out(PageVerb.RESET, clicks, planned=""),
        lambda: asked.plan(PageVerb.REPAIR, clicks),
        lambda: asked.carry_out(PageVerb.REPAIR, clicks, planned=""),
        lambda: asked.plan_rewind(unread, "clicks", 0),
        lambda: asked.rewind(unread, "clicks", 0, planned=""),
    ):
        with pytest.raises(UsageError, match="the approval of another person") as refused:
            ask()
        assert "stream_control" in refused.value.next_step


def test_the_launcher_of_a_page_starts_and_ends_nothing(tmp_path: Path) -> None:
    launcher = ObservingLauncher()
    process = ProcessIdentity(host="elsewhere", pid=1, started_at_seconds=1.0)

    with pytest.raises(LaunchError, match="A page starts no driver"):
        launcher.launch(LaunchRequest(run_id="r", stream="clicks", command=("true",), log_file=tmp_path / "log"))
    with pytest.raises(LaunchError, match="A page ends no driver"):
        launcher.stop(process, grace_seconds=1)
