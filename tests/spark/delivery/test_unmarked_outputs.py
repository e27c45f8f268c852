"""Outputs without a mark, beside an older checkpoint, an older ledger or a table that was set back.

Iceberg's own sink, folders of files and tables of Delta remember a batch by its number: another one that is planned
under it is not written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.fixtures.continuations import go_on, plan_of
from tests.fixtures.streams_of_tables import writing
from tests.fixtures.workshop import Workshop
from tests.spark.runs.test_restored_checkpoints import set_back
from tests.spark.runs.test_torn_staging import repair
from tests.spark.sources.test_unpublished_ways_out import cut, ids

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import CheckpointError, DivergedError, RolledBackError, UnpublishableError, UsageError
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.generations import find_generation
from sluice.ledger.run_values import DesiredState
from sluice.maintenance.continuation import ContinuationWay
from sluice.positions.adopt_table import adopt_table
from sluice.positions.adoption import AdoptionWay
from sluice.positions.repair_stream import plan_repair
from sluice.settings import FilesConnection
from sluice.supervision.stream_reset import reset_stream


def declare_direct(workshop: Workshop) -> str:
    """An incremental stream that Iceberg's own sink delivers; its name."""
    for table in ("source", "target"):
        workshop.declare_table(table, {"id": "long"})
    stream = f"s{workshop.namespace}"
    workshop.declare_stream(
        stream,
        sql="SELECT * FROM r",
        inputs={"r": {"stream": {"iceberg": {"table": workshop.table_name("source")}}}},
        outputs=writing(workshop.table_name("target"), delivery="direct"),
    )
    return stream


def feed(workshop: Workshop, stream: str, *numbers: int) -> None:
    """A row and a run for each number."""
    for number in numbers:
        workshop.append("source", [{"id": number}])
        workshop.run(stream, is_recorded=True)


def forget(workshop: Workshop, stream: str, which: str, *, tables: Sequence[str] = ("batches", "generations")) -> None:
    """The ledger is an older copy."""
    with workshop.ledger.transaction() as connection:
        for table in tables:
            statement = f"DELETE FROM {table} WHERE stream = :stream AND {which}"  # noqa: S608  # our own names
            connection.execute(text(statement), {"stream": stream})


def repair_of(workshop: Workshop, stream: str) -> str:
    """What a repair would do."""
    loaded = workshop.stream(stream)
    return " ".join(plan_repair(workshop.ledger, workshop.catalog, loaded, workshop.settings).sentences())


def with_files(
    workshop: Workshop, folder: Path, *, with_table: bool = False, **output: Mapping[str, str]
) -> tuple[Workshop, str]:
    """A stream into a folder of files, or another output there; the workshop that knows the folder, and its name."""
    folder.mkdir()
    connections = {**workshop.settings.connections, "lake": FilesConnection(kind="files", root=folder.as_uri())}
    files = replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))
    files.declare_table("source", {"id": "long"})
    outputs: dict[str, Any] = {"lines": output or {"files": {"connection": "lake", "path": "lines", "format": "json"}}}
    if with_table:
        outputs["first"] = {"iceberg": {"table": files.declare_table("first", {"id": "long"})}}
    stream = f"s{workshop.namespace}"
    files.declare_stream(
        stream,
        python=f"def transform(r):\n    return {{{', '.join(f'{name!r}: r' for name in outputs)}}}",
        inputs={"r": {"stream": {"iceberg": {"table": workshop.table_name("source")}}}},
        outputs=outputs,
    )
    return files, stream


def found(folder: Path) -> list[int]:
    """The ids in the files of a folder."""
    return sorted(json.loads(line)["id"] for file in folder.rglob("*.json") for line in file.read_text().splitlines())


@pytest.mark.full  # every run has it with a ledger that is as old
def test_a_start_from_an_older_checkpoint_is_refused(workshop: Workshop) -> None:
    stream = declare_direct(workshop)
    feed(workshop, stream, 1, 2, 3)
    set_back(workshop.checkpoint(stream), to=0)
    with pytest.raises(DivergedError, match="older copy") as refused:
        feed(workshop, stream, 4)
    assert f"`sluice stream reset {stream} --dry-run`" in (refused.value.next_step or "")
    assert "agree" not in repair_of(workshop, stream)
    assert ids(workshop, "target") == [1, 2, 3]


