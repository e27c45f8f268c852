"""A Spark application does one work item after another: isolated, fenced, and never for too long."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.fixtures.driver_uis import require_closed, require_readable
from tests.fixtures.spark_jobs import secrets_of, words_of
from tests.fixtures.stack import Stack
from tests.fixtures.streams_of_tables import COLUMNS, reading, writing
from tests.fixtures.work import (
    applications_of,
    ask_for,
    await_end,
    await_end_of_application,
    queue_of,
    serve,
    start,
    states_of,
    waited_for,
)
from tests.fixtures.workshop import Workshop

from run_work import run_work
from sluice.errors import LaunchError
from sluice.launching.spark_submit import RunWork
from sluice.ledger.applications import begin_application, find_application
from sluice.ledger.driver_access import DriverUi, find_driver_ui
from sluice.ledger.runs import newest_run
from sluice.ledger.work_items import ask, observe_item, withdraw_items
from sluice.ledger.work_values import ApplicationState, WorkItem, WorkState
from sluice.processes.deadline import wait_until
from sluice.publication.crash_points import CrashPoint
from sluice.work.pools import EngineProfile
from sluice.work.requests import Increment, ReplaceInterval
from sluice_spark.run.stop_request import StopReason, StopRequest
from sluice_spark.work.item_work import ReachedOfItem

DONE, FAILED, WAITING, WITHDRAWN = WorkState.DONE, WorkState.FAILED, WorkState.WAITING, WorkState.WITHDRAWN
FAILING = "SELECT id, CAST(CAST(word AS INT) AS STRING) AS word FROM records"


def declare(workshop: Workshop, name: str = "s", sql: str = "SELECT id, word FROM records", **parts: Any) -> str:
    """Declare a stream that copies a table of its own; its name."""
    stream = f"{name}{workshop.namespace}"
    source, target = (workshop.declare_table(f"{name}_{table}", COLUMNS) for table in ("source", "target"))
    workshop.declare_stream(stream, sql=sql, inputs=reading(source), outputs=writing(target), **parts)
    return stream


def append(workshop: Workshop, *numbers: int, name: str = "s") -> None:
    """Append rows to the source of a stream."""
    workshop.append(f"{name}_source", [{"id": number, "word": "word"} for number in numbers])


def ids(workshop: Workshop, name: str = "s") -> list[int]:
    """The ids in the target of a stream."""
    return [row["id"] for row in workshop.rows(f"{name}_target")]


def at(step: CrashPoint, subject: str, act: Any) -> ReachedOfItem:
    """Do something when an item about a subject has reached a step."""

    def reached(here: CrashPoint, item: WorkItem) -> None:
        if here is step and item.subject == subject:
            act()

    return reached


def test_a_process_does_one_increment_after_another_until_the_deployment_changes(
    workshop: Workshop, services: Stack
) -> None:
    stream = declare(workshop)
    request = Increment(stream=stream)
    served_by: list[str | None] = []
    with applications_of(workshop, services.environment()) as launcher:
        for number in range(3):
            append(workshop, number)
            item = ask_for(workshop, request, linger_seconds=300)
            if not served_by:
                start(workshop, item, request, launcher)
            seen = await_end(workshop, item)
            assert (seen.state, ids(workshop)) == (DONE, list(range(number + 1))), seen
            served_by.append(seen.application)
        assert len(set(served_by)) == 1

        declare(workshop, sql="SELECT id, upper(word) AS word FROM records")
        item = ask_for(workshop, request)
        assert observe_item(workshop.ledger, item).needs_application

        application = find_application(workshop.ledger, str(served_by[0]))
        assert application.pid is not None
        process, log = psutil.Process(application.pid), Path(str(application.log_file))
        words = words_of([process, *process.children(recursive=True)])
        process.send_signal(signal.SIGTERM)  # the JVM, which is all that others see of a driver
        ended = await_end_of_application(workshop, application.application)

    assert ended.reason == "stopped by a signal"
    for secret in secrets_of(services):
        assert not any(secret in text for text in (*words, log.read_text()))


@pytest.mark.full  # every run has the pages of it (`test_spark_ui_access.py`)
def test_the_ui_of_an_application_is_recorded_for_each_of_its_runs(workshop: Workshop, services: Stack) -> None:
    stream = declare(workshop, engine={"ui": True})
    request = Increment(stream=stream)
    with applications_of(workshop, services.environment()) as launcher:
        uis: list[DriverUi | None] = []
        for number in range(2):
            append(workshop, number)
            item = ask_for(workshop, request, linger_seconds=300)
            if not uis:
                application = start(workshop, item, request, launcher)
            assert await_end(workshop, item).state is DONE
            uis.append(find_driver_ui(workshop.ledger, stream))
        first, second = uis
        run = newest_run(workshop.ledger, stream)
        assert first is not None
        assert run is not None
        assert second == replace(first, run_id=run.run_id) != first
        shown = require_readable(first)
        require_closed(first)

    log = Path(str(find_application(workshop.ledger, application).log_file)).read_text()
    assert not any(first.key.rstrip("=") in text for text in (log, *shown))


@pytest.mark.full  # every run: `test_work_crashes.py`
def test_a_process_that_is_killed_loses_and_doubles_nothing(workshop: Workshop, services: Stack) -> None:
    stream = declare(workshop)
    request = Increment(stream=stream)
    append(workshop, 0)
    item = ask_for(workshop, request)
    with waited_for(workshop, [item]), applications_of(workshop, services.environment()) as launcher:
        application = start(workshop, item, request, launcher)
        wait_until(
            lambda: observe_item(workshop.ledger, item), lambda seen: seen.state is WorkState.CLAIMED, seconds=300
        )
        os.kill(launcher.started[0].pid, signal.SIGKILL)  # the JVM; its attendant ends the rest
        assert await_end_of_application(workshop, application).reason == "killed by SIGKILL"

    assert observe_item(workshop.ledger, item).needs_application
    serve(workshop, [item])

    assert (states_of(workshop, [item]), ids(workshop)) == ([DONE], [0])


def test_a_process_that_finds_other_files_than_were_there_does_nothing(
    workshop: Workshop, services: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = declare(workshop)
    item = ask_for(workshop, Increment(stream=stream))
    application = begin_application(workshop.ledger, item, started_by="a test")
    assert application is not None
    declare(workshop, sql="SELECT id, upper(word) AS word FROM records")
    own = {"SLUICE_PIPELINES": str(workshop.folder), "SLUICE_CHECKPOINTS": workshop.settings.checkpoints}
    for name, value in {**services.environment(), **own}.items():
        monkeypatch.setenv(name, value)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    command = RunWork(
        application_id=application, pool="a test", with_delta="no", repeats_tasks="yes", ui="no", cores=""
    )
    with pytest.raises(LaunchError, match="the files of the deployment have changed"):
        run_work(command)

    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert find_application(workshop.ledger, application).reason == "the files of the deployment have changed"
    assert states_of(workshop, [item]) == [WAITING]


def test_an_item_that_fails_says_why_and_the_others_are_done(workshop: Workshop) -> None:
    streams = [declare(workshop, "a"), declare(workshop, "b", sql=FAILING), declare(workshop, "c")]
    for name in "abc":
        append(workshop, 1, name=name)
    items = [ask_for(workshop, Increment(stream=stream)) for stream in streams]

    assert serve(workshop, items) == "no further work came"

    assert states_of(workshop, items) == [DONE, FAILED, DONE]
    reason, failed = (observe_item(workshop.ledger, items[1]).failure or "").splitlines()
    assert reason.startswith("sluice: reason: ")
    assert failed.startswith("sluice: failed: DeliveryError: ")
    assert (ids(workshop, "a"), ids(workshop, "b"), ids(workshop, "c")) == ([1], [], [1])


@pytest.mark.full  # as above
def test_an_interval_of_a_stream_without_a_backfill_fails_alone(workshop: Workshop) -> None:
    stream = declare(workshop)
    append(workshop, 1)
    queue, profile = queue_of(workshop), EngineProfile()
    requests = (
        ReplaceInterval(stream=stream, start="2013-01-01", end="2013-01-02"),
        ReplaceInterval(stream="gone", start="2013-01-01", end="2013-01-02"),
        Increment(stream=stream),
    )
    items = ask(workshop.ledger, *(replace(queue.item(one, profile), linger_seconds=0) for one in requests))

    serve(workshop, items)

    assert states_of(workshop, items) == [FAILED, FAILED, DONE]
    assert "UsageError" in (observe_item(workshop.ledger, items[0]).failure or "")


@pytest.mark.full  # every run: one that fails beside others
def test_an_item_that_was_withdrawn_stays_withdrawn_and_the_others_are_done(workshop: Workshop) -> None:
    streams = [declare(workshop, "a"), declare(workshop, "b")]
    for name in "ab":
        append(workshop, 1, name=name)
    items = [ask_for(workshop, Increment(stream=stream)) for stream in streams]

    serve(
        workshop,
        items,
        reached=at(CrashPoint.ITEM_DONE, streams[0], lambda: withdraw_items(workshop.ledger, items[:1])),
    )

    assert states_of(workshop, items) == [WITHDRAWN, DONE]
    assert ids(workshop, "b") == [1]


@pytest.mark.full  # every run: a signal between two items, and `test_work_crashes.py`
def test_an_application_that_is_signalled_hands_its_items_back(workshop: Workshop) -> None:
    streams = [declare(workshop, "a"), declare(workshop, "b")]
    for name in "ab":
        append(workshop, 1, name=name)
    stop = StopRequest()
    items = [ask_for(workshop, Increment(stream=stream)) for stream in streams]

    reason = serve(
        workshop,
        items,
        stop=stop,
        reached=at(CrashPoint.ITEM_CLAIMED, streams[1], lambda: stop.make(StopReason.SIGNALLED)),
    )

    assert reason == "stopped by a signal"
    assert set(states_of(workshop, items)) <= {DONE, WAITING}
    serve(workshop, [item for item in items if states_of(workshop, [item]) == [WAITING]] or items)
    assert states_of(workshop, items) == [DONE, DONE]
    assert (ids(workshop, "a"), ids(workshop, "b")) == ([1], [1])


def test_an_application_that_has_reached_a_bound_ends_and_leaves_what_waits(workshop: Workshop) -> None:
    stream = declare(workshop)
    append(workshop, 1)
    items: list[str] = []
    items.append(ask_for(workshop, Increment(stream=stream)))

    def ask_again() -> None:
        if len(items) == 1:
            items.append(ask_for(workshop, Increment(stream=stream), asked_by="another run"))

    reason = serve(
        workshop,
        items,
        reached=at(CrashPoint.ITEM_DONE, stream, ask_again),
        is_worn=lambda: "it is old" if len(items) == 2 else "",
    )

    assert reason == "it is old"
    assert states_of(workshop, items) == [DONE, WAITING]
    seen = observe_item(workshop.ledger, items[0])
    assert find_application(workshop.ledger, str(seen.application)).state is ApplicationState.ENDED
    assert observe_item(workshop.ledger, items[1]).needs_application
