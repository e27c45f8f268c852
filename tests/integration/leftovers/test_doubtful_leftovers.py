"""What is written, given up or in doubt: it stays, it is dated and noted, and it is listed with the reason."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update
from tests.fixtures.drill import first_of
from tests.fixtures.left_behind import a_batch, age, fill, reset
from tests.fixtures.publication import COLUMNS
from tests.integration.cli.test_operations import Copier, copier, typed
from tests.integration.leftovers.test_left_tables import DAY, staged
from tests.integration.leftovers.test_leftovers import ANN, Yard, empty_yard, left_of, yard
from tests.integration.leftovers.test_unseen_leftovers import FOLDER, local

from sluice.backfill.intervals import Interval, name_part
from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.errors import CheckpointStorageError, UnhealthyError
from sluice.ledger.backfill_attempts import BackfillState, begin_attempt, newest_attempt
from sluice.ledger.batches import record_batch
from sluice.ledger.events import EventAction
from sluice.ledger.generations import current_generation, record_identities
from sluice.ledger.refreshes import Refresh, abandon_refresh, end_refresh
from sluice.ledger.table_writers import known_writes
from sluice.leftovers.observe_leftovers import Leftover
from sluice.leftovers.remove_leftovers import clean, plan_cleaning
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staging_layout import BACKFILL_NAMESPACE
from sluice.settings import load_settings
from sluice.sources.source_identities import output_table_name
from sluice.supervision.supervision_values import command_event

__all__ = ["COLUMNS", "copier", "empty_yard", "yard"]

NEXT_DAY = Interval(start=DAY.end, end=DAY.end + timedelta(days=1))


def test_the_attempts_of_a_joint_backfill_that_died_are_noted_with_its_one_staging_table(copier: Copier) -> None:
    """`JointRun` has an attempt for each interval, and one staging table, which has the name of the first."""
    began = datetime.now(UTC) - timedelta(hours=1)
    for day, identity in ((DAY, "j1"), (NEXT_DAY, "j2")):
        begin_attempt(copier.ledger, copier.stream, start=day.start, end=day.end, launched_by="ann", identity=identity)
    staged(copier, f"{BACKFILL_NAMESPACE}.{copier.stream}__copies__{name_part(DAY)}")
    clean(left_of(copier), actor=ANN)
    assert left_of(copier).found == ()

    known = known_writes(copier.ledger, ["j1", "j2"], since=began)
    assert None not in known.values(), f"their files never become orphans: {known}"


def test_an_attempt_that_died_before_it_had_a_staging_table_is_noted_as_lost(copier: Copier) -> None:
    """As one that was killed while it computed, behind the plan: the table is created only when rows are staged. The
    same state is left by a kill between the drop of the table and the record of the end."""
    began = datetime.now(UTC) - timedelta(hours=1)
    begin_attempt(copier.ledger, copier.stream, start=DAY.start, end=DAY.end, launched_by="ann", identity="n1")

    clean(left_of(copier), actor=ANN)

    attempt = newest_attempt(copier.ledger, copier.stream, DAY.start, DAY.end)
    assert attempt is not None
    known = known_writes(copier.ledger, ["n1"], since=began)
    assert (attempt.state, known["n1"] is not None) == (BackfillState.LOST, True)


@pytest.mark.parametrize("is_ended", first_of(True, False), ids=["ended", "killed"])
def test_what_an_abandoned_refresh_leaves_is_kept_for_the_grace_from_when_it_was_abandoned(
    copier: Copier, is_ended: bool
) -> None:
    """It was begun 40 days ago, its build stood still for 35 days, and it is given up now: "counted from when nothing
    needs it any more" (0104)."""
    begun = copier.refresh()
    shadow = current_generation(copier.ledger, begun.shadow, checkpoints_root=load_settings().checkpoints)
    fill(shadow.checkpoint, load_settings())
    with copier.ledger.transaction() as connection:
        of_refresh = update(Refresh).where(Refresh.number == begun.number)
        connection.execute(of_refresh.values(began_at=Refresh.began_at - timedelta(days=40)))
    then = (datetime.now(UTC) - timedelta(days=35)).timestamp()
    for file in local(load_settings().checkpoints).rglob("*"):
        os.utime(file, (then, then))
    assert left_of(copier, later=timedelta(0)).found == (), "until now a command may continue it"
    event = command_event(EventAction.ABANDON_REFRESH, copier.stream, by="a test")
    abandon_refresh(copier.ledger, begun.number, event=event)
    if is_ended:
        end_refresh(copier.ledger, begun.number)

    due = left_of(copier, later=timedelta(0)).due

    assert due == (), [(one.kind, f"not needed since {one.since:%Y-%m-%d}") for one in due]


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that every user may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_whose_files_may_be_listed_and_not_looked_at_keeps_no_other(
    copier: Copier, readable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rights of a folder are r and not x for the user of Airflow: `Path.is_symlink` raises PermissionError, which
    is no `CheckpointError`."""
    monkeypatch.setenv("SLUICE_CHECKPOINTS", readable.as_uri())
    settings = load_settings()
    stream, other = f"a{copier.stream}", f"z{copier.stream}"
    reset(copier.ledger, stream, settings)
    reset(copier.ledger, other, settings)
    left = replace(left_of(copier), settings=settings, stream="")
    assert {one.stream for one in left.found} >= {stream, other}
    (readable / stream / "1" / "state").chmod(0o744)
    (readable / stream / "1").chmod(0o744)
    left = replace(left_of(copier), settings=settings, stream="")

    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        streams = {one.stream for one in left.found}
    finally:
        if os.getuid() == 0:
            os.seteuid(0)

    assert other in streams


@FOLDER
def test_a_checkpoint_that_is_written_between_the_look_and_its_removal_stays(yard: Yard) -> None:
    """A night's removal takes long: here a driver that was given up writes while what comes before it is removed. "The
    time counts from the newest change of a file, too: a driver that was given up may write" (0104)."""
    age(yard.ledger, yard.stream, days=40)
    checkpoint = local(yard.settings.checkpoints) / yard.stream / "1"
    written: list[Path] = []

    def drives_on(here: CrashPoint) -> None:
        if here is CrashPoint.CLEARED and not written:  # the copies are gone, the checkpoint is next
            written.append(checkpoint / "offsets" / "1")
            written[0].write_text("written today")

    left = yard.left(later=timedelta(0))
    assert [one.kind for one in left.due] == ["copies", "checkpoint"]
    with suppress(UnhealthyError):
        clean(left, actor=ANN, reached=drives_on)

    assert written[0].exists(), "what was written today is removed"


def test_of_two_removals_at_once_each_says_what_it_removed(yard: Yard) -> None:
    """A person types the command while the DAG of the night works: each finds gone what the other one removed."""
    left, of_the_other = yard.left(), list[Leftover]()

    def other(here: CrashPoint) -> None:
        if here is CrashPoint.CLEARED and not of_the_other:  # this one has removed the copies
            of_the_other.extend(clean(yard.left(), actor=ANN))

    removed = clean(left, actor=ANN, reached=other)

    assert [[one.kind for one in each] for each in (removed, of_the_other)] == [["copies"], ["checkpoint"]]
    assert yard.left().found == ()


def in_generation_2(copier: Copier) -> None:
    """The stream was reset, and its table is the one of generation 2."""
    reset(copier.ledger, copier.stream, load_settings())
    record_identities(copier.ledger, copier.stream, 2, {output_table_name(copier.bench.output.target): "uuid"})


def test_a_table_whose_mark_was_removed_keeps_everything_of_its_stream(copier: Copier) -> None:
    """The tables were restored to generation 1, whose mark could not be read, and a person has done what `MarkError`
    says: "Remove the property: the next start of the stream restores it". The history of main shows generation 1."""
    in_generation_2(copier)
    assert left_of(copier).found == (), "the table stands in generation 1"
    table = copier.bench.target()
    with table.transaction() as changed:
        changed.remove_properties(copier.bench.output.mark_property)

    assert [(one.kind, one.of) for one in left_of(copier).due] == []


def test_the_mark_of_an_output_that_has_another_name_since_keeps_nothing_for_ever(copier: Copier) -> None:
    """An output was renamed and the stream reset: the mark under the earlier name stays on the table."""
    in_generation_2(copier)
    table, mark = copier.bench.target(), copier.bench.output.mark_property
    at_1 = table.properties[mark]
    at_2 = json.dumps(json.loads(at_1) | {"generation": 2})
    with table.transaction() as changed:
        changed.set_properties({mark: at_2, f"{mark}_before": at_1})

    assert left_of(copier).found != (), "it is neither listed nor removed, and nothing says why"


def refused(_: LocalCheckpointFiles, folder: str = "") -> Sequence[FileObservation]:
    """A storage that does not answer."""
    raise CheckpointStorageError("The folder cannot be listed: Input/output error.")


@FOLDER
def test_the_plan_says_what_the_command_will_fail_for(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is "Nothing is to be removed.", and the command ends with "1 of 1 leftovers were not removed"."""
    monkeypatch.setattr(LocalCheckpointFiles, "list_files", refused)
    steps = " ".join(step.sentence for step in plan_cleaning(yard.left()).steps)
    with pytest.raises(UnhealthyError) as failed:
        clean(yard.left(), actor=ANN)

    assert "Input/output error" in steps, steps
    assert "The others are gone" not in (failed.value.next_step or ""), f"{failed.value.message}: there are no others"


@pytest.mark.parametrize("how", first_of("away", "unreadable"))
def test_what_stays_for_the_sake_of_a_table_is_listed_with_the_reason(
    copier: Copier, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """A stream that is not declared any more, whose table was dropped with it, keeps every state that it ever had:
    "Generations of streams that are not declared any more: the closed ones go" (0104)."""
    in_generation_2(copier)
    if how == "away":
        copier.bench.catalog.drop_table(copier.bench.output.target)
    else:
        with copier.bench.target().transaction() as changed:
            changed.set_properties({copier.bench.output.mark_property: "no mark"})

    _, shown, errors = typed(["stream", "leftovers", copier.stream], capsys)
    plan = plan_cleaning(left_of(copier))

    assert "Nothing is left behind" not in shown, shown + errors
    assert {step.sentence.partition(":")[0] for step in plan.steps} == {"Stays"}, plan.steps


def test_a_mark_that_was_removed_in_the_newest_generation_is_found_in_the_earlier_metadata(copier: Copier) -> None:
    in_generation_2(copier)
    table, mark = copier.bench.target(), copier.bench.output.mark_property
    at_2 = json.dumps(json.loads(table.properties[mark]) | {"generation": 2})
    with table.transaction() as changed:
        changed.set_properties({mark: at_2})
    with copier.bench.target().transaction() as changed:
        changed.remove_properties(mark)
    first = a_batch(copier.stream, 2)
    second = replace(first, key=replace(first.key, batch=1), published_rows={copier.bench.output.output: 1})
    record_batch(copier.ledger, second)

    assert len(left_of(copier).due) == 2
