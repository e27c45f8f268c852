"""Copies that were made while a query ran, and inputs that are gone once the next batch has begun.

Every test run has which inputs of a batch are gone without Spark (`test_lost_batch_inputs.py`), and a copy that is
put back and run again (`test_copy_rehearsals.py`).
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.fixtures.database import run_sql
from tests.fixtures.drivers import await_condition
from tests.fixtures.workshop import Workshop

from sluice.checkpoints.checkpoint_copies import CheckpointCopy, copies_location, copy_checkpoint, list_copies
from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.errors import UsageError
from sluice.ledger.generations import current_generation
from sluice.positions.repair_stream import RepairPlan, plan_repair, repair_stream
from sluice.publication.crash_points import CrashPoint
from sluice.settings import FilesConnection, Settings
from sluice_spark.run.state_replay import CopyRehearsal
from sluice_spark.run.stop_request import StopRequest

_COLUMNS = {"id": "long", "n": "long"}


class _KilledError(Exception):
    """Stands for the death of the process."""


def root_of(workshop: Workshop, stream: str) -> str:
    """The folder of its checkpoint."""
    return current_generation(workshop.ledger, stream, checkpoints_root=workshop.settings.checkpoints).checkpoint


def planned_without_checkpoint(workshop: Workshop, stream: str) -> RepairPlan:
    """The repair, once the checkpoint is lost."""
    shutil.rmtree(root_of(workshop, stream).removeprefix("file://"))
    return plan_repair(workshop.ledger, workshop.catalog, workshop.stream(stream), workshop.settings)


def summing_files(workshop: Workshop, folder: Path, *, afterwards: str) -> tuple[Workshop, str]:
    """A stream that keeps sums of three files, one in a batch."""
    here = FilesConnection(kind="files", root=folder.as_uri())
    settings = workshop.settings.model_copy(update={"connections": {**workshop.settings.connections, "here": here}})
    workshop, stream = replace(workshop, settings=settings), f"s{workshop.namespace}"
    files = {
        "connection": "here",
        "path": "in",
        "format": "json",
        "columns": [{"name": name, "type": kind} for name, kind in _COLUMNS.items()],
        "max_files_per_batch": 1,
        "afterwards": afterwards,
    }
    workshop.declare_stream(
        stream,
        sql="SELECT id, sum(n) n FROM r GROUP BY id",
        inputs={"r": {"stream": {"files": files}}},
        outputs={
            "main": {"iceberg": {"table": workshop.declare_table("main", _COLUMNS), "mode": "merge", "keys": ["id"]}}
        },
        state={"backup_every": "300 milliseconds"},
    )
    (folder / "in").mkdir()
    for number in range(3):
        (folder / "in" / f"{number}.json").write_text('{"id": 1, "n": 1}\n')
    return workshop, stream


@pytest.mark.full  # every run: `test_lost_batch_inputs.py`, without Spark
@pytest.mark.parametrize("afterwards", ["delete", "keep"])
def test_a_batch_is_not_run_again_on_a_copy_without_the_files_that_it_has_read(
    workshop: Workshop, tmp_path: Path, afterwards: str
) -> None:
    """The copy was made within batch 1, whose file goes when batch 2 begins."""
    workshop, stream = summing_files(workshop, tmp_path, afterwards=afterwards)
    store, begun = LocalCheckpointFiles(copies_location(root_of(workshop, stream))), list[CrashPoint]()
    kept: dict[str, bytes] = {}

    def die_in_the_third(point: CrashPoint) -> None:
        if point is CrashPoint.BATCH_BEGUN:
            begun.append(point)
        if len(begun) == 2 and not kept:
            await_condition(lambda: any((one.committed, one.planned) == (0, 1) for one in list_copies(store)))
            kept.update({seen.path: store.read_bytes(seen.path) or b"" for seen in store.list_files()})
        if len(begun) == 3:
            raise _KilledError

    with pytest.raises(_KilledError):
        workshop.run(stream, is_recorded=True, reached=die_in_the_third)
    for seen in store.list_files():  # the next copy of the schedule was not due yet
        store.remove(seen.path)
    for path, content in kept.items():
        store.write_bytes(path, content)

    plan = planned_without_checkpoint(workshop, stream)

    assert plan.is_refused == (afterwards == "delete"), list(plan.sentences())
    if afterwards == "keep":
        loaded = workshop.stream(stream)
        repair_stream(
            workshop.ledger, workshop.catalog, loaded, workshop.settings, planned=plan.digest, asked_by="a test"
        )
        workshop.run(stream, is_recorded=True)
        assert workshop.rows("main") == [{"id": 1, "n": 3}]


@pytest.mark.full  # as above
def test_a_stream_whose_files_go_is_not_rehearsed(workshop: Workshop, tmp_path: Path) -> None:
    workshop, stream = summing_files(workshop, tmp_path, afterwards="delete")
    workshop.run(stream, is_recorded=True)
    rehearsal = CopyRehearsal(
        settings=workshop.settings,
        ledger=workshop.ledger,
        stream=workshop.stream(stream),
        open_session=lambda: workshop.spark,
        stop=StopRequest(),
        require=lambda: None,
    )

    with pytest.raises(UsageError, match="the files of its input r are put away once they are read"):
        rehearsal.work()


class _Slow(LocalCheckpointFiles):
    """Lists the whole folder only once the query is in its next batch, as with many files in an object store."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.at_last, self.may_list = threading.Event(), threading.Event()

    def list_files(self, folder: str = "") -> Sequence[FileObservation]:
        """Every file below `folder`."""
        if not folder:
            self.at_last.set()
            self.may_list.wait()
        return super().list_files(folder)


