"""A checkpoint is looked at while a driver writes it: what is seen never contradicts itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from tests.fakes.checkpoint_files import WRITTEN_AT, FakeCheckpointFiles

from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.checkpoints.health_decision import CheckpointExpectation, judge_checkpoint
from sluice.checkpoints.observe_checkpoint import observe_checkpoint

OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"logOffset":1}'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
QUERY_ID = "5b50e120-f7a9-4610-916a-695e361d1bb4"


def files(*, planned: int, committed: int) -> dict[str, str]:
    """A checkpoint that has planned and committed so many batches."""
    return {
        "metadata": f'{{"id":"{QUERY_ID}"}}',
        **{f"offsets/{batch}": OFFSETS for batch in range(planned)},
        **{f"commits/{batch}": COMMIT for batch in range(committed)},
    }


@dataclass
class BusyCheckpointFiles:
    """The checkpoint of a driver that plans and commits two batches between any two looks."""

    location: str = "memory://busy"
    looks: int = field(default=0)

    def list_files(self, folder: str = "") -> Sequence[FileObservation]:
        """Every file below `folder`, two batches later than at the last look."""
        self.looks += 1
        return self._now().list_files(folder)

    def read_text(self, path: str) -> str | None:
        """The text of one file."""
        return self._now().read_text(path)

    def read_bytes(self, path: str) -> bytes | None:
        """The content of one file."""
        return self._now().read_bytes(path)

    def write_text(self, path: str, text: str) -> None:
        """A check writes nothing."""
        raise AssertionError(f"{path} was written")

    def write_bytes(self, path: str, content: bytes) -> None:
        """A check writes nothing."""
        raise AssertionError(f"{path} was written")

    def remove(self, path: str) -> None:
        """A check removes nothing."""
        raise AssertionError(f"{path} was removed")

    def _now(self) -> FakeCheckpointFiles:
        return FakeCheckpointFiles(files(planned=2 * self.looks + 1, committed=2 * self.looks))


def problems(checkpoint: BusyCheckpointFiles | FakeCheckpointFiles) -> Mapping[str, str]:
    """What is found of a live stream's checkpoint, by property."""
    expected = CheckpointExpectation(
        stream="silver", generation=1, query_id=QUERY_ID, has_batches=True, is_live=True, longest_batch_seconds=300
    )
    seen = judge_checkpoint(
        expected=expected, seen=observe_checkpoint(checkpoint), now=WRITTEN_AT + timedelta(seconds=5)
    )
    return {finding.name: finding.message for finding in seen.problems}


def test_a_driver_at_full_speed_is_healthy() -> None:
    assert problems(BusyCheckpointFiles()) == {}


def test_two_uncommitted_batches_are_a_problem_when_no_one_is_quick() -> None:
    assert set(problems(FakeCheckpointFiles(files(planned=5, committed=3)))) == {"commits_follow_offsets"}


def test_only_the_few_files_that_are_judged_are_read() -> None:
    seen = observe_checkpoint(FakeCheckpointFiles(files(planned=100, committed=100)))

    assert len(seen.files) == 201
    assert sorted(seen.texts) == sorted(
        ["metadata", *(f"{log}/{batch}" for log in ("offsets", "commits") for batch in (97, 98, 99))]
    )


def test_a_file_that_disappears_after_it_was_listed_is_not_judged() -> None:
    class PurgedCheckpointFiles(BusyCheckpointFiles):
        def read_text(self, path: str) -> str | None:
            """The text of one file, of which the newest offsets are gone."""
            return None if path.startswith("offsets/") else self._now().read_text(path)

    assert problems(PurgedCheckpointFiles()) == {}
