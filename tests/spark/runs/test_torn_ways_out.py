"""Torn staging tables beside what else may be under way: a merge, a refresh, a former output, a table made again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.faults.ways_out.cells import AFTER, BEFORE, adopted, planned, undamaged
from tests.faults.ways_out.damages import copies_gone_too, generation_forgotten, tables_created_again
from tests.faults.ways_out.kinds import Kind, Subject
from tests.fixtures.refreshes import refresh
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_held_batches import BAD, GOOD, choose, declare
from tests.spark.runs.test_torn_staging import declare_outputs, repair, run_with_two, tear

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import SluiceError, UndeclaredOutputError, UnpublishableError
from sluice.ledger.batches import recent_batches
from sluice.operations import OperationVerb
from sluice.positions.adoption import AdoptionWay
from sluice.positions.rewind_plan import batch_of_time, plan_rewind
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.marks import load_target_state
from sluice.publication.settle_output import abandon_output
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.staging_table import staged_batches
from sluice.refresh.undo_refresh import abandon, take_back


def die_at(subject: Subject, point: CrashPoint) -> None:
    """A run that dies at a place."""
    with pytest.raises(OSError, match="dies here"):
        subject.run(reached=dying_at(point))


@pytest.mark.full
def test_a_list_that_only_a_merge_reads_is_found_too(workshop: Workshop) -> None:
    """A batch that waits lies below the snapshot that fenced the next run off, and MERGE reads its own list."""
    subject = Subject(workshop=workshop, kind=Kind.G)
    subject.declare()
    subject.feed(BEFORE[:2])
    subject.run()
    subject.feed(BEFORE[2:])
    die_at(subject, CrashPoint.STAGED)
    die_at(subject, CrashPoint.CHECKED)  # the next run has fenced it off, and has not merged
    (name,) = subject.stagings
    staging = workshop.catalog.load_table(name)
    (waiting,) = staged_batches(staging, stream=subject.stream, output="main")[-1:]
    newest, own = staging.current_snapshot(), staging.snapshot_by_id(waiting.snapshot_id)
    assert newest is not None
    assert own is not None
    assert newest.manifest_list != own.manifest_list
    staging.io.delete(own.manifest_list)
    with pytest.raises(Exception, match=r"."):
        subject.run()

    said = " ".join(planned(subject).sentences())
    assert f"Empty {name}" in said, said
    repair(workshop, subject.stream)
    subject.feed(AFTER)
    subject.run()
    assert subject.content() == tuple(undamaged(workshop, Kind.G))


def test_a_torn_staging_table_of_a_table_that_was_created_again_is_emptied(workshop: Workshop) -> None:
    subject = Subject(workshop=workshop, kind=Kind.I)
    subject.declare()
    subject.feed(BEFORE)
    subject.run()
    tables_created_again(subject)
    tear(workshop, subject.stream, "main")
    assert sum(adopted(subject, AdoptionWay.ACCEPT)) > 0
    subject.feed(AFTER)
    with pytest.raises(SluiceError):
        subject.run()

    said = " ".join(planned(subject).sentences())
    assert f"Empty {subject.stagings[0]}" in said, said


@pytest.mark.full
def test_a_rewind_names_a_torn_former_output_and_not_its_table(workshop: Workshop) -> None:
    """Its table was dropped, as what is not needed any more is."""
    stream = run_with_two(workshop)
    declare_outputs(workshop, "first")
    workshop.append("source", [{"id": 2}])
    workshop.run(stream, is_recorded=True)
    workshop.catalog.drop_table(workshop.table_name("second"))
    declarations = load_declarations(workshop.folder)

    def plan() -> str:
        found = plan_rewind(workshop.ledger, workshop.catalog, declarations, workshop.settings, stream=stream, batch=0)
        return " ".join(found.sentences()) + " ".join(one.next_step for one in found.refusals)

    plan()
    tear(workshop, stream, "second")
    assert "second refers to" in plan()


@pytest.mark.full  # every run: `test_a_torn_staging_table_of_a_table_that_was_created_again_is_emptied` and others
def test_a_rewind_to_a_time_asks_no_table_of_a_former_output(workshop: Workshop) -> None:
    stream = run_with_two(workshop)
    declare_outputs(workshop, "first")
    for number in (2, 3):
        workshop.append("source", [{"id": number}])
        workshop.run(stream, is_recorded=True)
    then = datetime.now(tz=UTC)

    def asked() -> int:
        return batch_of_time(workshop.ledger, workshop.catalog, workshop.stream(stream), workshop.settings, then=then)

    wanted = asked()
    assert wanted == 2
    tear(workshop, stream, "second")
    assert asked() == wanted


def wait_for_a_former_output(workshop: Workshop) -> str:
    """A stream whose newest batch waits for an output that is not declared any more, torn; its name."""
    stream = run_with_two(workshop)
    workshop.append("source", [{"id": 2}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.STAGED))
    declare_outputs(workshop, "first")
    tear(workshop, stream, "second")
    return stream


@pytest.mark.full  # every run: `test_a_torn_staging_table_of_a_table_that_was_created_again_is_emptied` and others
def test_what_waits_for_a_torn_former_output_is_read_again_once_it_is_declared(workshop: Workshop) -> None:
    """The way out that is named."""
    stream = wait_for_a_former_output(workshop)
    with pytest.raises(SluiceError):
        repair(workshop, stream)
    declare_outputs(workshop, "first", "second")
    repair(workshop, stream)
    workshop.run(stream, is_recorded=True)

    found = {one: [row["id"] for row in workshop.rows(one)] for one in ("first", "second")}
    assert found == {"first": [1, 2], "second": [1, 2]}


@pytest.mark.full  # every run abandons without Spark (`test_operations.py`)
def test_what_waits_for_a_torn_former_output_can_be_abandoned(workshop: Workshop) -> None:
    """The start of the stream names that command."""
    stream = wait_for_a_former_output(workshop)
    with pytest.raises(UndeclaredOutputError, match="no longer declares") as refused:
        workshop.run(stream, is_recorded=True)
    assert f"`sluice batch abandon {stream} second` discards them" in refused.value.next_step

    abandon_output(
        workshop.catalog,
        workshop.ledger,
        workshop.stream(stream).declaration,
        output="second",
        requested_by="a test",
    )
    repair(workshop, stream)
    workshop.run(stream, is_recorded=True)

    assert [row["id"] for row in workshop.rows("first")] == [1, 2]


@pytest.mark.full
def test_rows_of_a_staging_table_that_nothing_reads_again_are_counted(workshop: Workshop) -> None:
    """The ledger forgot the generation, and the state is lost with its copies: the checkpoint stays as it is, so that
    nothing is read again of what the emptied staging table listed, until a person resets the stream."""
    subject = Subject(workshop=workshop, kind=Kind.H)
    subject.declare()
    subject.run()
    subject.reset()
    subject.feed(BEFORE[:3])
    subject.run()
    subject.feed(BEFORE[3:])
    die_at(subject, CrashPoint.STAGED)
    (name,) = subject.stagings
    staging = workshop.catalog.load_table(name)
    waits = [*staged_batches(staging, stream=subject.stream, output="main")][-1]
    assert waits.summary.rows == 4
    tear(workshop, subject.stream, "main")
    copies_gone_too(subject)
    generation_forgotten(subject)

    plan = planned(subject)
    assert plan.seen.left is not None
    assert plan.evidence["empties"] == []


@pytest.mark.full
def test_a_refresh_that_died_before_its_commit_does_not_lock_a_torn_stream(workshop: Workshop) -> None:
    """Each command names another one: the refresh the repair, the repair the refresh, and giving it up the repair."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    workshop.append("source", [{"id": 1}])
    workshop.run(stream, is_recorded=True)
    with pytest.raises(OSError, match="dies here"):
        refresh(workshop, stream, reached=dying_at(CrashPoint.SWAPPING))
    tear(workshop, stream, "first")
    said: dict[str, str] = {}
    for name, way in (
        ("refresh", lambda: refresh(workshop, stream)),
        ("repair", lambda: repair(workshop, stream)),
        ("abandon", lambda: abandon(workshop.catalog, workshop.ledger, workshop.stream(stream), asked_by="a test")),
        ("repair again", lambda: repair(workshop, stream)),
    ):
        try:
            way()
        except SluiceError as error:
            said[name] = f"{error.message} {error.next_step}"
    assert "repair again" not in said, "\n".join(f"{name}: {one[-190:]}" for name, one in said.items())
    workshop.append("source", [{"id": 2}])
    workshop.run(stream, is_recorded=True)
    assert [row["id"] for row in workshop.rows("first")] == [1, 2]


