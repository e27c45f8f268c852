"""`sluice stream repair` on a real catalog and ledger, killed at each of its steps and typed again. No Spark."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.fixtures.drill import sampled
from tests.fixtures.left_behind import a_batch
from tests.integration.cli.test_operations import Copier, copier, typed
from tests.integration.maintenance.conftest import offset

from sluice.checkpoints.compatibility import SOURCES, STATE_OPERATORS
from sluice.declarations.load_declarations import load_declarations
from sluice.errors import UsageError
from sluice.ledger.batches import record_batch
from sluice.ledger.desired_states import find_desired_state
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.generations import find_generation, record_fingerprint, record_query_id
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import admit_run, newest_run, record_end, record_process
from sluice.pages.page_actions import PageActions, PageVerb
from sluice.processes.host_processes import identity_of
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import canonical_offsets
from sluice.settings import load_settings
from sluice.sources.source_identities import input_table_name, output_table_name

__all__ = ["copier"]

QUERY = "5b50e120-f7a9-4610-916a-695e361d1bb4"
HEADER = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'
TABLES = ("rows", "copies")
CHANGES = 10
"""How many files the repair of set back tables changes: plans, states, commits, and its `metadata` twice."""


def folder(copier: Copier) -> Path:
    """The folder of the checkpoint."""
    generation = find_generation(copier.ledger, copier.stream)
    assert generation is not None
    return Path(generation.checkpoint.removeprefix("file://"))


def filled(copier: Copier, *, batches: int) -> Path:
    """A checkpoint with state that has committed so many batches; the tables hold the first one."""
    root = folder(copier)
    source = copier.bench.catalog.load_table(f"{copier.stream}.rows").metadata.current_snapshot_id
    assert source is not None
    record_query_id(copier.ledger, copier.stream, 1, QUERY)
    record_fingerprint(copier.ledger, copier.stream, 1, {SOURCES: "rows", STATE_OPERATORS: "dedup"})
    files = {"metadata": json.dumps({"id": QUERY})}
    for batch in range(batches):
        files[f"offsets/{batch}"] = HEADER + json.dumps(offset(source))
        files[f"commits/{batch}"] = 'v1\n{"nextBatchWatermarkMs":0}'
        files[f"state/0/0/{batch + 1}.delta"] = "x"
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
        (root / path).with_name(f".{Path(path).name}.crc").write_text("of Hadoop")
    return root


def content(root: Path) -> Mapping[str, str]:
    """Every file of a folder."""
    return {str(file.relative_to(root)): file.read_text() for file in root.rglob("*") if file.is_file()}


def killed(copier: Copier, point: CrashPoint, occurrence: int) -> None:
    """Repair in a process that dies at a place."""
    argv = [sys.executable, "-m", "tests.faults.dying_repair", "--stream", copier.stream]
    argv += ["--point", point, "--occurrence", str(occurrence)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603  # our own
    assert ended.returncode == -9, ended.stderr


def test_a_lost_checkpoint_is_written_back_and_said_once(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)
    assert (code, "0 rows are read again, 0 are lost, 0 are doubled." in shown) == (0, True)
    assert not folder(copier).exists(), "a dry run writes nothing"

    code, said, errors = typed(["stream", "repair", copier.stream], capsys)

    assert (code, "The checkpoint damaged: exists:" in said) == (0, True), errors
    assert set(content(folder(copier))) == {"metadata", "offsets/0", "commits/0"}
    events = recent_events(copier.ledger, EventSubject.STREAM, copier.stream, limit=1)
    assert [(one.action, one.evidence["stands_at"]) for one in events] == [("repair", 0)]
    code, said, _ = typed(["stream", "repair", copier.stream], capsys)
    assert (code, said.strip()) == (
        0,
        f"Mark, ledger, checkpoint and sources of {copier.stream} agree: nothing is written.",
    )
    assert recent_events(copier.ledger, EventSubject.STREAM, copier.stream, limit=1) == events


def test_one_command_repairs_and_starts(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["stream", "repair", copier.stream, "--start"]
    code, shown, _ = typed([*words, "--dry-run", "--json"], capsys)
    assert (code, [one["verb"] for one in json.loads(shown)["plans"]]) == (0, ["repair", "start"])
    assert find_desired_state(copier.ledger, copier.stream).effective_state is DesiredState.STOPPED

    code, said, errors = typed([*words, "--json"], capsys)

    assert (code, json.loads(said)["result"]["run"]) == (0, None), errors  # it is incremental: its DAG starts the run
    assert find_desired_state(copier.ledger, copier.stream).effective_state is DesiredState.RUNNING
    assert set(content(folder(copier))) == {"metadata", "offsets/0", "commits/0"}


@pytest.mark.parametrize("occurrence", sampled(range(CHANGES + 1), {7}, full={0, 1, CHANGES}))
def test_a_repair_that_was_killed_is_completed_by_typing_it_again(
    copier: Copier, occurrence: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = filled(copier, batches=4)
    before = content(root)
    words = ["stream", "repair", copier.stream, "--yes"]
    code, _, errors = typed(words, capsys)
    assert code == 0, errors
    wanted = content(root)
    assert set(wanted) >= {"metadata", "offsets/0", "offsets/1", "commits/0", "state/0/0/1.delta"}
    assert not {"offsets/2", "commits/1", "state/0/0/2.delta", ".metadata.crc", ".commits/.1.crc"} & set(wanted)
    shutil.rmtree(root)
    for path, text_of in before.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text_of)

    killed(copier, *((CrashPoint.FILE_CHANGED, occurrence) if occurrence else (CrashPoint.BEGUN, 1)))

    half = content(root)
    assert (half == before) is (occurrence == 0)
    assert ("metadata" in half) is (occurrence in (0, CHANGES)), "no run starts from what is half written"
    code, _, errors = typed(words, capsys)
    assert code == 0, errors
    assert content(root) == wanted
    run = newest_run(copier.ledger, copier.stream)
    assert run is not None
    assert (run.state, run.mode) == (RunState.FINISHED, "repair")


def test_a_page_writes_back_what_it_has_shown(copier: Copier) -> None:
    settings = load_settings()
    stream = load_declarations(settings.pipelines).stream(copier.stream)
    page = PageActions(ledger=copier.ledger, settings=settings, actor="airflow: page, ann")
    shown = page.plan(PageVerb.REPAIR, stream)
    assert not folder(copier).exists()

    page.carry_out(PageVerb.REPAIR, stream, planned=shown.digest)

    assert set(content(folder(copier))) == {"metadata", "offsets/0", "commits/0"}
    with pytest.raises(UsageError, match="is another one than was shown"):
        page.carry_out(PageVerb.REPAIR, stream, planned=shown.digest)


def test_a_forgotten_generation_is_written_back(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    filled(copier, batches=1)
    with copier.ledger.transaction() as connection:
        connection.execute(text("DELETE FROM generations WHERE stream = :s"), {"s": copier.stream})

    code, shown, _ = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)
    assert (code, "The ledger behind: it knows no generation" in shown) == (0, True)
    killed(copier, CrashPoint.RECORDED, 1)
    code, _, errors = typed(["stream", "repair", copier.stream], capsys)

    assert code == 0, errors
    known = find_generation(copier.ledger, copier.stream)
    assert known is not None
    assert (known.generation, known.query_id) == (1, QUERY)
    uuids = {name: copier.bench.catalog.load_table(f"{copier.stream}.{name}").metadata.table_uuid for name in TABLES}
    assert known.identities == {
        input_table_name(f"{copier.stream}.rows"): str(uuids["rows"]),
        output_table_name(f"{copier.stream}.copies"): str(uuids["copies"]),
    }, "an input that is replaced before the next start is noticed"


def test_it_is_refused_beside_a_live_run_and_as_another_plan_than_was_shown(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    run = admit_run(
        copier.ledger, stream=copier.stream, mode="incremental", declaration_digest="d", launched_by="a test"
    )
    code, shown, _ = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)
    assert (code, "refused (not_at_rest)" in shown) == (1, True)
    code, _, errors = typed(["stream", "repair", copier.stream, "--yes"], capsys)
    assert (code, copier.stream in errors, folder(copier).exists()) == (1, True, False)
    record_end(copier.ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="done")


def test_it_waits_for_a_driver_that_lives_on_behind_the_end_of_its_run(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["stream", "repair", copier.stream, "--dry-run"]
    driver = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run = admit_run(
        copier.ledger, stream=copier.stream, mode="incremental", declaration_digest="d", launched_by="a test"
    )
    record_process(copier.ledger, run.run_id, identity_of(driver.pid), None)
    record_end(copier.ledger, run.run_id, state=RunState.LOST, exit_code=None, reason="it fell silent")

    code, shown, _ = typed(words, capsys)

    assert (code, f"The driver of run {run.run_id} may still live" in shown) == (1, True), shown
    driver.communicate(b"\n")
    code, shown, _ = typed(words, capsys)
    assert (code, "may still live" in shown) == (0, False), shown


def test_an_output_that_is_declared_again_is_left_to_its_next_start(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(copier, batches=4)
    words = ["stream", "repair", copier.stream, "--dry-run"]
    assert "The checkpoint ahead: " in typed(words, capsys)[1]
    with copier.bench.catalog.load_table(copier.bench.output.staging).transaction() as transaction:
        transaction.set_properties({"sluice.staging.closed-at": "1:2"})

    code, shown, _ = typed(words, capsys)

    assert (code, "agree: nothing is written." in shown) == (0, True), shown


@pytest.mark.full  # every run: `test_repair_decision.py`
def test_state_that_is_gone_is_refused_with_the_number(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    ends = read_ends(copier)
    copier.bench.publish(copier.bench.stage(1, [3], start_offsets=ends, end_offsets=ends))
    batch = replace(a_batch(copier.stream, 1), end_offsets=json.loads(ends), state_rows=1234)
    record_batch(copier.ledger, replace(batch, key=replace(batch.key, batch=1)))
    root = filled(copier, batches=2)
    shutil.rmtree(root / "state")

    code, shown, _ = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)

    assert (code, "refused (not_provable)" in shown) == (1, True)
    assert "its state is lost, and with it what batches up to 1 left open (1,234 rows of state)" in shown


def test_a_source_that_was_rolled_back_is_found_before_a_start_and_continued(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stream has read two snapshots of it; the second one is withdrawn, and others came instead."""
    rows = replace(copier.bench, output=replace(copier.bench.output, target=f"{copier.stream}.rows"))
    first = rows.target().metadata.current_snapshot_id
    assert first is not None
    rows.write_as_another(3)
    read = read_ends(copier)
    copier.bench.publish(copier.bench.stage(1, [3], start_offsets=_offset(first), end_offsets=read))
    filled(copier, batches=2)
    (folder(copier) / "offsets/0").write_text(HEADER + json.dumps(offset(first)))
    words = ["stream", "repair", copier.stream, "--dry-run"]
    assert "agree: nothing is written." in typed(words, capsys)[1]
    rows.target().manage_snapshots().rollback_to_snapshot(first).commit()
    rows.write_as_another(30, 31)

    shown = typed(words, capsys)[1]

    assert f"The sources diverged: input rows: {copier.stream}.rows was rolled back to snapshot {first}" in shown, shown
    assert f"`sluice stream continue {copier.stream} --dry-run`" in shown
    code, plan, errors = typed(["stream", "continue", copier.stream, "--dry-run"], capsys)
    assert (code, "2 snapshots" in plan or "1 snapshots with 1" in plan) == (0, True), (plan, errors)


@pytest.mark.full  # every run: `test_judge_position.py`
def test_a_set_back_table_is_another_remedy(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    filled(copier, batches=1)
    first = copier.bench.target().metadata.current_snapshot_id
    assert first is not None
    copier.bench.publish(copier.bench.stage(1, [3], start_offsets=read_ends(copier)))
    copier.bench.target().manage_snapshots().rollback_to_snapshot(first).commit()

    code, shown, _ = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)

    assert (code, "refused (other_remedy): Mark diverged" in shown) == (1, True)


def read_ends(copier: Copier) -> str:
    source = copier.bench.catalog.load_table(f"{copier.stream}.rows").metadata.current_snapshot_id
    assert source is not None
    return _offset(source)


def _offset(snapshot: int) -> str:
    return canonical_offsets({"rows": offset(snapshot)})
