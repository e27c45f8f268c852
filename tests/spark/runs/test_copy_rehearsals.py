"""Copies of a checkpoint on trial: put back beside their stream, and a batch run again on them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import tests.fixtures.airflow_home  # noqa: F401  # before Airflow is imported
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from pyspark.errors import StreamingQueryException
from sqlalchemy import text
from tests.faults.ways_out.cells import AFTER, BEFORE, undamaged
from tests.faults.ways_out.kinds import Kind, Subject
from tests.fixtures.stack import Stack
from tests.fixtures.work import serve
from tests.fixtures.workshop import Workshop

from sluice.checkpoints.checkpoint_copies import (
    CheckpointCopy,
    Rehearsal,
    copies_location,
    find_rehearsal,
    list_copies,
    rehearsal_location,
)
from sluice.checkpoints.checkpoint_files import CheckpointFiles, LocalCheckpointFiles, open_checkpoint_files
from sluice.declarations.load_declarations import load_declarations
from sluice.errors import CheckpointStorageError, UsageError, WithdrawnError
from sluice.failure_reasons import FailureClass
from sluice.ledger.generations import current_generation, find_generation
from sluice.work.start_application import WorkQueue
from sluice_airflow.dag_builders.platform_dags import copy_rehearsals_dag
from sluice_airflow.operators import WorkOperator
from sluice_spark.run.job import failure_of_error
from sluice_spark.run.state_replay import CopyRehearsal
from sluice_spark.run.stop_request import StopRequest

_KINDS = [
    (Kind.W, "file"),
    *(pytest.param((kind, place), marks=pytest.mark.full) for kind, place in ((Kind.H, "s3a"), (Kind.G, "file"))),
]


def stopped(workshop: Workshop, kind: Kind) -> Subject:
    """A stream that has stopped, and has a copy."""
    subject = Subject(workshop=workshop, kind=kind)
    subject.declare()
    subject.feed(BEFORE)
    subject.run()
    return subject


def folders(subject: Subject) -> tuple[CheckpointFiles, CheckpointFiles]:
    """Its copies, and where they are put on trial."""
    settings = subject.workshop.settings
    root = settings.checkpoints
    checkpoint = current_generation(subject.workshop.ledger, subject.stream, checkpoints_root=root).checkpoint
    copies, trial = copies_location(checkpoint), rehearsal_location(checkpoint)
    return open_checkpoint_files(copies, settings.object_store), open_checkpoint_files(trial, settings.object_store)


def rehearsed(subject: Subject, *, require: Callable[[], None] = lambda: None) -> Rehearsal:
    """What comes of a rehearsal."""
    workshop = subject.workshop
    return CopyRehearsal(
        settings=workshop.settings,
        ledger=workshop.ledger,
        stream=workshop.stream(subject.stream),
        open_session=lambda: workshop.spark,
        stop=StopRequest(),
        require=require,
    ).work()


@pytest.mark.parametrize("of_stream", _KINDS)
def test_a_copy_is_put_back_and_its_newest_batch_run_again(workshop: Workshop, of_stream: tuple[Kind, str]) -> None:
    kind, place = of_stream
    if place == "s3a":
        bucket = f"s3a://landing/checkpoints/{workshop.namespace}"
        workshop = replace(workshop, settings=workshop.settings.model_copy(update={"checkpoints": bucket}))
    subject = stopped(workshop, kind)
    copies, trial = folders(subject)
    before, (copy,) = subject.content(), list_copies(copies)

    found = rehearsed(subject)

    assert (found.problem, found.batch) == ("", copy.committed)
    assert find_rehearsal(copies, copy) == found
    assert not trial.list_files()
    assert subject.content() == before
    subject.feed(AFTER)
    subject.run()
    assert Counter(subject.content()) == Counter(undamaged(workshop, kind))
    assert find_rehearsal(copies, list_copies(copies)[0]) is None, "the copy of the next stop"


def damaged(subject: Subject, copy: CheckpointCopy) -> None:
    """A file of the copy is not what was copied."""
    copies, _ = folders(subject)
    copies.write_bytes(next(one.kept_at for one in copy.files if one.path.startswith("state/")), b"of another one")


def other_state(subject: Subject, copy: CheckpointCopy) -> None:
    """The state had another number of rows."""
    with subject.workshop.ledger.transaction() as connection:
        connection.execute(
            text("UPDATE batches SET state_rows = state_rows + 1 WHERE stream = :stream AND batch = :batch"),
            {"stream": subject.stream, "batch": copy.committed},
        )


def unknown_state(subject: Subject, copy: CheckpointCopy) -> None:
    """The ledger does not know the batch."""
    with subject.workshop.ledger.transaction() as connection:
        statement = text("DELETE FROM batches WHERE stream = :stream AND batch = :batch")
        connection.execute(statement, {"stream": subject.stream, "batch": copy.committed})


def without_input(subject: Subject, _: CheckpointCopy) -> None:
    """What the batch has read is gone."""
    source = subject.workshop.table_name("source")
    subject.workshop.catalog.drop_table(source)
    subject.workshop.create_tables(only=source)


@pytest.mark.full  # every run: `test_checkpoint_copies.py`, and states that come out otherwise (`test_state_replay.py`)
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (damaged, "is not what was copied"),
        (other_state, "was run again for its state, which has"),
        (unknown_state, "the ledger does not know how many rows the state had"),
        (without_input, "source_data_lost"),
    ],
)
def test_a_copy_that_does_not_do_is_named(
    workshop: Workshop, damage: Callable[[Subject, CheckpointCopy], None], problem: str
) -> None:
    subject = stopped(workshop, Kind.G)
    copies, trial = folders(subject)
    (copy,) = list_copies(copies)
    before = subject.content()
    damage(subject, copy)

    found = rehearsed(subject)

    assert problem in found.problem
    assert not found.problem.endswith(".")
    assert find_rehearsal(copies, copy) == found
    assert not trial.list_files()
    assert subject.content() == before


@pytest.mark.full
def test_a_copy_that_is_replaced_meanwhile_is_not_judged(workshop: Workshop) -> None:
    subject = stopped(workshop, Kind.G)
    copies, _ = folders(subject)
    (first,) = list_copies(copies)

    def replaced() -> None:
        if first in list_copies(copies):
            copies.write_text(
                f"{(first.copied_at + timedelta(hours=1)):%Y%m%dT%H%M%S%fZ}.json",
                first.model_copy(update={"copied_at": first.copied_at + timedelta(hours=1)}).model_dump_json(),
            )
            copies.remove(f"{first.clock}.json")

    found = rehearsed(subject, require=replaced)

    (second,) = list_copies(copies)
    assert (found.problem, find_rehearsal(copies, second)) == ("", found)
    assert find_rehearsal(copies, first) is None


@pytest.mark.full
def test_a_storage_that_does_not_answer_says_nothing_of_a_copy(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = stopped(workshop, Kind.G)
    copies, trial = folders(subject)
    read = LocalCheckpointFiles.read_bytes

    def refuse(files: LocalCheckpointFiles, path: str) -> bytes | None:
        if path.startswith("files/"):
            raise CheckpointStorageError("no answer")
        return read(files, path)

    with monkeypatch.context() as away:
        away.setattr(LocalCheckpointFiles, "read_bytes", refuse)
        with pytest.raises(CheckpointStorageError):
            rehearsed(subject)

    assert find_rehearsal(copies, list_copies(copies)[0]) is None
    assert not trial.list_files()


@pytest.mark.full
def test_a_query_of_the_stream_that_runs_beside_a_rehearsal_is_not_stopped(workshop: Workshop, tmp_path: Path) -> None:
    """An increment and a rehearsal of one stream may share an application, and Spark looks at the ids of all."""
    subject = stopped(workshop, Kind.G)
    generation = find_generation(workshop.ledger, subject.stream)
    assert generation is not None
    (tmp_path / "metadata").write_text(json.dumps({"id": generation.query_id}))
    rows = workshop.spark.newSession().readStream.format("rate").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", tmp_path.as_uri()).start()
    try:
        assert query.id == generation.query_id
        assert rehearsed(subject).problem == ""
        assert query.isActive
    finally:
        query.stop()


@pytest.mark.full  # every run has the classes of failures (`test_classification.py`)
@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ConnectionRefusedError("Connection refused"), FailureClass.INFRASTRUCTURE),
        (OSError(28, "No space left on device"), FailureClass.RESOURCE),
        (MemoryError(), FailureClass.RESOURCE),
    ],
    ids=["service", "disk", "memory"],
)
def test_what_a_service_or_the_machine_does_while_the_batch_runs_says_nothing_of_a_copy(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, error: Exception, failure: FailureClass
) -> None:
    subject = stopped(workshop, Kind.G)
    copies, trial = folders(subject)

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("sluice_spark.run.state_replay._compute", fails)
    with pytest.raises(StreamingQueryException) as failed:
        rehearsed(subject)

    assert failure_of_error(failed.value).failure_class is failure
    assert find_rehearsal(copies, list_copies(copies)[0]) is None
    assert not trial.list_files()


@pytest.mark.full
def test_a_rehearsal_that_is_withdrawn_says_nothing_of_its_copy(workshop: Workshop) -> None:
    subject = stopped(workshop, Kind.G)
    copies, trial = folders(subject)

    def withdrawn() -> None:
        raise WithdrawnError("withdrawn")

    with pytest.raises(WithdrawnError):
        rehearsed(subject, require=withdrawn)

    assert find_rehearsal(copies, list_copies(copies)[0]) is None
    assert not trial.list_files()


@pytest.mark.full  # every run defers such tasks of other kinds (`test_work_operator.py`)
@pytest.mark.parametrize("damage", [other_state, None])
def test_the_task_is_red_when_a_copy_does_not_do(
    workshop: Workshop,
    services: Stack,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Subject, CheckpointCopy], None] | None,
) -> None:
    """The task defers; the application is one of this process."""
    environment = {
        **services.environment(),
        "SLUICE_PIPELINES": str(workshop.folder),
        "AIRFLOW_VAR_SLUICE_AIRFLOW_ID": "the-airflow-of-this-test",  # no database has it here
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    subject = Subject(workshop=workshop, kind=Kind.G, state={"backup_every": "1 day"})
    subject.declare()
    subject.feed(BEFORE[:2])
    subject.run()
    copies, _ = folders(subject)
    (copy,) = list_copies(copies)
    if damage is not None:
        damage(subject, copy)
    task, items = copy_rehearsals_dag(load_declarations(workshop.folder)).get_task(subject.stream), list[str]()
    assert isinstance(task, WorkOperator)
    task.render_template_fields(Context(dag=task.dag, run_id="manual__1"))
    monkeypatch.setattr(WorkQueue, "start_application", lambda _, item, *__: items.append(item))

    with pytest.raises(TaskDeferred) as deferred:
        task.execute(Context())
    serve(workshop, items)

    end = partial(task.look_again, Context(), **(deferred.value.kwargs or {}))
    if damage is None:
        end()
        assert find_rehearsal(copies, copy) is not None
    else:
        with pytest.raises(AirflowFailException, match=f"newest copy of the state of {subject.stream} does not do"):
            end()


def test_a_stream_without_a_copy_cannot_be_rehearsed(workshop: Workshop) -> None:
    subject = Subject(workshop=workshop, kind=Kind.I)
    subject.declare()
    subject.feed(BEFORE[:1])
    subject.run()

    with pytest.raises(UsageError, match="has no copy of a state"):
        rehearsed(subject)
