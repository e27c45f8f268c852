"""How streams keep their state: as declared at the first start, and as the checkpoint has it ever after.

Every test run has the rules (`test_state_settings.py`, `test_compatibility.py`), and streams that keep their state
over restarts (`test_watermarks.py`).
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.workshop import RunResult, Workshop

from sluice.errors import DeclarationError

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)

ONCE = """
    def transform(records):
        return records.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])
"""


def declare(workshop: Workshop, name: str, **state: Any) -> None:
    """A stream that keeps each id once."""
    columns = {"id": "long", "at": "timestamptz"}
    source, target = workshop.declare_table("source", columns), workshop.declare_table("target", columns)
    workshop.declare_stream(
        name,
        python=ONCE,
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={"kept": {"iceberg": {"table": target}}},
        state=state,
    )


def send(workshop: Workshop, *ids: int) -> None:
    """Rows at noon."""
    workshop.append("source", [{"id": number, "at": NOON + timedelta(minutes=number)} for number in ids])


def kept_and_repeated(run: RunResult) -> tuple[int, int]:
    """The rows that a run published and those that it left out, over all its batches."""
    return run.total("kept"), sum(batch.duplicate_rows for batch in run.batches)


def state_files(checkpoint: Path) -> set[str]:
    """The files of the first operator's first part of the state, without their checksums."""
    names = (file.name for file in (checkpoint / "state" / "0" / "0").iterdir() if file.is_file())
    return {name for name in names if not name.startswith(".") and not name.endswith(".crc")}


def parts(checkpoint: Path) -> list[str]:
    """The parts of the first operator's state."""
    return sorted(folder.name for folder in (checkpoint / "state" / "0").iterdir() if folder.name.isdigit())


@pytest.mark.full  # every run has the rule (`test_state_settings.py`)
def test_the_parts_of_the_first_start_stay_and_another_number_is_refused(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sluice_spark.session.state_settings")
    name = f"s{workshop.namespace}"
    declare(workshop, name, shuffle_partitions=3)
    send(workshop, 1)
    workshop.run(name)
    assert parts(workshop.checkpoint(name)) == ["0", "1", "2"]
    assert "shuffle partitions: 3 (declared)" in caplog.messages

    declare(workshop, name)
    send(workshop, 1, 2)
    assert kept_and_repeated(workshop.run(name)) == (1, 1)
    assert "shuffle partitions: 3 (as in the checkpoint, which keeps the number of its first start)" in caplog.messages

    declare(workshop, name, shuffle_partitions=2)
    with pytest.raises(DeclarationError) as refusal:
        workshop.run(name)
    assert refusal.value.problem == (
        "`state.shuffle_partitions`: 2 is declared, but the checkpoint has kept its state as 3 since its first start. "
        "Spark would continue with that and ignore the declaration."
    )
    assert refusal.value.next_step.startswith("Declare 3.")
    assert refusal.value.location.line is not None


@pytest.mark.full  # every run has the rule (`test_compatibility.py`), and the default in every stream with state
@pytest.mark.parametrize(
    ("state", "first", "second", "other"),
    [
        ({"shuffle_partitions": 1}, "1.changelog", "2.changelog", "hdfs"),
        ({"shuffle_partitions": 1, "changelog": False}, "1.zip", "2.zip", "hdfs"),
        ({"shuffle_partitions": 1, "provider": "hdfs"}, "1.delta", "2.delta", "rocksdb"),
    ],
    ids=["changes of RocksDB", "RocksDB", "HDFS-backed"],
)
def test_state_is_kept_in_the_declared_store(
    workshop: Workshop, state: dict[str, Any], first: str, second: str, other: str
) -> None:
    name = f"s{workshop.namespace}"
    declare(workshop, name, **state)
    send(workshop, 1)
    workshop.run(name)
    send(workshop, 1, 2)

    assert kept_and_repeated(workshop.run(name)) == (1, 1)
    assert {first, second} <= state_files(workshop.checkpoint(name))
    declare(workshop, name, **state | {"provider": other})
    with pytest.raises(DeclarationError, match=rf"`state\.provider`: {other} is declared, but the checkpoint has kept"):
        workshop.run(name)