@pytest.mark.full  # as above
def test_a_batch_is_not_run_again_on_a_copy_without_the_table_that_it_has_read(
    workshop: Workshop, jdbc_settings: Settings, numbers_table: str
) -> None:
    """The copy was begun within batch 1, and its last listing sees what batch 2 reads of the database."""
    run_sql(jdbc_settings, f"ALTER TABLE {numbers_table} ADD COLUMN n bigint DEFAULT 1")
    settings = workshop.settings.model_copy(update={"connections": jdbc_settings.connections})
    workshop, stream = replace(workshop, settings=settings), f"s{workshop.namespace}"
    records, main = workshop.declare_table("records", {"id": "long"}), workshop.declare_table("main", _COLUMNS)
    workshop.declare_stream(
        stream,
        python="""
        from pyspark.sql import functions as F

        def transform(records, words):
            return records.join(words, "id").groupBy("id").agg(F.sum("n").alias("n"))
        """,
        inputs={
            "records": {"stream": {"iceberg": {"table": records, "max_files_per_batch": 1}}},
            "words": {"static": {"jdbc": {"connection": "database", "table": numbers_table}}},
        },
        outputs={"main": {"iceberg": {"table": main, "mode": "merge", "keys": ["id"]}}},
    )
    for _ in range(3):
        workshop.append("records", [{"id": 1}])
    root, begun, made = root_of(workshop, stream), list[CrashPoint](), list[CheckpointCopy | None]()
    files, store = _Slow(root), LocalCheckpointFiles(copies_location(root))

    def copy() -> None:
        made.append(copy_checkpoint(files, store, now=datetime.now(UTC), token=1, require=lambda: None))

    copying = threading.Thread(target=copy)

    def die_in_the_third(point: CrashPoint) -> None:
        if point is CrashPoint.BATCH_BEGUN:
            begun.append(point)
        if len(begun) == 2 and point is CrashPoint.STAGED:
            copying.start()
            files.at_last.wait()
        if len(begun) == 3:
            files.may_list.set()
            copying.join()
            raise _KilledError

    with pytest.raises(_KilledError):
        workshop.run(stream, is_recorded=True, reached=die_in_the_third)
    (torn,) = made
    assert torn is not None
    assert (torn.committed, torn.planned) == (0, 1)
    assert {one.path.split("/")[2].partition("-")[0] for one in torn.files if one.path.startswith("static/")} == {"2"}

    assert planned_without_checkpoint(workshop, stream).is_refused
