"""A checkpoint that goes while its driver runs, one in a bucket, and one that a start refuses: each is repaired."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace

import pytest
from tests.faults.ways_out import damages
from tests.faults.ways_out.cells import AFTER, BEFORE, planned, repaired, undamaged, witnesses
from tests.faults.ways_out.kinds import Kind, Subject
from tests.fixtures.streams_of_tables import COLUMNS, dying_at, reading, writing
from tests.fixtures.workshop import Workshop

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.declarations.load_declarations import load_declarations
from sluice.errors import CheckpointError, StagingError
from sluice.ledger.generations import find_generation
from sluice.ledger.recorded_checks import CheckpointProperty
from sluice.positions.check_checkpoints import check_checkpoints
from sluice.publication.crash_points import CrashPoint
from sluice_spark.run import query_run


def test_a_run_notices_that_its_checkpoint_is_gone_and_goes_on_after_a_repair(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_run, "_CHECKPOINT_SECONDS", 0.2)
    name = f"s{workshop.namespace}"
    workshop.declare_stream(
        name,
        sql="SELECT id, word FROM records",
        inputs=reading(workshop.declare_table("source", COLUMNS)),
        outputs=writing(workshop.declare_table("target", COLUMNS)),
        mode="continuous",
        trigger={"processing_time": "100 milliseconds"},
    )
    workshop.append("source", [{"id": 1, "word": "x"}])

    def removed(point: CrashPoint) -> None:
        if point is CrashPoint.PUBLISHED:
            shutil.rmtree(workshop.checkpoint(name))

    with pytest.raises(CheckpointError, match=r"was removed while it ran; it stopped after its batch") as ended:
        workshop.run(name, reached=removed, is_recorded=True)
    assert f"sluice stream repair {name}" in ended.value.next_step
    subject = Subject(workshop=workshop, kind=Kind.I)
    with pytest.raises(CheckpointError, match="The checkpoint damaged: ") as refused:
        workshop.run(name, stop_after_batches=1)
    assert f"`sluice stream repair {name} --dry-run`" in refused.value.next_step
    repaired(subject, planned(subject))
    workshop.append("source", [{"id": 2, "word": "y"}])
    workshop.run(name, stop_when=lambda batch: batch.key.batch == 1)

    assert [row["id"] for row in workshop.rows("target")] == [1, 2]


@pytest.mark.full  # every run: other torn staging tables (`test_torn_records.py`, `test_torn_staging.py`)
def test_what_waited_in_a_staging_table_that_is_torn_is_read_again(workshop: Workshop) -> None:
    subject = Subject(workshop=workshop, kind=Kind.I)
    subject.declare()
    subject.feed(BEFORE[:2])
    subject.run()
    subject.feed(BEFORE[2:])
    with pytest.raises(OSError, match="dies here"):
        subject.run(reached=dying_at(CrashPoint.STAGED))
    damages.staging_lists_gone(subject)
    (staging,) = subject.stagings
    with pytest.raises(StagingError, match="refers to a file that is gone") as refused:
        subject.run()
    assert f"`sluice stream repair {subject.stream} --dry-run`" in refused.value.next_step

    plan = planned(subject)
    assert f"Empty {staging}, without its data files." in " ".join(plan.sentences())
    with pytest.raises(OSError, match="dies here"):
        repaired(subject, plan, reached=dying_at(CrashPoint.CLEARED))
    repaired(subject, planned(subject))
    subject.feed(AFTER)
    subject.run()

    assert subject.content() == tuple(undamaged(workshop, Kind.I))


@pytest.mark.full  # every run: on this machine, and `test_checkpoint_files.py`
def test_a_checkpoint_in_a_bucket_is_written_back(workshop: Workshop) -> None:
    bucket = f"s3a://landing/checkpoints/{workshop.namespace}"
    subject = Subject(
        workshop=replace(workshop, settings=workshop.settings.model_copy(update={"checkpoints": bucket})), kind=Kind.A
    )
    subject.declare()
    for some in (BEFORE[:2], BEFORE[2:]):
        subject.feed(some)
        subject.run()
    generation = find_generation(workshop.ledger, subject.stream)
    assert generation is not None
    files = open_checkpoint_files(generation.checkpoint, workshop.settings.object_store)
    for seen in files.list_files():
        files.remove(seen.path)
    assert witnesses(subject) == ("checkpoint damaged",)

    repaired(subject, planned(subject))
    subject.feed(AFTER)
    subject.run()

    assert subject.content() == tuple(undamaged(workshop, Kind.A))


def test_a_published_file_that_is_gone_is_found_by_the_check(workshop: Workshop) -> None:
    subject = Subject(workshop=workshop, kind=Kind.I)
    subject.declare()
    subject.feed((0,))
    subject.run()
    (task,) = workshop.table(subject.targets[0]).scan().plan_files()
    workshop.table(subject.targets[0]).io.delete(task.file.file_path)

    (seen,) = check_checkpoints(
        workshop.ledger, load_declarations(workshop.folder), workshop.settings, streams=[subject.stream]
    )

    (problem,) = seen.problems
    assert problem.name is CheckpointProperty.PUBLISHED_FILES
    assert f"1 of 1 files of {subject.targets[0]}" in problem.message
    assert f"with 4 rows, of the batches {subject.stream}:1:0: {task.file.file_path}" in problem.message


@pytest.mark.full  # every run: the check of a checkpoint (`test_checkpoint_health.py`)
@pytest.mark.parametrize("kind", [Kind.W, Kind.H])
def test_the_last_partition_of_a_state_is_missed_and_taken_one_step_back(workshop: Workshop, kind: Kind) -> None:
    subject = Subject(workshop=workshop, kind=kind, state={"shuffle_partitions": 3})
    subject.declare()
    subject.feed(BEFORE)
    subject.run()
    damages.last_partition_gone(subject)
    assert witnesses(subject) == ("checkpoint damaged",)

    repaired(subject, planned(subject))
    subject.feed(AFTER)
    subject.run()

    assert Counter(subject.content()) == Counter(undamaged(workshop, kind))


@pytest.mark.full  # it would refuse a sound checkpoint, and touches no row
@pytest.mark.parametrize("provider", ["rocksdb", "hdfs"])
def test_an_aggregation_without_keys_is_whole_with_its_one_partition(workshop: Workshop, provider: str) -> None:
    """Spark notes the partitions that the query is declared with."""
    columns = {"n": "long", "word": "string"}
    source, target = workshop.declare_table("source", {"id": "long"}), workshop.declare_table("target", columns)
    workshop.declare_stream(
        f"s{workshop.namespace}",
        sql="SELECT 'all' word, n FROM (SELECT count(*) n FROM r)",
        inputs={"r": {"stream": {"iceberg": {"table": source}}}},
        outputs={"main": {"iceberg": {"table": target, "mode": "merge", "keys": ["word"]}}},
        state={"provider": provider, "shuffle_partitions": 3},
    )
    for number in range(2):
        workshop.append("source", [{"id": number}])
        workshop.run(f"s{workshop.namespace}", is_recorded=True)

    assert witnesses(Subject(workshop=workshop, kind=Kind.I)) == ()
    assert workshop.rows("target") == [{"n": 2, "word": "all"}]
