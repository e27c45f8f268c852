"""What streams leave behind, on a real ledger and catalog, on disk and in a bucket: listed, kept, removed once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from pyiceberg.catalog import Catalog
from sqlalchemy import update
from tests.fixtures.drill import first_of, sampled
from tests.fixtures.left_behind import CHECKPOINT, COPIES, a_batch, age, contents, fill, reset
from tests.fixtures.publication import COLUMNS
from tests.fixtures.stack import Stack
from tests.integration.cli.test_operations import Copier, copier, typed

from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.checkpoints.s3_checkpoint_files import s3_client
from sluice.errors import CheckpointStorageError, UnhealthyError, UsageError
from sluice.ledger.batches import record_batch
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.events import Actor, EventSubject, recent_events
from sluice.ledger.generations import Generation, current_generation, record_identities
from sluice.ledger.next_generation import open_next_generation
from sluice.ledger.run_leases import Run
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import admit_run, record_end
from sluice.leftovers.observe_leftovers import LeftoverKind, Leftovers
from sluice.leftovers.remove_leftovers import clean, plan_cleaning
from sluice.publication.crash_points import CrashPoint
from sluice.settings import Settings, load_settings
from sluice.sources.source_identities import output_table_name
from sluice.tables.catalog import open_catalog

__all__ = ["COLUMNS", "copier"]

ANN = Actor.person("ann")
LATER = timedelta(days=31)
UNTOUCHED = {"1": 4, "copies of 1": 2, "2": 4, "copies of 2": 2}
CLEANED = UNTOUCHED | {"1": 0, "copies of 1": 0}
STEPS = [(CrashPoint.BEGUN, 1), (CrashPoint.BEGUN, 2), (CrashPoint.CLEARED, 1), (CrashPoint.CLEARED, 2)]
STEPS += [(CrashPoint.FILE_CHANGED, one) for one in range(1, len(CHECKPOINT) + len(COPIES) + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Yard:
    """A stream that was reset, with the files of both generations. settings: with the root of its checkpoints."""

    stream: str
    settings: Settings
    catalog: Catalog
    ledger: Ledger

    def left(self, *, later: timedelta = LATER) -> Leftovers:
        """What is left of it so much later."""
        now = datetime.now(UTC) + later
        return Leftovers(catalog=self.catalog, ledger=self.ledger, settings=self.settings, now=now, stream=self.stream)

    def contents(self) -> dict[str, int]:
        """How many files each of its folders has."""
        return dict(contents(self.stream, self.settings))

    def events(self) -> list[tuple[str, str]]:
        """What the ledger says was removed, newest first."""
        found = recent_events(self.ledger, EventSubject.STREAM, self.stream, limit=20)
        return [(one.evidence["kind"], one.reason) for one in found if one.action == "remove_leftover"]


@pytest.fixture(params=["folder", "bucket"])
def empty_yard(
    request: pytest.FixtureRequest, services_environment: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Yard]:
    """A stream that has never run, with its checkpoints in one kind of storage."""
    root = tmp_path.as_uri() if request.param == "folder" else f"s3a://landing/left/{uuid4().hex}"
    monkeypatch.setenv("SLUICE_CHECKPOINTS", root)
    settings = load_settings()
    with open_ledger(settings.ledger_url) as ledger:
        yield Yard(stream=f"s{uuid4().hex[:12]}", settings=settings, catalog=open_catalog(settings), ledger=ledger)


@pytest.fixture
def yard(empty_yard: Yard) -> Yard:
    """A stream that was reset and has begun again."""
    reset(empty_yard.ledger, empty_yard.stream, empty_yard.settings)
    return empty_yard


def test_a_closed_generation_and_its_copies_are_listed_kept_for_the_grace_and_removed_once(yard: Yard) -> None:
    listed = yard.left(later=timedelta(days=29)).found
    assert [(one.kind, one.of, one.files, one.size_bytes) for one in listed] == [
        (LeftoverKind.COPIES, "generation 1", 2, 20),
        (LeftoverKind.CHECKPOINT, "generation 1", 4, 40),
    ]
    assert {one.goes_at - one.since for one in listed} == {timedelta(days=30)}
    assert clean(yard.left(later=timedelta(days=29)), actor=ANN) == ()
    assert yard.contents() == UNTOUCHED

    removed = clean(yard.left(), actor=Actor.component("airflow: ledger_upkeep"))

    assert {one.place for one in removed} == {one.place for one in listed}
    assert yard.contents() == CLEANED, "the open generation and its copies stay"
    assert yard.events() == [("checkpoint", "grace_over"), ("copies", "grace_over")]
    assert yard.left().found == ()
    assert clean(yard.left(), actor=ANN) == ()
    assert len(yard.events()) == 2


@pytest.mark.parametrize("empty_yard", ["folder"], indirect=True)
def test_what_a_storage_does_not_list_keeps_no_other_stream(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since when its checkpoint is not needed is not known while the copies are not seen."""
    other = replace(yard, stream=f"z{yard.stream}")
    reset(yard.ledger, other.stream, yard.settings)
    listed = LocalCheckpointFiles.list_files

    def refused(files: LocalCheckpointFiles, folder: str = "") -> Sequence[FileObservation]:
        if f"/.copies/{yard.stream}/" in files.location:
            raise CheckpointStorageError("The folder cannot be listed: Input/output error.")
        return listed(files, folder)

    with monkeypatch.context() as away:
        away.setattr(LocalCheckpointFiles, "list_files", refused)
        assert {one.problem for one in yard.left().found} == {"The folder cannot be listed: Input/output error."}
        with pytest.raises(UnhealthyError, match=r"2 of 2 leftovers were not removed: .*Input/output error"):
            clean(yard.left(), actor=ANN)
        assert {one.stream for one in replace(yard.left(), stream="").due} >= {other.stream}

    assert yard.contents() == UNTOUCHED
    clean(yard.left(), actor=ANN)
    assert yard.contents() == CLEANED


