"""The task that asks for work, beside a real ledger: what it starts, how it waits, and what it makes of an end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from tests.fixtures.deployment import PLANTED_SECRET, deployment_environment
from tests.fixtures.drivers import await_applications_end, await_condition
from tests.fixtures.sample_declarations import write_table

from sluice.failure_reasons import Failure, FailureReason, describe_failure, next_step
from sluice.ledger.applications import beat, begin_application, bind_application, recent_applications
from sluice.ledger.connection import Ledger
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.work_items import claim, end_item, find_items, observe_item, withdraw_items
from sluice.ledger.work_values import WorkItem, WorkState
from sluice.processes.host_processes import identity_of
from sluice.supervision.alerts import Alert
from sluice.work.requests import MaintainTable
from sluice_airflow.operators import WorkFailedError, WorkOperator, failure_of_work
from sluice_airflow.triggers.work_trigger import WorkTrigger

SPARK_SUBMIT = """\
#!/bin/sh
python3 -c 'import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "environment": dict(os.environ)}))' "$@" > "$SEEN.part"
mv "$SEEN.part" "$SEEN"
exit 1
"""


@pytest.fixture
def pipelines(tmp_path: Path) -> Path:
    """A folder with one table, in which nothing else is written."""
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    write_table(pipelines, "bronze.flights")
    return pipelines


@pytest.fixture
def seen(
    tmp_path: Path, pipelines: Path, ledger: Ledger, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The file into which a `spark-submit` that starts nothing writes its command line and environment."""
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(SPARK_SUBMIT)
    program.chmod(0o755)
    (tmp_path / "jars" / "spark").mkdir(parents=True)
    for jar in ("b.jar", "a.jar"):
        (tmp_path / "jars" / "spark" / jar).touch()
    for name, value in deployment_environment(tmp_path, pipelines=pipelines, ledger_url=ledger_url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.json"))
    connection = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    yield tmp_path / "seen.json"
    await_applications_end(ledger)


def task_of(table: str = "bronze.flights", *, run_id: str = "manual__1") -> WorkOperator:
    """The task of a table in a run, with its templates rendered."""
    with DAG("table_maintenance", schedule=None) as dag:
        task = WorkOperator(task_id=table, request=MaintainTable(table=table))
    task.render_template_fields(Context(dag=dag, run_id=run_id))
    return task


def waits(begin: Callable[[], Any]) -> tuple[WorkTrigger, dict[str, Any]]:
    """The trigger beside which a task waits, and the arguments with which it is called back."""
    with pytest.raises(TaskDeferred) as deferred:
        begin()
    trigger = deferred.value.trigger
    assert isinstance(trigger, WorkTrigger)
    assert deferred.value.method_name == "look_again"
    return trigger, json.loads(json.dumps(deferred.value.kwargs))


def claimed_by_an_application(ledger: Ledger, item: str) -> tuple[str, list[WorkItem]]:
    """An application that this test is, and what it has claimed."""
    application = begin_application(ledger, item, started_by="a test")
    assert application is not None
    assert beat(ledger, application)
    return application, list(claim(ledger, application, lambda waiting: waiting))


def working_application(ledger: Ledger, task: WorkOperator, context: Context) -> tuple[str, WorkItem, dict[str, Any]]:
    """An application that works on the item of a task, which waits; with the arguments for the task's next turn."""
    trigger, kwargs = waits(lambda: task.execute(context))
    await_applications_end(ledger)
    application, (item,) = claimed_by_an_application(ledger, trigger.item)
    return application, item, kwargs


def test_it_starts_one_application_for_all_tasks_and_waits(seen: Path, ledger: Ledger) -> None:
    first, kwargs = waits(lambda: task_of().execute(Context()))
    (application,) = recent_applications(ledger, limit=9)
    beat(ledger, application.application)
    second, _ = waits(lambda: task_of("silver.flights").execute(Context()))

    assert len(recent_applications(ledger, limit=9)) == 1
    assert application.started_by == "airflow: table_maintenance, manual__1"
    assert kwargs == {"item": first.item}
    assert (first.stream, first.results_of, first.ends_task) == ("bronze.flights", "", True)
    found = {item.item: (item.subject, item.asked_by, dict(item.payload)) for item, _ in find_items(ledger, limit=9)}
    assert found[second.item] == (
        "silver.flights", "airflow: table_maintenance, manual__1", {"table": "silver.flights"}
    )  # fmt: skip


def test_the_command_line(seen: Path, tmp_path: Path, ledger: Ledger) -> None:
    waits(lambda: task_of().execute(Context()))
    await_condition(seen.exists)
    argv = json.loads(seen.read_text())["argv"]
    (application,) = recent_applications(ledger, limit=9)
    conf = dict(argv[place + 1].split("=", 1) for place, word in enumerate(argv) if word == "--conf")
    others = [word for place, word in enumerate(argv) if word != "--conf" and argv[place - 1] != "--conf"]
    assert others == [
        *("--master", "local[2]", "--deploy-mode", "client", "--name", f"sluice work {application.pool.name}"),
        str(tmp_path / "jobs" / "run_work.py"),
        *(f"--application-id={application.application}", f"--pool={application.pool.name}"),
        *("--with-delta=no", "--repeats-tasks=yes", "--ui=no", "--cores="),
    ]
    assert conf["spark.driver.extraClassPath"] == f"{tmp_path}/jars/spark/a.jar:{tmp_path}/jars/spark/b.jar"
    assert application.log_file == str(
        tmp_path / "logs" / "work" / f"{application.pool.name}-{application.application[:8]}.log"
    )


def test_secrets_travel_in_the_environment_and_in_no_argument_template_or_trigger(
    seen: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application gets those of the deployment, and none of Airflow's."""
    names = ("AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__API__SECRET_KEY", "AIRFLOW_CONN_OTHER", "_AIRFLOW_ANY")
    for name in names:
        monkeypatch.setenv(name, "Pl4nted-of-airflow")
    task = task_of()
    trigger, _ = waits(lambda: task.execute(Context()))
    await_condition(seen.exists)
    written = json.loads(seen.read_text())
    assert PLANTED_SECRET in written["environment"]["SLUICE_OBJECT_STORE__SECRET_ACCESS_KEY"]
    assert PLANTED_SECRET not in json.dumps(written["argv"])
    assert PLANTED_SECRET not in repr([getattr(task, field) for field in task.template_fields])
    assert PLANTED_SECRET not in repr(trigger.serialize())
    assert PLANTED_SECRET not in repr(find_items(ledger, limit=9))
    assert [name for name, value in written["environment"].items() if "Pl4nted-of-airflow" in value] == []
    assert [name for name in written["environment"] if "AIRFLOW" in name and written["environment"][name]] == []
    assert all(os.environ[name] for name in names), "the task itself needs them"


def test_it_ends_when_its_item_is_done_and_shows_what_was_logged_about_it(
    seen: Path, ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    application, item, kwargs = working_application(ledger, task := task_of(), Context())
    log = tmp_path / "application.log"
    head = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} INFO"
    log.write_text(f"{head} [{item.item[:8]}] rewrote 7 files\n{head} [ffffffff] of a neighbour\n")
    bind_application(ledger, application, identity_of(os.getpid()), log_file=str(log))
    end_item(ledger, item, application, WorkState.DONE)

    task.look_again(Context(), {"seen": "done"}, **kwargs)

    shown = capsys.readouterr().out
    assert "rewrote 7 files" in shown
    assert "of a neighbour" not in shown


def test_it_fails_with_the_words_of_its_item(seen: Path, ledger: Ledger) -> None:
    application, item, kwargs = working_application(ledger, task := task_of(), Context())
    failure = "sluice: reason: unexplained\nsluice: failed: LakehouseError: The catalog does not answer."
    end_item(ledger, item, application, WorkState.FAILED, failure=failure)

    with pytest.raises(WorkFailedError, match=r"^The catalog does not answer\.$") as raised:
        task.look_again(Context(), {"seen": "failed"}, **kwargs)

    assert not isinstance(raised.value, AirflowFailException)
    assert raised.value.alerts[0].stream == "bronze.flights"


@pytest.mark.full  # every run: what a pass meets (`test_reconcile_all.py`)
def test_a_table_that_stays_red_is_new_once_and_ends_once(seen: Path, ledger: Ledger) -> None:
    """By the night's runs of a DAG: whoever is paged by new alerts is paged once."""
    alerts = []
    application, item, kwargs = working_application(ledger, task := task_of(run_id="manual__0"), Context())
    for number, state in enumerate((WorkState.FAILED, WorkState.FAILED, WorkState.DONE, WorkState.FAILED)):
        if number:
            task = task_of(run_id=f"manual__{number}")
            _, kwargs = waits(partial(task.execute, Context()))
            (item,) = claim(ledger, application, lambda waiting: waiting)
        assert end_item(ledger, item, application, state, failure="sluice: failed: LakehouseError: no")
        if state is WorkState.DONE:
            task.look_again(Context(), **kwargs)
            continue
        with pytest.raises(WorkFailedError) as raised:
            task.look_again(Context(), **kwargs)
        alerts.append(raised.value.alerts[0].is_new)
    assert alerts == [True, False, True]
    events = recent_events(ledger, EventSubject.STREAM, "maintain_table bronze.flights", limit=9)
    assert [event.action for event in reversed(events)] == ["alert", "recover", "alert"]


def test_when_its_application_has_died_it_starts_the_next_one(seen: Path, ledger: Ledger) -> None:
    task = task_of()
    trigger, kwargs = waits(lambda: task.execute(Context()))
    await_applications_end(ledger)

    again, _ = waits(lambda: task.look_again(Context(), {"seen": "starts an application"}, **kwargs))

    assert again.item == trigger.item
    assert len(recent_applications(ledger, limit=9)) == 2


@pytest.mark.full  # every run: `test_work_items.py`
def test_it_fails_when_no_application_begins_to_work_and_names_the_log(seen: Path, ledger: Ledger) -> None:
    task = task_of()
    _, kwargs = waits(lambda: task.execute(Context()))
    await_applications_end(ledger)
    waits(lambda: task.look_again(Context(), **kwargs))
    await_applications_end(ledger)

    with pytest.raises(WorkFailedError, match=r"ended before they took any work: .*\.log") as raised:
        task.look_again(Context(), **kwargs)

    assert not isinstance(raised.value, AirflowFailException), "the next try may find the host repaired"


@pytest.mark.full  # every run: a cleared task
def test_files_that_changed_while_it_waited_make_it_ask_for_another_item(
    seen: Path, ledger: Ledger, pipelines: Path
) -> None:
    task = task_of()
    trigger, kwargs = waits(lambda: task.execute(Context()))
    await_applications_end(ledger)
    (pipelines / "rows.sql").write_text("select 2")

    again, _ = waits(lambda: task.look_again(Context(), **kwargs))

    assert again.item != trigger.item
    states = {item.item: state for item, state in find_items(ledger, limit=9)}
    assert states == {trigger.item: WorkState.WITHDRAWN, again.item: WorkState.WAITING}


def test_a_cleared_task_asks_again_and_its_first_item_is_withdrawn(seen: Path, ledger: Ledger) -> None:
    _, item, _ = working_application(ledger, task_of(), Context())

    trigger, _ = waits(lambda: task_of().execute(Context()))

    assert observe_item(ledger, item.item).state is WorkState.WITHDRAWN
    assert observe_item(ledger, trigger.item).state is WorkState.WAITING


@pytest.mark.full  # every run: `test_work_items.py`
def test_another_run_withdraws_nothing_of_this_one(seen: Path, ledger: Ledger) -> None:
    _, item, _ = working_application(ledger, task_of(), Context())
    waits(lambda: task_of(run_id="manual__2").execute(Context()))
    assert observe_item(ledger, item.item).state is WorkState.CLAIMED


def test_a_task_that_is_ended_on_its_worker_withdraws_its_item(seen: Path, ledger: Ledger) -> None:
    task = task_of()
    task.on_kill()  # before it has asked
    trigger, _ = waits(lambda: task.execute(Context()))

    task.on_kill()

    assert observe_item(ledger, trigger.item).state is WorkState.WITHDRAWN


@pytest.mark.full  # every run: one that failed
def test_an_item_that_somebody_withdrew_is_tried_again(seen: Path, ledger: Ledger) -> None:
    task = task_of()
    trigger, kwargs = waits(lambda: task.execute(Context()))
    withdraw_items(ledger, [trigger.item])

    with pytest.raises(AirflowException, match=r"of bronze\.flights was withdrawn") as raised:
        task.look_again(Context(), {"seen": "withdrawn"}, **kwargs)

    assert not isinstance(raised.value, AirflowFailException)


def test_a_missing_connection_is_one_sentence_and_asks_for_nothing(
    seen: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark"}))
    with pytest.raises(AirflowFailException, match=r"^The Airflow connection spark_default cannot be used: it has no"):
        task_of().execute(Context())
    assert find_items(ledger, limit=9) == ()


def test_missing_settings_are_named(seen: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_LEDGER_URL")
    with pytest.raises(AirflowFailException, match="SLUICE_LEDGER_URL: Field required"):
        task_of().execute(Context())
    assert find_items(ledger, limit=9) == ()


def test_a_ledger_that_does_not_answer_is_tried_again(seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_LEDGER_URL", "postgresql+psycopg://sluice@127.0.0.1:1/absent")
    with pytest.raises(AirflowException, match=r"^The ledger at 127\.0\.0\.1") as raised:
        task_of().execute(Context())
    assert not isinstance(raised.value, AirflowFailException)


def test_where_each_task_has_a_pod_no_application_is_started(
    seen: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    with pytest.raises(AirflowFailException, match="gives each task a place of its own"):
        task_of().execute(Context())
    (application,) = recent_applications(ledger, limit=9)
    assert (application.pid, not seen.exists()) == (None, True)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("LakehouseError", AirflowException),
        ("UnhealthyError", AirflowFailException),
        ("DeclarationError", AirflowFailException),
        ("NotYetError", AirflowFailException),
        ("SettingsError", AirflowFailException),
        ("NotAnErrorOfOurs", AirflowException),
    ],
)
def test_only_what_may_pass_is_tried_again(error: str, kind: type[AirflowException]) -> None:
    raised = failure_of_work(f"sluice: failed: {error}: no", subject="flights")
    assert isinstance(raised, AirflowFailException) is (kind is AirflowFailException)
    assert str(raised) == "no"
    assert raised.alerts == (Alert(stream="flights", sentence="no"),)


def test_the_last_word_of_an_item_counts() -> None:
    words = "sluice: failed: LakehouseError: first\nsluice: failed: UnhealthyError: last"
    assert str(failure_of_work(words, subject="flights")) == "last"


def test_a_failure_without_a_last_word_keeps_its_text() -> None:
    said = "it was claimed by 2 Spark applications, and each ended while it worked on it"
    assert str(failure_of_work(said, subject="flights")) == said


@pytest.mark.parametrize(
    ("reason", "kind"), [("kafka_unreachable", AirflowException), ("column_missing", AirflowFailException)]
)
def test_a_failure_has_its_class_and_next_step_and_is_retried_only_where_that_helps(
    reason: str, kind: type[AirflowException]
) -> None:
    raised = failure_of_work(f"sluice: reason: {reason}\nsluice: failed: DeliveryError: no.", subject="flights")
    failure = Failure.of(FailureReason(reason))
    assert isinstance(raised, AirflowFailException) is (kind is AirflowFailException)
    assert raised.alerts == (Alert(stream="flights", reason=reason, sentence=str(raised)),)
    assert str(raised) == f"no. That is {describe_failure(failure)}. {next_step(failure.reason, stream='flights')}"


def test_an_error_of_ours_that_no_rule_explains_speaks_for_itself() -> None:
    said = "sluice: reason: unexplained\nsluice: failed: {}: 1 of 3 expectations do not hold."

    own = failure_of_work(said.format("UnhealthyError"), subject="silver.flights")
    foreign = failure_of_work(said.format("AnalysisException"), subject="silver.flights")

    assert str(own) == "1 of 3 expectations do not hold."
    assert "See the end of" in str(foreign)
