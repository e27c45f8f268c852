"""A command that waits for its item: it starts an application, and says so when none could do the item any more."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import event, func, select
from sqlalchemy.engine import URL
from tests.fakes.launcher import FakeLauncher
from tests.fixtures.ledger_copies import replaceable_ledger
from tests.fixtures.queued_items import claimed, started
from tests.fixtures.sample_settings import sample_settings

from sluice.errors import LaunchError, LedgerError
from sluice.launching.spark_submit import SparkConnection
from sluice.ledger.applications import recent_applications
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.work_items import ask, end_item, withdraw_items
from sluice.ledger.work_tables import WorkRow
from sluice.ledger.work_values import WorkItem, WorkState
from sluice.work.pools import EngineProfile
from sluice.work.requests import MaintainTable
from sluice.work.start_application import LOG_SECONDS, WorkQueue, await_item


def url_of(ledger: Ledger) -> str:
    """Where a ledger is."""
    return ledger.engine.url.render_as_string(hide_password=False)


def queue_in(folder: Path, ledger: Ledger) -> WorkQueue:
    """The queue of a deployment in a folder, whose applications exist in memory only."""
    pipelines = folder / "pipelines"
    for place in (pipelines, folder / "jobs"):
        place.mkdir(parents=True)
    settings = sample_settings(folder).model_copy(
        update={"home": folder, "pipelines": pipelines, "ledger_url": SecretStr(url_of(ledger))}
    )
    return WorkQueue(
        settings=settings,
        ledger=ledger,
        connections=lambda _: SparkConnection(),
        launcher=FakeLauncher(ledger),
        asked_by="a test",
    )


def test_an_application_is_started_for_an_item_that_waits_and_only_for_that(tmp_path: Path, ledger: Ledger) -> None:
    queue, profile = queue_in(tmp_path, ledger), EngineProfile()
    item, other = ask(ledger, *(queue.item(MaintainTable(table=f"silver.{name}"), profile) for name in "ab"))
    withdraw_items(ledger, [item])
    assert not await_item(queue, item, profile, on_line=print).state.is_open
    assert recent_applications(ledger, limit=5) == ()

    assert isinstance(queue.launcher, FakeLauncher)
    queue.launcher.refusal = "no core is free"
    with pytest.raises(LaunchError, match="no core is free"):
        await_item(queue, other, profile, on_line=print)
    (application,) = recent_applications(ledger, limit=5)
    assert application.reason == "it could not be started: no core is free"


def test_no_application_is_started_that_would_refuse_the_item(tmp_path: Path, ledger: Ledger) -> None:
    queue, profile = queue_in(tmp_path, ledger), EngineProfile()
    (item,) = ask(ledger, queue.item(MaintainTable(table="silver.flights"), profile))
    (queue.settings.pipelines / "rows.sql").write_text("SELECT 1")

    with pytest.raises(LaunchError, match="have changed since the work was asked for") as refused:
        await_item(queue, item, profile, on_line=print)

    assert refused.value.next_step == "Run the command again."
    assert recent_applications(ledger, limit=5) == ()


def test_a_look_at_many_items_is_one_query(tmp_path: Path, ledger: Ledger) -> None:
    queue, profile = queue_in(tmp_path, ledger), EngineProfile()
    items = ask(ledger, *(queue.item(MaintainTable(table=f"silver.t{number}"), profile) for number in range(50)))
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE sluice.work_items SET waits_until = now() - interval '1 h'")
    withdraw_items(ledger, items[:1])
    queries: list[str] = []
    event.listen(ledger.engine, "before_cursor_execute", lambda *given: queries.append(given[2]))

    await_item(queue, items[0], profile, on_line=print, beside=items[1:])

    assert len(queries) < 10
    with ledger.transaction() as connection:
        waits = select(func.count()).select_from(WorkRow).where(WorkRow.waits_until > func.now())
        assert connection.execute(waits).scalar_one() == len(items) - 1, "all of them stay asked for"


def test_a_restored_ledger_does_not_answer_for_an_item_that_it_does_not_know(tmp_path: Path, postgres_url: URL) -> None:
    """The ledger is replaced by an older copy while a command waits. What others ask there has other names."""
    with replaceable_ledger(postgres_url.render_as_string(hide_password=False)) as database:
        copy = database.copy()

        def restore() -> None:
            database.fail_over(copy)
            with open_ledger(database.url) as restored:
                other = queue_in(tmp_path / "other", restored)
                ask(restored, other.item(MaintainTable(table="silver.flights"), EngineProfile()))

        with open_ledger(database.url) as ledger:
            queue, profile = queue_in(tmp_path / "own", ledger), EngineProfile()
            (item,) = ask(ledger, queue.item(MaintainTable(table="silver.flights"), profile))
            timer = threading.Timer(1.0, restore)
            timer.start()
            with pytest.raises(
                LedgerError, match=f"knows no work item {item}|ended by administrator|cannot be reached"
            ):
                await_item(queue, item, profile, on_line=print)
            timer.join()
            with pytest.raises(LedgerError, match=f"knows no work item {item}"):
                await_item(queue, item, profile, on_line=print)


def test_a_command_learns_of_the_end_of_its_item_without_asking_the_ledger_again_and_again(
    tmp_path: Path, ledger: Ledger
) -> None:
    queue, profile = queue_in(tmp_path, ledger), EngineProfile()
    item, application = claimed_item(queue, profile)
    looks: list[str] = []
    event.listen(ledger.engine, "before_cursor_execute", lambda *given: looks.append(given[2]))
    ended_at: list[float] = []

    def end() -> None:
        with open_ledger(queue.settings.ledger_url) as other:
            assert end_item(other, item, application, WorkState.DONE)
        ended_at.append(time.monotonic())

    timer = threading.Timer(3.0, end)
    timer.start()
    assert await_item(queue, item.item, profile, on_line=print).state is WorkState.DONE
    timer.join()

    assert time.monotonic() - ended_at[0] < LOG_SECONDS + 1.5
    assert len(looks) <= 3


def claimed_item(queue: WorkQueue, profile: EngineProfile) -> tuple[WorkItem, str]:
    """An item, and the application that has claimed it."""
    (asked,) = ask(queue.ledger, queue.item(MaintainTable(table="silver.flights"), profile))
    application = started(queue.ledger, asked)
    (item,) = claimed(queue.ledger, application)
    return item, application
