"""The upkeep commands on a real catalog and ledger: what they print, and how they end. No Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import yaml
from tests.fixtures.drill import first_of
from tests.fixtures.stack import Stack

from sluice.cli.app import main
from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.batch_findings import RuleCount, RuleResult, add_rule_results
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.generations import current_generation, record_query_id
from sluice.ledger.recorded_checks import (
    ExpectationObservation,
    QualityObservation,
    QualityVerdict,
    record_quality,
)
from sluice.ledger.stream_troubles import clear_trouble
from sluice.ledger.work_items import find_items
from sluice.processes.deadline import Deadline
from sluice.supervision.platform_troubles import note_paused_dags
from sluice.tables.catalog import open_catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A folder of declarations with one table and a stream that reads it, of the test's own."""

    table: str
    stream: str
    checkpoints: Path
    ledger: Ledger


@pytest.fixture
def deployment(services_environment: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The services with declarations of the test's own."""
    namespace = f"n{uuid4().hex[:12]}"
    table, stream, copies = f"{namespace}.rows", f"s{namespace}", f"{namespace}.copies"
    pipelines, checkpoints = tmp_path / "pipelines", tmp_path / "checkpoints"
    pipelines.mkdir()
    for name in (table, copies):
        policy = {"compaction": {"target_file_bytes": "64MiB", "min_input_files": 5}}
        declare(
            pipelines / f"{name}.table.yaml",
            table=name,
            columns=[{"name": "id", "type": "long"}],
            maintenance=policy,
            quality={"expectations": [{"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}}]},
        )
    declare(
        pipelines / f"{stream}.stream.yaml",
        stream=stream,
        mode="incremental",
        schedule={"cron": "@hourly"},
        inputs={"records": {"stream": {"iceberg": {"table": table}}}},
        transformation={"sql": "copy.sql"},
        outputs={"copies": {"iceberg": {"table": copies}}},
    )
    (pipelines / "copy.sql").write_text("SELECT id FROM records")
    monkeypatch.setenv("SLUICE_PIPELINES", str(pipelines))
    monkeypatch.setenv("SLUICE_CHECKPOINTS", checkpoints.as_uri())
    monkeypatch.setenv("COLUMNS", "200")
    settings = services_environment.settings()
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        made = Deployment(table=table, stream=stream, checkpoints=checkpoints, ledger=ledger)
        assert ended(["table", "create"]) == 0
        opened = open_catalog(settings).load_table(table)
        for number in range(6):
            opened.append(pa.table({"id": pa.array([number], pa.int64())}))
        yield made


def declare(file: Path, **declaration: Any) -> None:
    """Write a declaration."""
    file.write_text(yaml.safe_dump({"description": file.name, "owner": "me", **declaration}))


def ended(words: Sequence[str]) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as end:
        main(words)
    code = end.value.code
    return code if isinstance(code, int) else 0


def answer(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Any:
    """The JSON that a command prints."""
    capsys.readouterr()
    ended([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_table_status(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(["table", "status", deployment.table]) == 0

    said = capsys.readouterr().out
    assert f"{deployment.table}: 6 rows in 6 files" in said
    assert "rewrite_data_files would run: 6 small files" in said
    assert "no maintenance has been recorded yet" in said


def test_a_dry_run_shows_the_plan_and_changes_nothing(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    before = answer(["table", "status", deployment.table], capsys)

    said = answer(["table", "maintain", deployment.table, "--dry-run"], capsys)

    assert said["dry_run"] is True
    (planned,) = said["plans"]
    decisions = planned["evidence"]["decisions"]
    assert planned["steps"][0]["sentence"] == "Remove old rows skipped: the table declares no retention of rows"
    assert planned["steps"][1]["sentence"].startswith("Rewrite data files would run: ")
    assert [(step["step"], step["action"]) for step in decisions] == [
        ("remove_old_rows", "skip"),
        ("rewrite_data_files", "run"),
        ("rewrite_manifests", "skip"),
        ("pin_snapshots", "skip"),
        ("expire_snapshots", "skip"),
        ("remove_orphans", "skip"),
        ("compute_statistics", "skip"),
    ]
    after = answer(["table", "status", deployment.table], capsys)
    assert after["table"]["metadata_location"] == before["table"]["metadata_location"]
    assert after["plan"] == before["plan"] == decisions


def test_a_table_in_order_is_maintained_without_asking_for_spark(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = f"{deployment.table.partition('.')[0]}.copies"

    done = answer(["table", "maintain", copies], capsys)

    assert {step["outcome"] for step in done["operations"]} == {"skipped"}
    assert done["launched_by"].startswith("command line: ")
    (run,) = answer(["table", "history", copies], capsys)["runs"]
    assert run["operations"] == done["operations"]
    assert not [item for item, _ in find_items(deployment.ledger, limit=100) if item.subject == copies]


def test_table_history_of_a_table_that_was_never_maintained(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["table", "history", deployment.table], capsys) == {"table": deployment.table, "runs": []}


@pytest.mark.parametrize("verb", first_of("maintain", "status"))
def test_a_table_that_is_not_declared_is_a_wrong_question(
    deployment: Deployment, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(["table", verb, "bronze.nothing", *(["--dry-run"] if verb == "maintain" else [])]) == 2
    assert "No table is called 'bronze.nothing'" in capsys.readouterr().err


def test_checkpoint_check(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(["checkpoint", "check"]) == 0
    assert "not started yet, so there is no checkpoint" in capsys.readouterr().out

    generation = current_generation(
        deployment.ledger, deployment.stream, checkpoints_root=deployment.checkpoints.as_uri()
    )
    write(deployment, {"metadata": '{"id":"the-one"}', "offsets/0": 'v1\n{}\n"-"', "commits/0": "v1\n{}"})
    record_query_id(deployment.ledger, deployment.stream, generation.generation, "the-one")
    (healthy,) = answer(["checkpoint", "check", deployment.stream], capsys)["checks"]
    assert (healthy["healthy"], healthy["newest_batch"]) == (True, 0)

    write(deployment, {"metadata": '{"id":"another"}'})
    capsys.readouterr()
    assert ended(["checkpoint", "check", deployment.stream]) == 1
    said = capsys.readouterr().out
    assert f"{deployment.stream}: NOT HEALTHY, generation 1, batch 0" in said
    assert "identity: metadata holds query id another; registered is the-one" in said


def write(deployment: Deployment, files: Mapping[str, str]) -> None:
    """Write files of the stream's checkpoint."""
    for path, text in files.items():
        file = deployment.checkpoints / deployment.stream / "1" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.mark.parametrize(
    ("verdict", "exit_code"),
    [
        (QualityVerdict.FAILED, 1),
        pytest.param(QualityVerdict.PASSED, 0, marks=pytest.mark.full),
        pytest.param(QualityVerdict.NOTHING_TO_CHECK, 0, marks=pytest.mark.full),
    ],
)
def test_quality_report(
    deployment: Deployment, verdict: QualityVerdict, exit_code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    record_quality(deployment.ledger, a_check(deployment, verdict), sentence="It failed.")

    assert ended(["quality", "report", deployment.table]) == exit_code
    for asked in ([], [deployment.table]):
        ended(["quality", "report", *asked])
        assert f"{deployment.table}: {verdict}, 2026-11-20 12:00:00 UTC" in capsys.readouterr().out
    ended(["quality", "report", "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [one["verdict"] for one in checks if one["table"] == deployment.table] == [str(verdict)]


def test_the_report_of_a_table_names_each_rule_with_its_values_and_history(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    held, broken = a_check(deployment, QualityVerdict.PASSED), a_check(deployment, QualityVerdict.FAILED)
    record_quality(deployment.ledger, held, sentence="It holds.")
    record_quality(deployment.ledger, broken, sentence="It failed.")

    assert ended(["quality", "report", deployment.table]) == 1
    said = capsys.readouterr().out
    assert "0 of 1 rules hold" in said
    assert (
        "● id is unique: 2 rows break it, for example 7 (broken in 1 of 2 checks, since 2026-11-20 12:00:00 UTC)"
        in said
    )
    assert ended(["quality", "report", deployment.table, "--json"]) == 1
    (rule,) = json.loads(capsys.readouterr().out)["rules"]
    assert (rule["rule"], rule["columns"], rule["place"]) == ("id is unique", ["id"], "the check of the table")
    assert [(one["success"], one["failed_rows"], one["samples"]) for one in rule["results"]] == [
        (False, 2, ["7"]),
        (True, 0, []),
    ]
    assert ended(["quality", "report", "no.table"]) == 2


def test_suggested_rules_are_a_patch_that_validate_accepts(
    deployment: Deployment, tmp_path: Path, services_environment: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    table = deployment.table
    assert ended(["quality", "suggest", table]) == 0
    assert f"{table}: nothing to suggest; a table needs 100 rows" in capsys.readouterr().out
    opened = open_catalog(services_environment.settings()).load_table(table)
    opened.append(pa.table({"id": pa.array(range(6, 200), pa.int64())}))

    assert ended(["quality", "suggest", table]) == 0
    patch = capsys.readouterr().out
    assert "  # none of 200 rows is null, by the counts of all files\n  - type: expect_column_values_to_not" in patch
    assert "  # the bounds of all files of 200 rows; widen them where other values are right\n" in patch
    suggested = answer(["quality", "suggest", table], capsys)
    assert [rule["kwargs"] for rule in suggested["rules"]] == [
        {"column": "id"},
        {"column": "id", "min_value": 0, "max_value": 199},
    ]
    file = tmp_path / "pipelines" / f"{table}.table.yaml"
    lines = file.read_text().splitlines()
    lines.insert(lines.index("  expectations:") + 1, patch)
    assert f"insert below line {lines.index('  expectations:') + 1};" in patch
    file.write_text("\n".join(lines))

    assert ended(["validate", str(tmp_path / "pipelines")]) == 0
    capsys.readouterr()
    assert ended(["quality", "suggest", table]) == 0
    assert "nothing to suggest" in capsys.readouterr().out


def test_the_report_has_the_rules_of_batches_with_who_answers_for_them(
    deployment: Deployment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = deployment.table.replace(".rows", ".copies")
    rule = {"name": "few", "expression": "id < 5", "on_failure": "warn", "owner": "analysts"}
    file = tmp_path / "pipelines" / f"{copies}.table.yaml"
    declare(file, table=copies, columns=[{"name": "id", "type": "long"}], rules=[rule])

    assert ended(["quality", "report", copies]) == 0
    assert f"{copies}: not checked yet, owner me" in capsys.readouterr().out
    found = RuleCount(counted=6, failed=1, on_failure="warn", is_broken=True)
    batch = RuleResult(
        stream=deployment.stream, generation=1, batch=0, output="copies", table=copies, rows=6, rules={"few": found}
    )
    with deployment.ledger.transaction() as connection:
        add_rule_results(connection, [batch])

    for asked in ([], [copies]):
        assert ended(["quality", "report", *asked]) == 1
        said = capsys.readouterr().out
        assert f"{copies}: failed, " in said
        assert "0 of 1 rules hold, owner me" in said
        assert f"  ● id < 5: 1 of 6 rows of batch 1:0 of {deployment.stream} break it" in said
        assert "; owner analysts" in said
    report = {one["table"]: one for one in answer(["quality", "report"], capsys)["tables"]}[copies]
    assert (report["checks"], [one["owner"] for one in report["rules"]]) == ([], ["analysts"])


def a_check(deployment: Deployment, verdict: QualityVerdict) -> QualityObservation:
    """A check of the table."""
    return QualityObservation(
        table=deployment.table,
        checked_at=datetime(2026, 11, 20, 12, 0, tzinfo=UTC),
        launched_by="a test",
        verdict=verdict,
        snapshot_id=7,
        snapshot_committed_at=datetime(2026, 11, 20, 11, 0, tzinfo=UTC),
        rows=6,
        expectations=1,
        failed_expectations=("expect_column_values_to_be_unique",) if verdict is QualityVerdict.FAILED else (),
        report=None,
        details=(
            ExpectationObservation(
                expectation="expect_column_values_to_be_unique",
                arguments={"column": "id"},
                success=verdict is not QualityVerdict.FAILED,
                unexpected_rows=2 if verdict is QualityVerdict.FAILED else 0,
                observed={"samples": [7]} if verdict is QualityVerdict.FAILED else {},
            ),
        ),
    )


def test_the_status_of_streams_counts_failed_checks_and_names_paused_dags(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    paused = DagObservation(airflow="ours", is_paused=True)
    ledger, deadline = deployment.ledger, Deadline.after(60)
    note_paused_dags(ledger, lambda dag: paused if dag == "data_quality" else None, by="a test", deadline=deadline)
    try:
        assert ended(["stream", "status"]) == 0, "a person has paused it"
        assert "data_quality: dag paused: The DAG data_quality is paused. No table" in capsys.readouterr().out
        record_quality(
            deployment.ledger, a_check(deployment, QualityVerdict.FAILED), sentence="id is unique: 2 break it"
        )
        assert ended(["stream", "status"]) == 1
        assert f"{deployment.table}: check failed: id is unique: 2 break it" in capsys.readouterr().out
        assert ended(["stream", "status", "--json"]) == 1
        troubles = json.loads(capsys.readouterr().out)["troubles"]
        assert {(one["stream"], one["reason"]) for one in troubles} == {
            ("data_quality", "dag paused"),
            (deployment.table, "check failed"),
        }
        assert ended(["stream", "status", deployment.stream]) == 0, "of one stream only that is shown"
    finally:
        clear_trouble(deployment.ledger, "data_quality", by="a test")
        clear_trouble(deployment.ledger, deployment.table, by="a test")
