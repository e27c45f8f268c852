"""Staging tables of which nothing can be read, beside rejections, former outputs and refreshes."""

from __future__ import annotations

import pytest
from tests.faults.ways_out.cells import AFTER, BEFORE, planned, undamaged
from tests.faults.ways_out.kinds import Kind, Subject
from tests.fixtures.refreshes import refresh
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_held_batches import BAD, GOOD, choose, declare, ids

from sluice.errors import StagingError, UnpublishableError
from sluice.ledger.refreshes import newest_refresh
from sluice.operations import OperationVerb
from sluice.positions.repair_stream import RepairPlan, plan_repair, repair_stream
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import staging_name


def tear(workshop: Workshop, stream: str, *outputs: str) -> None:
    """Remove what the staging tables of outputs refer to."""
    for output in outputs:
        staging = workshop.catalog.load_table(staging_name(stream, output))
        newest = staging.current_snapshot()
        assert newest is not None
        staging.io.delete(newest.manifest_list)


def repair(workshop: Workshop, stream: str) -> None:
    """Type the one command."""
    loaded = workshop.stream(stream)
    repair_stream(workshop.ledger, workshop.catalog, loaded, workshop.settings, asked_by="a test")


def declare_outputs(workshop: Workshop, *outputs: str) -> str:
    """A stream with one or both of two outputs, which reads its input in two places either way; its name."""
    stream, both = f"s{workshop.namespace}", "r" if len(outputs) > 1 else "r.union(r.where('id < 0'))"
    returned = ", ".join(f"'{one}': {both}" for one in outputs)
    source = {"table": workshop.table_name("source"), "max_rows_per_batch": 1}
    workshop.declare_stream(
        stream,
        python=f"def transform(r):\n    return {{{returned}}}",
        inputs={"r": {"stream": {"iceberg": source}}},
        outputs={one: {"iceberg": {"table": workshop.table_name(one)}} for one in outputs},
    )
    return stream


def run_with_two(workshop: Workshop) -> str:
    """A stream that has run with both outputs; its name."""
    for table in ("source", "first", "second"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first", "second")
    workshop.append("source", [{"id": 1}])
    workshop.run(stream, is_recorded=True)
    return stream


def test_a_rejection_that_no_table_shows_any_more_refuses_the_repair(workshop: Workshop) -> None:
    """Read again, rows that a person has rejected would become visible."""
    stream = declare(workshop)
    for row in (GOOD, BAD, {"id": 3, "price": 7}):
        workshop.append("source", [row])
    workshop.run(stream, is_recorded=True)
    choose(workshop, stream, OperationVerb.REJECT_BATCH)
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.RECORDED))
    tear(workshop, stream, "main", "quarantine")

    with pytest.raises(
        UnpublishableError,
        match=f"Batch 1:1 of {stream}.* nothing in .* shows that any more",
    ):
        repair(workshop, stream)

    assert ids(workshop) == [1]


@pytest.mark.full  # every run has an output that is torn, and what its staging table remembers of a target
def test_an_output_that_is_declared_again_opens_where_the_stream_is(workshop: Workshop) -> None:
    stream = run_with_two(workshop)
    declare_outputs(workshop, "first")
    for number in (2, 3):
        workshop.append("source", [{"id": number}])
    workshop.run(stream, is_recorded=True)
    declare_outputs(workshop, "first", "second")
    tear(workshop, stream, "second")

    repair(workshop, stream)
    workshop.append("source", [{"id": 4}])
    workshop.run(stream, is_recorded=True)

    found = {one: [row["id"] for row in workshop.rows(one)] for one in ("first", "second")}
    assert found == {"first": [1, 2, 3, 4], "second": [1, 4]}


@pytest.mark.full  # every run: that of an output
def test_the_staging_table_of_a_former_output_is_emptied_as_well(workshop: Workshop) -> None:
    stream = run_with_two(workshop)
    declare_outputs(workshop, "first")
    tear(workshop, stream, "second")
    workshop.append("source", [{"id": 2}])
    with pytest.raises(StagingError, match="second refers to a file that is gone"):
        workshop.run(stream, is_recorded=True)

    repair(workshop, stream)
    workshop.run(stream, is_recorded=True)

    assert [row["id"] for row in workshop.rows("first")] == [1, 2]


@pytest.mark.full  # every run has an output that is torn
def test_a_former_output_whose_table_was_rolled_back_keeps_no_plan_from_being_made(workshop: Workshop) -> None:
    """Adoption looks at it, too: the plan of what repairs it must not fail because of it."""
    stream = run_with_two(workshop)
    workshop.append("source", [{"id": 2}])
    workshop.run(stream, is_recorded=True)
    declare_outputs(workshop, "first")
    table = workshop.table("second")
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()

    def plan() -> RepairPlan:
        return plan_repair(workshop.ledger, workshop.catalog, workshop.stream(stream), workshop.settings)

    assert not plan().is_refused
    tear(workshop, stream, "second")
    assert "was rolled back" in " ".join(plan().sentences())


@pytest.mark.full  # every run has the error of a staging table
def test_a_refresh_whose_shadow_is_torn_is_given_up(workshop: Workshop) -> None:
    workshop.declare_table("source", {"id": "long"})
    workshop.declare_table("first", {"id": "long"})
    stream = declare_outputs(workshop, "first")
    workshop.append("source", [{"id": 1}, {"id": 2}])
    workshop.run(stream, is_recorded=True)
    with pytest.raises(OSError, match="dies here"):
        refresh(workshop, stream, reached=dying_at(CrashPoint.BUILT))
    begun = newest_refresh(workshop.ledger, stream)
    assert begun is not None
    tear(workshop, begun.shadow, "first")

    with pytest.raises(StagingError, match="refers to a file that is gone") as refused:
        refresh(workshop, stream)

    assert f"`sluice stream refresh {stream} --abandon`" in refused.value.next_step


@pytest.mark.full  # every run has a manifest list that is gone
def test_a_manifest_that_is_gone_is_found_too(workshop: Workshop) -> None:
    subject = Subject(workshop=workshop, kind=Kind.I)
    subject.declare()
    subject.feed(BEFORE[:2])
    subject.run()
    subject.feed(BEFORE[2:])
    with pytest.raises(OSError, match="dies here"):
        subject.run(reached=dying_at(CrashPoint.STAGED))
    (name,) = subject.stagings
    staging = workshop.catalog.load_table(name)
    newest = staging.current_snapshot()
    assert newest is not None
    for manifest in newest.manifests(staging.io):
        staging.io.delete(manifest.manifest_path)
    with pytest.raises(StagingError, match="refers to a file that is gone") as refused:
        subject.run()
    assert f"`sluice stream repair {subject.stream} --dry-run`" in refused.value.next_step

    assert f"Empty {name}, without its data files." in " ".join(planned(subject).sentences())
    repair(workshop, subject.stream)
    subject.feed(AFTER)
    subject.run()

    assert subject.content() == tuple(undamaged(workshop, Kind.I))