def test_no_folder_and_no_mark_of_one_is_left(yard: Yard) -> None:
    checkpoint = f"{yard.settings.checkpoints}/{yard.stream}/1"
    if checkpoint.startswith("s3a"):
        key = checkpoint.removeprefix("s3a://landing/")
        client = s3_client(yard.settings.object_store)
        for mark in (f"{key}/", f"{key}/state/"):
            client.put_object(Bucket="landing", Key=mark, Body=b"")
        clean(yard.left(), actor=ANN)
        assert client.list_objects_v2(Bucket="landing", Prefix=f"{key}/")["KeyCount"] == 0
    else:
        clean(yard.left(), actor=ANN)
        assert not Path(checkpoint.removeprefix("file://")).exists()


def test_a_generation_stays_until_the_next_one_has_delivered_a_batch(empty_yard: Yard) -> None:
    reset(empty_yard.ledger, empty_yard.stream, empty_yard.settings, begins=False)
    assert empty_yard.left().found == ()


def test_a_checkpoint_that_is_still_written_is_not_old(yard: Yard) -> None:
    """A driver that was given up may write for longer than anyone knows."""
    age_by = timedelta(days=40)
    with yard.ledger.transaction() as connection:
        older = update(Generation).where(Generation.stream == yard.stream)
        connection.execute(older.values(opened_at=Generation.opened_at - age_by))
    assert clean(yard.left(later=timedelta(days=1)), actor=ANN) == ()
    assert yard.contents() == UNTOUCHED


def test_a_run_that_lives_in_a_closed_generation_keeps_it(yard: Yard) -> None:
    run = admit_run(yard.ledger, stream=yard.stream, mode="continuous", declaration_digest="d", launched_by="a test")
    assert len(yard.left().found) == 2, "a run of the open generation keeps nothing"
    with yard.ledger.transaction() as connection:
        connection.execute(update(Run).where(Run.run_id == run.run_id).values(generation=1))
    found = yard.left().found
    record_end(yard.ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="x")  # others share the ledger
    assert found == ()


def test_a_ledger_or_a_table_that_was_restored_keeps_everything(copier: Copier) -> None:
    """An older ledger takes a checkpoint that a later generation continues for a closed one."""
    settings, mark = load_settings(), copier.bench.output.mark_property
    reset(copier.ledger, copier.stream, settings)
    record_identities(copier.ledger, copier.stream, 2, {output_table_name(copier.bench.output.target): "uuid"})
    due = {}
    for generation in (1, 2, 3):
        table = copier.bench.target()
        moved = json.dumps(json.loads(table.properties[mark]) | {"generation": generation})
        with table.transaction() as changed:
            changed.set_properties({mark: moved})
        due[generation] = len(left_of(copier).found)
    assert due == {1: 0, 2: 2, 3: 0}


def test_a_stream_whose_mark_cannot_be_read_keeps_everything_and_stops_no_other(copier: Copier) -> None:
    reset(copier.ledger, copier.stream, load_settings())
    record_identities(copier.ledger, copier.stream, 2, {output_table_name(copier.bench.output.target): "uuid"})
    with copier.bench.target().transaction() as changed:
        changed.set_properties({copier.bench.output.mark_property: "no mark"})
    assert left_of(copier).found == ()