@pytest.mark.full  # every run: what a repair commits is recorded (`test_torn_records.py`)
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_batch_that_was_published_and_not_recorded_is_recorded_after_a_repair(
    workshop: Workshop, *, is_torn: bool
) -> None:
    names = StagedOutput(stream=f"s{workshop.namespace}", output="first", target=workshop.table_name("first"))
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    source = {"table": workshop.table_name("source"), "max_rows_per_batch": 1}
    workshop.declare_stream(
        names.stream,
        sql="SELECT * FROM r",
        inputs={"r": {"stream": {"iceberg": source}}},
        outputs={"first": {"iceberg": {"table": names.target, "publish_every": "1 hour"}}},
    )
    workshop.append("source", [{"id": 1}])
    workshop.run(names.stream, is_recorded=True)
    for number in (2, 3):
        workshop.append("source", [{"id": number}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(names.stream, is_recorded=True, reached=dying_at(CrashPoint.PUBLISHED))
    assert [row["id"] for row in workshop.rows("first")] == [1, 2, 3]
    if is_torn:
        tear(workshop, names.stream, "first")
        repair(workshop, names.stream)
    workshop.append("source", [{"id": 4}])
    workshop.run(names.stream, is_recorded=True)

    assert [row["id"] for row in workshop.rows("first")] == [1, 2, 3, 4]
    recorded = sorted(one.key.batch for one in recent_batches(workshop.ledger, names.stream, 9))
    assert recorded == [0, 1, 2, 3]


@pytest.mark.full  # every run: `test_a_torn_staging_table_of_a_table_that_was_created_again_is_emptied` and others
def test_what_is_staged_for_a_table_that_was_created_again_is_given_up_and_the_stream_runs(
    workshop: Workshop,
) -> None:
    """By the way out that is named."""
    subject = Subject(workshop=workshop, kind=Kind.I)
    subject.declare()
    subject.feed(BEFORE[:3])
    subject.run()
    subject.feed(BEFORE[3:])
    die_at(subject, CrashPoint.STAGED)
    tables_created_again(subject)
    tear(workshop, subject.stream, "main")
    assert sum(adopted(subject, AdoptionWay.ACCEPT)) > 0
    with pytest.raises(UnpublishableError) as refused:
        repair(workshop, subject.stream)
    assert f"`sluice batch abandon {subject.stream} main` gives them up" in str(refused.value)
    abandon_output(
        workshop.catalog,
        workshop.ledger,
        workshop.stream(subject.stream).declaration,
        output="main",
        requested_by="a test",
    )
    repair(workshop, subject.stream)
    subject.feed(AFTER)
    subject.run()
    ids = {row[1] for row in subject.content()}
    assert {4 * 4, 4 * 5} <= ids


@pytest.mark.full  # every run: one that no table shows (`test_torn_staging.py`)
def test_a_rejection_that_one_table_shows_is_not_said_to_be_shown_by_none(workshop: Workshop) -> None:
    stream = declare(workshop)
    for row in (GOOD, BAD, {"id": 3, "price": 7}):
        workshop.append("source", [row])
    workshop.run(stream, is_recorded=True)
    choose(workshop, stream, OperationVerb.REJECT_BATCH)
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.FIRST_OUTPUT_PUBLISHED))
    output = StagedOutput(stream=stream, output="main", target=workshop.table_name("target"))
    shown = load_target_state(workshop.catalog, output).position(output)
    tear(workshop, stream, "quarantine")
    with pytest.raises(UnpublishableError) as refused:
        repair(workshop, stream)
    assert shown.batch < 1 or "no table shows" not in str(refused.value)


