"""A stream whose checkpoint was set back behind its table does not start, so that no row is passed over.

Every test run has all of it on a real catalog without Spark (`test_older_checkpoints.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.streams_of_tables import COLUMNS, dying_at, reading, writing
from tests.fixtures.workshop import Workshop

from sluice.errors import CheckpointError, DivergedError
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import newest_run
from sluice.publication.crash_points import CrashPoint

BATCHES = 6


@pytest.fixture
def stream(workshop: Workshop) -> str:
    """A stream that has read six files, a batch each, and stands at batch 5."""
    name = f"s{workshop.namespace}"
    inputs = reading(workshop.declare_table("source", COLUMNS))
    inputs["records"]["stream"]["iceberg"]["max_files_per_batch"] = 1
    workshop.declare_stream(
        name,
        sql="SELECT id, word FROM records",
        inputs=inputs,
        outputs=writing(workshop.declare_table("target", COLUMNS)),
        mode="continuous",
        trigger={"processing_time": "100 milliseconds"},
    )
    for number in range(BATCHES):
        workshop.append("source", [{"id": number, "word": "x"}])
    workshop.run(name, stop_when=lambda batch: batch.key.batch == BATCHES - 1)
    return name


def set_back(checkpoint: Path, *, to: int) -> None:
    """Leave of a checkpoint what a backup has that was taken after a batch."""
    for log in ("offsets", "commits"):
        for file in (checkpoint / log).iterdir():
            number = file.name.removeprefix(".").removesuffix(".crc")
            if number.isdigit() and int(number) > to:
                file.unlink()


def remove(file: Path) -> None:
    """Remove a file with the checksum that lies beside it."""
    file.unlink()
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def ids(workshop: Workshop) -> list[int]:
    return [row["id"] for row in workshop.rows("target")]


@pytest.mark.full
def test_a_checkpoint_from_a_backup_is_refused_with_the_difference(workshop: Workshop, stream: str) -> None:
    workshop.append("source", [{"id": BATCHES, "word": "new"}])
    for back in (1, 2, 5):
        set_back(workshop.checkpoint(stream), to=BATCHES - 1 - back)
        batches = "1 batch" if back == 1 else f"{back} batches"
        with pytest.raises(DivergedError, match=rf"{batches} more, up to 5, with {back} rows, from .*snapshot_id"):
            workshop.run(stream, stop_after_batches=1)

    assert ids(workshop) == list(range(BATCHES))
    run = newest_run(workshop.ledger, stream)
    assert run is not None
    assert (run.state, run.exit_code) == (RunState.FAILED, 1)
    assert str(run.reason).startswith("DivergedError: The checkpoint of stream")


@pytest.mark.full
def test_newest_files_that_a_power_failure_took_are_noticed(workshop: Workshop, stream: str) -> None:
    checkpoint = workshop.checkpoint(stream)
    workshop.append("source", [{"id": BATCHES, "word": "new"}])
    newest = checkpoint / "offsets" / str(BATCHES - 1)
    kept = newest.read_bytes()
    remove(newest)
    newest.write_bytes(b"")
    with pytest.raises(CheckpointError, match="offset log of the checkpoint cannot be read"):
        workshop.run(stream, stop_after_batches=1)
    remove(newest)
    with pytest.raises(DivergedError, match="1 batch more, up to 5"):
        workshop.run(stream, stop_after_batches=1)

    newest.write_bytes(kept)
    workshop.run(stream, stop_after_batches=1)
    assert ids(workshop) == list(range(BATCHES + 1))


@pytest.mark.full
def test_a_staged_batch_whose_offsets_were_lost_is_read_again(workshop: Workshop, stream: str) -> None:
    workshop.append("source", [{"id": BATCHES, "word": "staged"}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, reached=dying_at(CrashPoint.STAGED))
    set_back(workshop.checkpoint(stream), to=BATCHES - 1)
    workshop.append("source", [{"id": BATCHES + 1, "word": "new"}])

    workshop.run(stream, stop_when=lambda batch: batch.key.batch == BATCHES + 1)

    assert ids(workshop) == list(range(BATCHES + 2))