def test_the_table_alone_shows_that_a_checkpoint_is_older(workshop: Workshop) -> None:
    """The ledger is as old."""
    stream = declare_direct(workshop)
    feed(workshop, stream, 1, 2, 3)
    set_back(workshop.checkpoint(stream), to=0)
    with workshop.ledger.transaction() as connection:
        connection.execute(text("DELETE FROM batches WHERE stream = :stream AND batch > 0"), {"stream": stream})
    with pytest.raises(DivergedError, match="older copy"):
        feed(workshop, stream, 4)
    assert ids(workshop, "target") == [1, 2, 3]


@pytest.mark.full  # every run refuses its start
@pytest.mark.parametrize("leaves_out", [False, True])
def test_an_older_checkpoint_is_not_continued(workshop: Workshop, *, leaves_out: bool) -> None:
    stream = declare_direct(workshop)
    feed(workshop, stream, 1, 2, 3)
    set_back(workshop.checkpoint(stream), to=0)
    cut(workshop, 4, 5, 6)
    with pytest.raises(DivergedError, match="older copy"):
        go_on(workshop, stream, leaves_out=leaves_out)


@pytest.mark.full  # every run: `test_unmarked_ways_out.py`
def test_a_target_that_was_rolled_back_is_noticed(workshop: Workshop) -> None:
    stream = declare_direct(workshop)
    feed(workshop, stream, 1)
    first = workshop.table("target").current_snapshot()
    assert first is not None
    feed(workshop, stream, 2, 3)
    workshop.table("target").manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with pytest.raises(RolledBackError, match="was rolled back"):
        feed(workshop, stream, 4)
    assert ids(workshop, "target") == [1]


def test_a_generation_that_the_ledger_forgot_after_a_reset_is_written_back(workshop: Workshop) -> None:
    stream = declare_direct(workshop)
    feed(workshop, stream, 1)
    set_desired_state(workshop.ledger, stream, DesiredState.STOPPED)
    reset_stream(workshop.ledger, workshop.stream(stream), workshop.settings, asked_by="a test")
    set_desired_state(workshop.ledger, stream, DesiredState.RUNNING)
    feed(workshop, stream, 2, 3)
    before = ids(workshop, "target")
    forget(workshop, stream, "generation > 1")
    with pytest.raises(DivergedError, match="Generation 2 of") as refused:
        feed(workshop, stream, 4)
    assert f"`sluice stream repair {stream} --dry-run`" in (refused.value.next_step or "")

    repair(workshop, stream)
    feed(workshop, stream, 5)

    known = find_generation(workshop.ledger, stream)
    assert known is not None
    assert known.generation == 2
    assert ids(workshop, "target") == sorted([*before, 4, 5])


@pytest.mark.full  # every run has the other way to a second generation
def test_a_generation_that_the_ledger_forgot_after_a_continuation_is_written_back(workshop: Workshop) -> None:
    """Both generations have the query of the first."""
    stream = declare_direct(workshop)
    feed(workshop, stream, 1)
    cut(workshop, 2, 3)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    feed(workshop, stream, 4)
    forget(workshop, stream, "generation > 1")
    cut(workshop, 5, 6)
    with pytest.raises(UsageError, match="shows generation 2") as refused:
        plan_of(workshop, stream, leaves_out=True)
    assert f"`sluice stream repair {stream} --dry-run`" in (refused.value.next_step or "")
    repair(workshop, stream)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "target") == [1, 2, 3, 4, 5, 6]


@pytest.mark.full
def test_folders_are_not_taken_for_those_of_other_batches(workshop: Workshop, tmp_path: Path) -> None:
    files, stream = with_files(workshop, tmp_path / "lake")
    feed(files, stream, 1, 2, 3)
    set_back(files.checkpoint(stream), to=0)
    with pytest.raises(DivergedError, match="older copy"):
        feed(files, stream, 4)
    assert "agree" not in repair_of(files, stream)
    cut(files, 5)
    with pytest.raises(DivergedError, match="older copy"):
        plan_of(files, stream)
    assert found(tmp_path / "lake") == [1, 2, 3]


@pytest.mark.full  # every run has one in `test_direct_delivery.py`, without a continuation
def test_a_batch_that_the_ledger_has_is_in_every_output(workshop: Workshop, tmp_path: Path) -> None:
    """Spark has not noted it as committed."""
    files, stream = with_files(workshop, tmp_path / "lake")
    feed(files, stream, 1, 2)
    files.forget_last_commit(stream)
    cut(files, 3, 4)
    plan = go_on(files, stream)
    files.run(stream, is_recorded=True)
    assert plan.seen.way is ContinuationWay.EXACT
    assert found(tmp_path / "lake") == [1, 2, 3, 4]