def test_what_only_spark_can_read_is_named_and_stays(
    services_environment: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CHECKPOINTS", "hdfs://namenode/checkpoints")
    settings, name = load_settings(), f"s{uuid4().hex[:12]}"
    with open_ledger(settings.ledger_url) as ledger:
        current_generation(ledger, name, checkpoints_root=settings.checkpoints)
        set_desired_state(ledger, name, DesiredState.STOPPED, requested_by="ann")
        open_next_generation(ledger, name, leaving=1, checkpoints_root=settings.checkpoints, opened_by="ann")
        record_batch(ledger, a_batch(name, 2))
        yard = Yard(stream=name, settings=settings, catalog=open_catalog(settings), ledger=ledger)
        assert ["has the scheme hdfs" in one.problem for one in yard.left().found] == [True, True]
        assert clean(yard.left(), actor=ANN) == ()


def test_what_lies_elsewhere_is_named_and_never_touched(yard: Yard) -> None:
    elsewhere = f"{yard.settings.checkpoints}/of_another/1"
    fill(elsewhere, yard.settings)
    with yard.ledger.transaction() as connection:
        moved = update(Generation).where(Generation.stream == yard.stream, Generation.generation == 1)
        connection.execute(moved.values(checkpoint=elsewhere))
    assert {one.problem.partition(" is not the folder ")[0] for one in yard.left().found} == {
        elsewhere,
        elsewhere.replace("/of_another", "/.copies/of_another"),
    }
    assert clean(yard.left(), actor=ANN) == ()
    assert len(open_checkpoint_files(elsewhere, yard.settings.object_store).list_files()) == len(CHECKPOINT)


@pytest.mark.parametrize("empty_yard", ["folder"], indirect=True)
def test_a_link_to_another_folder_is_never_followed(yard: Yard, tmp_path: Path) -> None:
    folder, precious = tmp_path / yard.stream / "1", tmp_path / "precious"

    def replaced(point: CrashPoint) -> None:
        if point is CrashPoint.CLEARED and folder.is_dir():  # the copies are gone, and the checkpoint is next
            folder.rename(precious)
            folder.symlink_to(precious)

    with pytest.raises(UnhealthyError, match=r"1 of 2 leftovers were not removed: .* or is a link"):
        clean(yard.left(), actor=ANN, reached=replaced)
    assert yard.left().found[-1].problem.endswith("it lies elsewhere, or is a link or has some.")
    assert clean(yard.left(), actor=ANN) == ()
    assert len([file for file in precious.rglob("*") if file.is_file()]) == len(CHECKPOINT)


@pytest.mark.parametrize("empty_yard", first_of("folder", "bucket"), indirect=True)
@pytest.mark.parametrize("step", sampled(STEPS, [STEPS[6]], full=STEPS), ids=lambda step: f"{step[0]} {step[1]}")
def test_a_removal_that_was_killed_is_completed_by_the_next_one(yard: Yard, step: tuple[CrashPoint, int]) -> None:
    argv = [sys.executable, "-m", "tests.faults.dying_repair", "--stream", yard.stream, "--point", step[0]]
    argv += ["--occurrence", str(step[1]), "--cleans-at", (datetime.now(UTC) + LATER).isoformat()]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603  # our own
    assert ended.returncode == -9, ended.stderr
    left = yard.contents()
    assert (left["2"], left["copies of 2"]) == (4, 2)
    for name, count, top in (("1", len(CHECKPOINT), "metadata"), (".copies/1", len(COPIES), COPIES[0])):
        folder = f"{yard.settings.checkpoints}/{name.replace('1', f'{yard.stream}/1')}"
        paths = [seen.path for seen in open_checkpoint_files(folder, yard.settings.object_store).list_files()]
        assert len(paths) in (0, count) or top not in paths, "half a checkpoint is none"

    clean(yard.left(), actor=ANN)

    assert yard.contents() == CLEANED
    assert yard.left().found == ()
    assert {kind for kind, _ in yard.events()} == {"checkpoint", "copies"}


def test_no_more_is_removed_than_was_shown(yard: Yard) -> None:
    shown = plan_cleaning(yard.left())
    open_checkpoint_files(f"{yard.settings.checkpoints}/{yard.stream}/1", yard.settings.object_store).remove("metadata")
    with pytest.raises(UsageError, match="The plan is out of date"):
        clean(yard.left(), actor=ANN, planned=shown.digest)


def test_the_commands(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    stream = copier.stream
    assert typed(["stream", "leftovers", stream], capsys)[:2] == (0, "Nothing is left behind.\n")
    reset(copier.ledger, stream, load_settings())
    code, said, _ = typed(["stream", "clean", stream, "--dry-run"], capsys)
    assert (code, "Nothing is to be removed." in said) == (0, True)
    age(copier.ledger, stream, days=40)

    code, said, _ = typed(["stream", "leftovers", stream], capsys)
    assert (code, said.count("generation 1"), said.count(" due "), said.count(stream) >= 4) == (0, 2, 2, True)
    left = json.loads(typed(["stream", "leftovers", stream, "--json"], capsys)[1])["leftovers"]
    assert [(one["kind"], one["files"], one["is_due"]) for one in left] == [
        ("copies", 2, True),
        ("checkpoint", 4, True),
    ]
    code, said, errors = typed(["stream", "clean", stream, "--yes"], capsys)
    assert (code, said) == (0, "2 leftovers are gone: 6 files with 60 bytes.\n"), errors
    assert typed(["stream", "leftovers", stream], capsys)[:2] == (0, "Nothing is left behind.\n")
    assert dict(contents(stream, load_settings())) == CLEANED
    assert typed(["stream", "leftovers", "no_such_stream"], capsys)[0] != 0


def left_of(copier: Copier, *, later: timedelta = LATER) -> Leftovers:
    """What is left of the copier."""
    settings, now = load_settings(), datetime.now(UTC) + later
    return Leftovers(
        catalog=copier.bench.catalog, ledger=copier.ledger, settings=settings, now=now, stream=copier.stream
    )
