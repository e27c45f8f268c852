"""`sluice stream …` and `sluice ledger …` as a person types them: a real ledger, real processes, a small driver."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.fixtures.drivers import await_condition, await_end, end_drivers
from tests.fixtures.stream_commands import Sluice, document
from tests.fixtures.successors import runs_since

from sluice.declarations.load_declarations import load_declarations
from sluice.failure_reasons import Failure, FailureReason, next_step
from sluice.ledger.airflow_owner import DagPause, record_dag_pauses
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.desired_states import SuspensionCause, find_desired_state, set_desired_state, suspend
from sluice.ledger.migrations import observe_version
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import admit_run, find_run, newest_run, recent_runs, record_end
from sluice.ledger.source_schemas import SeenSchema, record_seen_schema


def test_a_stream_is_started_adopted_and_stopped(sluice: Sluice, ledger: Ledger) -> None:
    exit_code, output, _ = sluice("stream", "start", "flights")
    assert exit_code == 0
    assert "flights: launch: Stream flights has never run." in output
    run = newest_run(ledger, "flights")
    assert run is not None
    assert run.launched_by.startswith("command line: ")

    await_condition(lambda: find_run(ledger, run.run_id).state is RunState.RUNNING)
    assert "flights: adopt: " in sluice("stream", "start", "flights")[1]
    assert len(recent_runs(ledger, "flights", limit=5)) == 1

    exit_code, output, _ = sluice("stream", "stop", "flights")
    assert (exit_code, output) == (0, f"flights is stopped. Its newest run {run.run_id} ended: finished.\n")
    assert sluice("stream", "stop", "flights")[0] == 0
    assert find_desired_state(ledger, "flights").desired_state is DesiredState.STOPPED


def test_a_restart_makes_a_new_run(sluice: Sluice, ledger: Ledger) -> None:
    sluice("stream", "start", "flights")
    answer = document(sluice("stream", "restart", "flights", "--json"))
    second, first = recent_runs(ledger, "flights", limit=5)
    assert (answer["verb"], answer["run"]["run_id"]) == ("restart", second.run_id)
    assert (first.state, second.is_live, runs_since(ledger, first)) == (RunState.FINISHED, True, 1)
    assert str(first.end_asked_because).startswith("restarted by command line: ")


def test_a_stream_that_a_paused_dag_stops_is_started_by_name(sluice: Sluice, ledger: Ledger) -> None:
    suspend(ledger, "flights", SuspensionCause.PAUSED)
    assert "is stopped while its DAG is paused" in sluice("stream", "show", "flights")[1]
    assert "Launch: Stream flights has never run." in sluice("stream", "start", "flights", "--dry-run")[1]
    assert find_desired_state(ledger, "flights").suspension is SuspensionCause.PAUSED
    sluice("stream", "reset-breaker", "flights")
    assert find_desired_state(ledger, "flights").suspension is SuspensionCause.PAUSED
    assert sluice("stream", "start", "flights")[0] == 0
    assert find_desired_state(ledger, "flights").effective_state is DesiredState.RUNNING
    assert newest_run(ledger, "flights") is not None


def test_a_start_beside_a_paused_dag_says_that_it_is_still_paused(sluice: Sluice, ledger: Ledger) -> None:
    """Nothing but the reconciler would show that the stream is given up again."""
    pause = DagPause(stream="flights", airflow="ours", is_paused=True, observed_at=datetime.now(UTC))
    record_dag_pauses(ledger, [pause])
    for arguments in (["--dry-run"], []):
        exit_code, output, _ = sluice("stream", "start", "flights", *arguments)
        assert (exit_code, "The DAG of flights is paused in Airflow" in output) == (0, True), arguments
        assert "Unpause it." in output
    record_dag_pauses(ledger, [replace(pause, is_paused=False, observed_at=datetime.now(UTC))])
    assert "is paused in Airflow" not in sluice("stream", "start", "flights")[1]


def test_the_ledger_shows_its_airflow_and_is_given_to_another(sluice: Sluice) -> None:
    assert "belongs to no Airflow yet" in sluice("ledger", "airflow")[1]
    assert "would be given to Airflow new" in sluice("ledger", "airflow", "--give-to", "new", "--dry-run")[1]
    assert "belongs to no Airflow yet" in sluice("ledger", "airflow")[1]
    assert "belongs to Airflow new since" in sluice("ledger", "airflow", "--give-to", "new")[1]
    assert document(sluice("ledger", "airflow", "--json"))["owner"]["airflow"] == "new"


def test_a_stream_without_its_declaration_is_shown_and_stopped_by_name(
    sluice: Sluice, ledger: Ledger, tmp_path: Path
) -> None:
    sluice("stream", "start", "flights")
    run = newest_run(ledger, "flights")
    assert run is not None
    file = tmp_path / "pipelines" / "flights.stream.yaml"
    kept = file.read_text()
    file.write_text("stream: flights\nmode: [\n")
    assert sluice("stream", "status", "flights")[0] == 1
    assert "declaration broken" in sluice("stream", "show", "flights")[1]
    file.unlink()
    exit_code, output, _ = sluice("stream", "status")
    assert (exit_code, "declares flights any more, and run" in output) == (1, True)
    assert f"run {run.run_id} of the continuous stream flights still lives" in sluice("stream", "show", "flights")[1]
    assert "Wait up to 120 s" in sluice("stream", "stop", "flights", "--dry-run")[1]
    exit_code, output, _ = sluice("stream", "stop", "flights")
    assert (exit_code, f"flights is stopped. Its newest run {run.run_id} ended: " in output) == (0, True)
    assert find_run(ledger, run.run_id).state is RunState.FINISHED
    assert sluice("stream", "status")[0] == 0
    assert "no run of it lives" in sluice("stream", "show", "flights")[1]
    assert sluice("stream", "show", "never_heard_of")[0] == 2
    file.write_text(kept)
    assert find_desired_state(ledger, "flights").desired_state is DesiredState.STOPPED


def test_what_a_sender_changed_is_shown_by_name(sluice: Sluice, ledger: Ledger) -> None:
    for kind in ("int", "long"):
        seen = SeenSchema(input="records", source="table a.b", fields={"n": kind}, answer="It plans again.")
        record_seen_schema(ledger, "flights", seen)
    for name in ("records, its values", "removed", "removed, its values"):
        record_seen_schema(ledger, "flights", replace(seen, input=name))

    schema, of_values = document(sluice("stream", "show", "flights", "--json"))["source_schemas"]

    assert (schema["input"], of_values["input"]) == ("records", "records, its values")
    assert (schema["fields"], schema["answer"]) == ({"n": "long"}, "It plans again.")
    assert schema["changes"] == [{"field": "n", "was": "int", "now": "long"}]
    assert "Schemas of the inputs" in sluice("stream", "show", "flights")[1]


def test_a_failure_count_is_reset_by_name(sluice: Sluice, ledger: Ledger, tmp_path: Path) -> None:
    digest = load_declarations(tmp_path / "pipelines").stream("flights").digest
    for _ in range(6):
        run = admit_run(ledger, stream="flights", mode="continuous", declaration_digest=digest, launched_by="a test")
        record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="boom")
    assert sluice("stream", "status", "flights")[1].count("given up") == 1
    exit_code, output, _ = sluice("stream", "reset-breaker", "flights", "--dry-run")
    assert exit_code == 0
    assert "Reset the failure count of flights. Now: Run" in output
    assert sluice("stream", "status", "flights")[1].count("given up") == 1
    assert sluice("stream", "reset-breaker", "flights")[1] == (
        "The failure count of flights is reset. It should be running.\n"
    )
    assert "to be started" in sluice("stream", "status", "flights")[1]


@pytest.mark.full  # every run: `test_staggered_restart.py`
def test_after_an_upgrade_the_streams_with_older_drivers_are_restarted(sluice: Sluice, ledger: Ledger) -> None:
    sluice("stream", "start", "flights")
    first = newest_run(ledger, "flights")
    assert first is not None
    assert document(sluice("stream", "restart", "--older-than", first.version, "--json"))["restarted"] == []
    answer = document(sluice("stream", "restart", "--older-than", "99.0", "--at-once", "2", "--json"))
    assert (answer["restarted"], answer["failed"]) == (["flights"], {})
    second = newest_run(ledger, "flights")
    assert second is not None
    assert second.run_id != first.run_id
    assert sluice("stream", "restart")[0] == 2, "neither a name nor a version"


@pytest.mark.parametrize("verb", ["start", "stop", "restart", "reset-breaker"])
def test_a_dry_run_changes_nothing(sluice: Sluice, ledger: Ledger, verb: str) -> None:
    exit_code, output, _ = sluice("stream", verb, "flights", "--dry-run")
    assert exit_code == 0
    assert output.endswith("Nothing was changed: this was a dry run.\n")
    assert newest_run(ledger, "flights") is None
    assert find_desired_state(ledger, "flights").requested_at is None


def test_a_dry_run_shows_the_very_command_of_the_run(sluice: Sluice, ledger: Ledger) -> None:
    (plan,) = document(sluice("stream", "start", "flights", "--dry-run", "--json"))["plans"]
    planned = plan["steps"][-1]["command"]
    sluice("stream", "start", "flights")
    run = newest_run(ledger, "flights")
    assert run is not None
    assert run.process is not None
    argv = Path(f"/proc/{run.process.pid}/cmdline")
    expected = "\0".join(planned).replace("<run id>", run.run_id)
    await_condition(lambda: argv.read_text().endswith(f"{expected}\0"))  # behind the interpreter of the script


def test_the_status_of_wanted_streams_decides_the_exit_code(sluice: Sluice, ledger: Ledger) -> None:
    exit_code, output, _ = sluice("stream", "status")
    assert exit_code == 1
    assert "flights: Stream flights has never run." in output
    assert sluice("stream", "status", "weather")[0] == 0, "an increment waits for its schedule"
    sluice("stream", "stop", "flights")
    assert sluice("stream", "status")[0] == 0, "a stopped stream is what was asked"
    sluice("stream", "start", "flights")
    assert sluice("stream", "status")[0] == 0
    end_drivers(ledger)
    exit_code, output, _ = sluice("stream", "status", "flights")
    assert exit_code == 1
    assert "killed by SIGKILL" in output


def test_a_broken_declaration_is_reported_and_is_not_healthy(sluice: Sluice, tmp_path: Path) -> None:
    sluice("stream", "stop", "flights")
    (tmp_path / "pipelines" / "broken.stream.yaml").write_text("stream: broken\n")
    exit_code, output, errors = sluice("stream", "status")
    assert exit_code == 1
    assert "flights" in output
    assert "broken.stream.yaml" in errors


def test_the_figures_of_a_stream(sluice: Sluice, ledger: Ledger) -> None:
    sluice("stream", "stop", "flights")
    run = admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")
    record_end(ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="finished")
    key = PublicationKey(stream="flights", generation=1, batch=7)
    record_batch(
        ledger,
        BatchObservation(
            key=key,
            run_id=run.run_id,
            started_at=datetime.now(tz=UTC),
            duration_ms=1500,
            input_rows=3000,
            published_rows={"rows": 2990},
            refused_rows=10,
        ),
    )
    (row,) = document(sluice("stream", "status", "flights", "--json"))["streams"]
    expected = {"state": "stopped", "batch": 7, "rows": 3000, "published_rows": {"rows": 2990}, "refused_rows": 10}
    assert {name: row[name] for name in expected} == expected
    assert row["rows_per_second"] == pytest.approx(50.0), "over one minute, as on the pages"
    assert row["lag_rows"] is None
    assert "Kafka at 127.0.0.1:1 does not answer" in row["lag_problem"]
    shown = document(sluice("stream", "show", "flights", "--json"))
    assert [run["reason"] for run in shown["runs"]] == ["finished"]
    assert [batch["input_rows"] for batch in shown["batches"]] == [3000]
    exit_code, output, _ = sluice("stream", "show", "flights")
    assert exit_code == 0
    assert "1:7" in output


def test_a_failure_is_reported_by_its_class_its_reason_and_the_next_step(
    sluice: Sluice, ledger: Ledger, tmp_path: Path
) -> None:
    digest = load_declarations(tmp_path / "pipelines").stream("flights").digest
    run = admit_run(ledger, stream="flights", mode="continuous", declaration_digest=digest, launched_by="a test")
    lost = Failure.of(FailureReason.OFFSETS_LOST)
    record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="DeliveryError: no", failure=lost)
    answer = sluice("stream", "status", "flights", "--json")
    assert answer[0] == 1
    (row,) = json.loads(answer[1])["streams"]
    assert (row["state"], row["failure"]) == (
        "given up",
        {
            "class": "source_data_lost",
            "reason": "offsets_lost",
            "means": FailureReason.OFFSETS_LOST.means,
            "next_step": next_step(FailureReason.OFFSETS_LOST, stream="flights"),
        },
    )
    shown = sluice("stream", "show", "flights")[1]
    assert "source_data_lost: offsets_lost" in shown
    assert next_step(FailureReason.OFFSETS_LOST, stream="flights") in shown


def test_the_list_says_what_is_read_and_written(sluice: Sluice) -> None:
    listed = document(sluice("stream", "list", "--json"))["streams"]
    assert [(one["stream"], one["mode"], one["reads"], one["writes"]) for one in listed] == [
        ("flights", "continuous", ["kafka"], ["bronze.flights"]),
        ("weather", "incremental", ["files"], ["bronze.weather"]),
    ]
    assert "bronze.weather" in sluice("stream", "list")[1]


def test_the_log_of_a_run_is_shown_and_followed_to_its_end(sluice: Sluice, ledger: Ledger) -> None:
    sluice("stream", "start", "flights")
    run = newest_run(ledger, "flights")
    assert run is not None
    log_file = run.log_file
    assert log_file is not None
    await_condition(lambda: "begins" in log_file.read_text())
    assert sluice("stream", "logs", "flights", "-n", "1")[1] == "the driver begins\n"
    shown = document(sluice("stream", "logs", "flights", "--run", run.run_id[:8], "--json"))
    assert shown == {"run_id": run.run_id, "log_file": str(log_file), "lines": ["the driver begins"]}

    timer = threading.Timer(1.0, end_by_desired_state, [ledger])
    timer.start()
    exit_code, output, _ = sluice("stream", "logs", "flights", "--follow")
    timer.join()
    assert (exit_code, output) == (0, "the driver begins\nthe driver ends\n")
    await_end(ledger, run.run_id)


def end_by_desired_state(ledger: Ledger) -> None:
    """Ask the driver to end, from another thread."""
    set_desired_state(ledger, "flights", DesiredState.STOPPED)


def test_an_increment_is_wanted_and_left_to_its_dag(sluice: Sluice, ledger: Ledger) -> None:
    assert "Its DAG starts the next run" in sluice("stream", "start", "weather")[1]
    assert sluice("stream", "stop", "weather")[:2] == (0, "weather is stopped; it never ran.\n")
    assert find_desired_state(ledger, "weather").desired_state is DesiredState.STOPPED


@pytest.mark.parametrize(
    ("words", "exit_code", "sentence"),
    [
        (("start", "nothing"), 2, "No stream is called 'nothing'"),
        (("logs", "flights"), 2, "Stream flights has no run."),
        (("logs", "flights", "--follow", "--json"), 2, "does not go with --json"),
        (("status", "nothing"), 2, "No stream is called 'nothing'"),
    ],
)
def test_a_mistake_is_one_sentence(sluice: Sluice, words: tuple[str, ...], exit_code: int, sentence: str) -> None:
    answer = sluice("stream", *words)
    assert answer[0] == exit_code
    assert sentence in answer[2]


def test_a_driver_that_cannot_be_started_is_one_sentence(sluice: Sluice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"host": "local[2]", "extra": {"spark-binary": "spark9-submit"}}')
    exit_code, _, errors = sluice("stream", "start", "flights")
    assert exit_code == 1
    assert "spark9-submit is not found" in errors
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark://user:planted-secret@host")
    exit_code, _, errors = sluice("stream", "start", "flights")
    assert exit_code == 2
    assert "AIRFLOW_CONN_SPARK_DEFAULT is not a Spark connection" in errors
    assert "planted-secret" not in errors


def test_the_ledger_is_upgraded_and_reported(
    sluice: Sluice, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert document(sluice("ledger", "status", "--json"))["was_current"] is True
    needed = observe_version(empty_database_url).needed
    monkeypatch.setenv("SLUICE_LEDGER_URL", empty_database_url)
    assert sluice("ledger", "status")[:2] == (
        1,
        f"The ledger has no tables; needed is {needed}. Run `sluice ledger upgrade`.\n",
    )
    assert f"would be migrated to version {needed}" in sluice("ledger", "upgrade", "--dry-run")[1]
    assert sluice("ledger", "status")[0] == 1
    assert sluice("ledger", "upgrade")[:2] == (0, f"The ledger had no tables and now has version {needed}.\n")
    assert sluice("ledger", "upgrade")[:2] == (0, f"The ledger has version {needed} already.\n")
    assert "sluice ledger upgrade" not in sluice("stream", "list")[2]
    with open_ledger(empty_database_url) as ledger, ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.alembic_version SET version_num = '0026'"))
    for verb in ("status", "upgrade"):
        exit_code, _, errors = sluice("ledger", verb)
        assert (exit_code, "run `DROP SCHEMA sluice CASCADE`" in errors) == (1, True), errors


def test_the_ledger_is_tidied_by_hand(sluice: Sluice) -> None:
    assert sluice("ledger", "tidy", "--dry-run")[:2] == (
        0,
        "0 batches, 0 events, 0 work items, 0 other records and 0 log files would be deleted, "
        "0 runs would be archived.\n",
    )
    assert json.loads(sluice("ledger", "tidy", "--json")[1]) == {
        "dry_run": False,
        "batches": 0,
        "runs": 0,
        "events": 0,
        "work_items": 0,
        "records": 0,
        "logs": 0,
    }
