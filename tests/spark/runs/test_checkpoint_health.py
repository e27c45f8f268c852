"""The checkpoint of a real stateful stream, sound and damaged in every way that Spark notices late or never."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.workshop import Workshop

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.checkpoints.health_decision import CheckpointExpectation, judge_checkpoint
from sluice.checkpoints.observe_checkpoint import observe_checkpoint
from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.batches import record_batch
from sluice.ledger.recorded_checks import CheckpointObservation, CheckpointProperty, newest_checkpoint_check
from sluice.positions.check_checkpoints import check_checkpoints

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
TRANSFORMATION = """
    def transform(records):
        return records.dropDuplicatesWithinWatermark(["id"])
"""

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""pyspark talks to Python functions through sockets that it leaves to the garbage collector."""


@pytest.fixture
def stateful(workshop: Workshop) -> tuple[Workshop, str]:
    """A stream that removes duplicates and has run three times."""
    stream = f"s{workshop.namespace}"
    columns = {"id": "long", "at": "timestamptz"}
    source, target = workshop.declare_table("source", columns), workshop.declare_table("target", columns)
    records: dict[str, Any] = {
        "stream": {"iceberg": {"table": source}},
        "watermark": {"column": "at", "delay": "1 hour"},
    }
    workshop.declare_stream(
        stream,
        python=TRANSFORMATION,
        inputs={"records": records},
        outputs={"rows": {"iceberg": {"table": target}}},
    )
    for number in (1, 2, 3):
        workshop.append(source, [{"id": number, "at": NOON}, {"id": number, "at": NOON}])
        for batch in workshop.run(stream).batches:
            record_batch(workshop.ledger, batch)
    return workshop, stream


def check(workshop: Workshop, stream: str) -> CheckpointObservation:
    """Check the checkpoint as the DAG does."""
    declarations = load_declarations(workshop.folder)
    (seen,) = check_checkpoints(workshop.ledger, declarations, workshop.settings, streams=[stream])
    return seen


@pytest.mark.full  # every run: the sound one below, and the damaged ones
def test_a_valid_checkpoint_is_healthy_and_recorded(stateful: tuple[Workshop, str]) -> None:
    workshop, stream = stateful

    seen = check(workshop, stream)

    assert seen.problems == ()
    assert [finding.name for finding in seen.findings] == list(CheckpointProperty)
    state = next(finding for finding in seen.findings if finding.name is CheckpointProperty.STATE_COMPLETE)
    assert "stores are whole at version" in state.message
    recorded = newest_checkpoint_check(workshop.ledger, stream)
    assert recorded is not None
    assert (recorded.healthy, recorded.findings, recorded.newest_batch) == (True, seen.findings, seen.newest_batch)


def test_a_stream_that_was_not_started_has_nothing_to_check(workshop: Workshop) -> None:
    stream = f"s{workshop.namespace}"
    table = workshop.declare_table("rows", {"id": "long"})
    workshop.declare_stream(
        stream,
        sql="SELECT id FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": table}}}},
        outputs={"rows": {"iceberg": {"table": workshop.declare_table("copies", {"id": "long"})}}},
    )

    assert check_checkpoints(workshop.ledger, load_declarations(workshop.folder), workshop.settings) == ()


def newest(folder: Path, log: str) -> Path:
    """The newest file of a log."""
    return folder / log / str(max(int(file.name) for file in (folder / log).iterdir() if file.name.isdigit()))


def newest_state(folder: Path) -> Path:
    """The newest file of a state store."""
    files = [file for file in folder.glob("state/0/0/*") if file.name.partition(".")[0].isdigit()]
    return max((file for file in files if file.suffix != ".crc"), key=lambda file: int(file.name.partition(".")[0]))


def cut(file: Path) -> None:
    """Take the second half of a file away."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def flip(file: Path) -> None:
    """Flip a bit of a file's first structural character, as a bad disk does."""
    content = bytearray(file.read_bytes())
    content[content.index(b"{")] ^= 1
    file.write_bytes(bytes(content))


DAMAGES: list[tuple[str, Callable[[Path], object], CheckpointProperty]] = [
    ("the folder is gone", shutil.rmtree, CheckpointProperty.EXISTS),
    ("metadata is missing", lambda at: (at / "metadata").unlink(), CheckpointProperty.IDENTITY),
    ("metadata is empty", lambda at: (at / "metadata").write_text(""), CheckpointProperty.IDENTITY),
    (
        "metadata is another stream's",
        lambda at: (at / "metadata").write_text(json.dumps({"id": "7c1e7a6e"})),
        CheckpointProperty.IDENTITY,
    ),
    ("the last offsets are empty", lambda at: newest(at, "offsets").write_text(""), CheckpointProperty.FILES_COMPLETE),
    ("the last commit is empty", lambda at: newest(at, "commits").write_text(""), CheckpointProperty.FILES_COMPLETE),
    ("the last offsets are cut", lambda at: cut(newest(at, "offsets")), CheckpointProperty.OFFSETS_READABLE),
    ("the last offsets are flipped", lambda at: flip(newest(at, "offsets")), CheckpointProperty.OFFSETS_READABLE),
    ("the last commit is flipped", lambda at: flip(newest(at, "commits")), CheckpointProperty.COMMITS_READABLE),
    (
        "the offsets are of a newer Spark",
        lambda at: newest(at, "offsets").write_text(newest(at, "offsets").read_text().replace("v1", "v2", 1)),
        CheckpointProperty.OFFSETS_READABLE,
    ),
    ("a commit has no offsets", lambda at: newest(at, "offsets").unlink(), CheckpointProperty.COMMITS_FOLLOW_OFFSETS),
    ("the offsets have a gap", lambda at: (at / "offsets" / "1").unlink(), CheckpointProperty.OFFSETS_CONTIGUOUS),
    ("two commits are missing", lambda at: shutil.rmtree(at / "commits"), CheckpointProperty.COMMITS_FOLLOW_OFFSETS),
    ("a state file is missing", lambda at: newest_state(at).unlink(), CheckpointProperty.STATE_COMPLETE),
    ("a state file is cut", lambda at: cut(newest_state(at)), CheckpointProperty.STATE_COMPLETE),
    ("a state folder is gone", lambda at: shutil.rmtree(at / "state/0/0"), CheckpointProperty.STATE_COMPLETE),
]


def test_every_damage_is_found(stateful: tuple[Workshop, str], tmp_path: Path) -> None:
    """One story for all damages, because the stream that they are made on takes seconds."""
    workshop, stream = stateful
    original = workshop.checkpoint(stream)
    sound = check(workshop, stream)
    assert sound.healthy
    query_id = json.loads((original / "metadata").read_text())["id"]
    expected = CheckpointExpectation(
        stream=stream, generation=1, query_id=query_id, has_batches=True, is_live=False, longest_batch_seconds=300
    )

    found = {}
    for number, (name, damage, _) in enumerate(DAMAGES):
        damaged = tmp_path / str(number)
        shutil.copytree(original, damaged)
        damage(damaged)
        contents = observe_checkpoint(open_checkpoint_files(damaged.as_uri(), workshop.settings.object_store))
        found[name] = {
            finding.name
            for finding in judge_checkpoint(expected=expected, seen=contents, now=sound.checked_at).problems
        }

    assert {name: wanted in found[name] for name, _, wanted in DAMAGES} == {name: True for name, _, _ in DAMAGES}
