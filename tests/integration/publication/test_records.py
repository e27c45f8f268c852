"""The ledger gets the counts of what is visible, and gets them however often a driver dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from unittest.mock import patch

from tests.fixtures.publication import Workbench, offsets

from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice.publication.staged_batch import recovered_observation
from sluice_spark.delivery import staged_publication
from sluice_spark.delivery.batch_recording import Recording
from sluice_spark.delivery.staged_publication import PublicationRhythm, StagedPublication
from sluice_spark.delivery.stream_takeover import publish_staged


@dataclass(frozen=True, slots=True)
class LedgerTray:
    """Batches on their way into a ledger that does not answer yet."""

    batches: list[tuple[BatchObservation, Callable[[], None]]] = field(default_factory=list)

    def take(self, batch: BatchObservation, recorded: Callable[[], None]) -> None:
        self.batches.append((batch, recorded))

    def record_all(self) -> list[BatchObservation]:
        taken, self.batches[:] = list(self.batches), []
        for _, recorded in taken:
            recorded()
        return [batch for batch, _ in taken]


def recovered(bench: Workbench) -> list[BatchObservation]:
    """What the next driver would record of the batches that it finds staged and visible."""
    return [recovered_observation(batch) for batch in publish_staged(bench.publisher(), bench.checkpoint(9))[0]]


def publication(bench: Workbench, recording: Recording) -> StagedPublication:
    return StagedPublication(
        publisher=bench.publisher(), recording=recording, rhythm=PublicationRhythm(), on_failure=lambda: None
    )


def test_the_twin_of_a_zombie_is_not_what_the_ledger_gets(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    new = bench.as_run(2)
    new.begin()
    bench.stage(0, [1, 2, 3], end_offsets=offsets(70))  # the zombie does not know yet
    (batch,) = recovered(new)
    assert (batch.published_rows, batch.end_offsets) == ({"main": 1}, {"in": {"topic": {"0": 10}}})
    assert new.ids() == [0]


def test_a_batch_that_comes_again_stays_staged_until_the_ledger_has_it(bench: Workbench) -> None:
    staged = bench.stage(0, [0])
    bench.publish(staged)
    new = bench.as_run(2)
    new.begin()
    tray = LedgerTray()
    recording = Recording(tray.take)
    own = publication(new, recording)
    (batch,) = recovered(new)
    own.note_recovered(batch, comes_again=True)
    with patch.object(staged_publication, "CLEARED_TOGETHER", 1):
        own.before_batch()
        assert new.staged() == (staged,), "after another crash here the staging table alone knows the batch"
        own.note_visible([batch.key], {"main": 1})
        recording.observed(batch)
        own.before_batch()
        assert new.staged() == (staged,)
        assert tray.record_all()[0].key == batch.key
        own.before_batch()
    assert new.staged() == ()


def test_a_record_of_one_generation_does_not_stand_for_the_same_number_of_another() -> None:
    tray = LedgerTray()
    recording = Recording(tray.take)
    left, own = (PublicationKey(stream="s", generation=number, batch=0) for number in (1, 2))
    recording.awaits_repetition(left)
    recording.published(own, {})
    recording.observed(_observation(own))
    tray.record_all()
    assert recording.unrecorded == {left}


def _observation(key: PublicationKey) -> BatchObservation:
    return BatchObservation(
        key=key,
        run_id="r",
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        duration_ms=0,
        input_rows=1,
        published_rows={"main": 1},
        start_offsets={},
        end_offsets={},
    )
