"""How far a stream is published in a table stays known, though an erasure cuts the history that shows it. No Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from tests.fixtures.erasing import ANN, Household, home
from tests.integration.erasure.test_erasure_refusals import refused

from sluice.errors import RolledBackError, UnhealthyError
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.generations import current_generation, record_query_id
from sluice.ledger.runs import admit_run
from sluice.operations import RefusalReason
from sluice.publication.crash_points import CrashPoint
from sluice.publication.marks import load_target_state

__all__ = ["home"]

OF_CUT = 3
"""Which commit of an erasure is the cut of the table: the first takes rows out, the second is of the staging table."""


@dataclass(slots=True)
class Once:
    """Does something right before a commit is sent. times: before which."""

    does: Callable[[], object]
    times: int = OF_CUT
    passed: int = 0

    def __call__(self, point: CrashPoint) -> None:
        self.passed += point is CrashPoint.CHECKED
        if point is CrashPoint.CHECKED and self.passed == self.times:
            self.does()


def publish(home: Household, batch: int, kind: str) -> int:
    """Publish a batch of one row, and clear it; the snapshot."""
    home.bench.publish(home.bench.stage(batch, [batch], kind=kind))
    home.bench.clear()
    return home.head()


def roll_back(home: Household, snapshot_id: int) -> None:
    """Set main back."""
    home.table().manage_snapshots().rollback_to_snapshot(snapshot_id).commit()


def test_a_batch_that_is_merged_before_the_cut_is_not_merged_again(home: Household) -> None:
    home.declare()
    home.bench.begin()
    publish(home, 0, ANN)
    home.append(("Bob", 2))
    merges = Once(lambda: home.bench.merge_in(home.bench.stage(1, [3]), [3]))
    home.erasure(reached=merges).erase()
    assert merges.passed >= merges.times
    assert home.rows() == [("Bob", 2), ("merged", 3)]
    assert home.bench.mark().batch == 1


@pytest.mark.full  # every run: before the erasure
def test_a_table_that_is_rolled_back_before_the_cut_is_noticed(home: Household) -> None:
    home.declare()
    home.bench.begin()
    first = publish(home, 0, "Bob")
    publish(home, 1, ANN)
    publish(home, 2, "Carl")
    with pytest.raises(RolledBackError):
        home.erasure(reached=Once(lambda: roll_back(home, first))).erase()
    with pytest.raises(RolledBackError):
        load_target_state(home.bench.open_catalog(), home.bench.output)


def test_a_table_that_was_rolled_back_behind_a_mark(home: Household) -> None:
    home.declare()
    home.bench.begin()
    first = publish(home, 0, ANN)
    home.append(("Bob", 2))
    publish(home, 1, "Carl")
    roll_back(home, first)
    home.append(("Bob", 2))
    assert refused(home) == [RefusalReason.OTHER_REMEDY]
    (refusal,) = home.erasure().plan().refusals
    assert "sluice table adopt" in refusal.next_step


@pytest.mark.full  # a mark behind which the table was rolled back is in every run
def test_a_mark_that_was_removed(home: Household) -> None:
    home.declare()
    home.bench.begin()
    publish(home, 0, ANN)
    home.append(("Bob", 2))
    with home.table().transaction() as transaction:
        transaction.remove_properties(home.bench.output.mark_property)
    assert refused(home) == [RefusalReason.OTHER_REMEDY]
    assert home.bench.as_run(2).begin().batch == 0
    home.bench.as_run(2).clear()
    assert refused(home) == []


def test_a_table_that_was_rolled_back_behind_a_batch_of_a_sink(home: Household) -> None:
    home.declare()
    declare_direct(home)
    first = home.append((ANN, 1), ("Bob", 2))
    generation = current_generation(home.ledger, home.writer, checkpoints_root=home.settings.checkpoints)
    record_query_id(home.ledger, home.writer, generation.generation, "query")
    record(home, home.append(("Carl", 3)))
    assert refused(home) == []
    roll_back(home, first)
    assert refused(home) == [RefusalReason.OTHER_REMEDY]


def declare_direct(home: Household) -> None:
    """Let Iceberg's own sink write the table."""
    file = home.folder / f"{home.writer}.stream.yaml"
    declared: dict[str, Any] = yaml.safe_load(file.read_text())
    declared["outputs"]["main"]["iceberg"]["delivery"] = "direct"
    file.write_text(yaml.safe_dump(declared))


def record(home: Household, snapshot_id: int) -> None:
    """Record a batch of the writer, which a snapshot has made visible."""
    record_batch(
        home.ledger,
        BatchObservation(
            key=PublicationKey(stream=home.writer, generation=1, batch=0),
            run_id="a-run",
            started_at=datetime.now(UTC),
            duration_ms=1,
            input_rows=1,
            published_rows={"main": 1},
            snapshot_ids={"main": snapshot_id},
        ),
    )


def test_a_writer_that_begins_before_history_is_cut(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))

    def begin(point: CrashPoint) -> None:
        if point is CrashPoint.COMMITTED:
            admit_run(home.ledger, stream=home.writer, mode="incremental", declaration_digest="d", launched_by="a test")

    with pytest.raises(UnhealthyError, match="Meanwhile: "):
        home.erasure(reached=begin).erase()
    assert len(home.table().snapshots()) == 3