@pytest.mark.full  # every run: `test_a_torn_staging_table_of_a_table_that_was_created_again_is_emptied` and others
def test_a_way_back_that_died_before_its_commit_does_not_lock_a_torn_stream(workshop: Workshop) -> None:
    """The way back names the repair, and the repair a refresh, which is not even what is under way."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    workshop.append("source", [{"id": 1}])
    workshop.run(stream, is_recorded=True)
    refresh(workshop, stream)

    def back(reached: Reached = unnoticed) -> object:
        declarations, loaded = load_declarations(workshop.folder), workshop.stream(stream)
        return take_back(workshop.catalog, workshop.ledger, declarations, loaded, asked_by="a test", reached=reached)

    with pytest.raises(OSError, match="dies here"):
        back(dying_at(CrashPoint.TAKING_BACK))
    tear(workshop, stream, "first")
    said: dict[str, str] = {}
    for name, way in (
        ("take back", back),
        ("repair", lambda: repair(workshop, stream)),
        ("refresh", lambda: refresh(workshop, stream)),
        ("run", lambda: workshop.run(stream, is_recorded=True)),
    ):
        try:
            way()
        except SluiceError as error:
            said[name] = f"{error.message} {error.next_step}"
    assert "run" not in said, "\n".join(f"{name}: {one[-190:]}" for name, one in said.items())