@pytest.mark.full
def test_nobody_reads_a_batch_again_of_which_nothing_shows_whether_it_is_delivered(
    workshop: Workshop, tmp_path: Path
) -> None:
    """The driver died before the ledger had it."""
    files, stream = with_files(workshop, tmp_path / "lake")
    feed(files, stream, 1)
    files.append("source", [{"id": 2}])
    files.run(stream)
    files.forget_last_commit(stream)
    cut(files, 3, 4)
    with pytest.raises(UsageError, match="nothing shows whether lines has it") as refused:
        plan_of(files, stream)
    assert f"`sluice stream continue {stream} --leave-out` does not read it again" in (refused.value.next_step or "")
    plan = go_on(files, stream, leaves_out=True)
    files.run(stream, is_recorded=True)
    assert "Batch 1 may be missing in lines" in " ".join(plan.sentences())
    shown = found(tmp_path / "lake")
    assert shown[:2] == [1, 2]
    assert len(shown) == len(set(shown))


@pytest.mark.full
def test_batches_without_rows_are_no_sign_of_a_table_that_was_set_back(workshop: Workshop) -> None:
    stream = declare_direct(workshop)
    (workshop.folder / f"{stream}.sql").write_text("SELECT * FROM r WHERE id < 0")
    feed(workshop, stream, 1, 2)
    assert "agree" in repair_of(workshop, stream)
    feed(workshop, stream, 3)
    assert ids(workshop, "target") == []


@pytest.mark.full
def test_a_batch_without_rows_hides_no_folder_behind_it(workshop: Workshop, tmp_path: Path) -> None:
    """It has no folder of its own."""
    files, stream = with_files(workshop, tmp_path / "lake")
    module = files.folder / f"{stream}.py"
    module.write_text(module.read_text().replace(": r", ": r.where('id <> 2')"))
    feed(files, stream, 1, 2, 3)
    set_back(files.checkpoint(stream), to=0)
    with files.ledger.transaction() as connection:
        connection.execute(text("DELETE FROM batches WHERE stream = :stream AND batch > 0"), {"stream": stream})
    with pytest.raises(DivergedError, match=r"shows batch 1:2, and the checkpoint"):
        feed(files, stream, 4)


@pytest.mark.full  # every run repairs a generation that the ledger forgot
def test_a_plan_that_cannot_be_read_is_repaired_beside_files(workshop: Workshop, tmp_path: Path) -> None:
    """The power failed before it was written to the disk."""
    files, stream = with_files(workshop, tmp_path / "lake", with_table=True)
    feed(files, stream, 1, 2)
    offsets = files.checkpoint(stream) / "offsets"
    (offsets / "2").write_text("")
    with pytest.raises(CheckpointError, match="offsets/2"):
        feed(files, stream, 3)
    repair(files, stream)
    files.run(stream, is_recorded=True)
    assert ids(files, "first") == found(tmp_path / "lake") == [1, 2, 3]


@pytest.mark.full  # every run: the table of a direct stream, above
@pytest.mark.parametrize("kind", ["files", "delta"])
def test_an_output_shows_by_itself_that_ledger_and_checkpoint_are_older(
    workshop: Workshop, tmp_path: Path, kind: str
) -> None:
    """Both are of one backup."""
    output = {"connection": "lake", "path": "lines", **({"format": "json"} if kind == "files" else {})}
    files, stream = with_files(workshop, tmp_path / "lake", with_table=False, **{kind: output})
    feed(files, stream, 1, 2, 3)
    set_back(files.checkpoint(stream), to=0)
    with files.ledger.transaction() as connection:
        connection.execute(text("DELETE FROM batches WHERE stream = :stream AND batch > 0"), {"stream": stream})
    with pytest.raises(DivergedError, match="older copy"):
        feed(files, stream, 4)


@pytest.mark.full  # every run: the one way out in `test_unmarked_ways_out.py`
def test_a_table_beside_files_is_not_read_again_under_numbers_that_they_know(
    workshop: Workshop, tmp_path: Path
) -> None:
    """An adoption that would lead into that is refused, and changes nothing."""
    files, stream = with_files(workshop, tmp_path / "lake", with_table=True)
    feed(files, stream, 1)
    first = files.table("first").current_snapshot()
    assert first is not None
    feed(files, stream, 2, 3)
    files.table("first").manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    set_desired_state(files.ledger, stream, DesiredState.STOPPED)
    with pytest.raises(UnpublishableError, match="outputs without a mark"):
        adopt_table(
            files.ledger,
            files.catalog,
            load_declarations(files.folder),
            files.settings,
            table=files.table_name("first"),
            way=AdoptionWay.REREAD,
            asked_by="a test",
        )
