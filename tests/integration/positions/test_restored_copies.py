"""`sluice stream repair` from the copy of a stop, killed at its steps and typed again. No Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.fixtures.drill import sampled
from tests.integration.cli.test_operations import Copier, copier, typed
from tests.integration.positions.test_repair_commands import QUERY, content, filled, killed, read_ends

from sluice.checkpoints.checkpoint_copies import CheckpointCopy, copies_location, copy_checkpoint
from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.ledger.connection import database_time
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.generations import find_generation
from sluice.publication.crash_points import CrashPoint

__all__ = ["copier"]


FILES = 10
"""The files of the checkpoint that has lost its state, with Hadoop's checksums: they go first."""

CHANGES = FILES + 7
"""Then the state, the entries of the two logs and `metadata` come."""

OPEN = CHANGES - 2
"""All is there but the newest commit and `metadata`: Spark runs that batch again, as behind a driver that has died."""


def copied(copier: Copier, root: Path) -> CheckpointCopy:
    """The copy that a stop has made."""
    files, store = (LocalCheckpointFiles(one) for one in (root.as_uri(), copies_location(root.as_uri())))
    copy = copy_checkpoint(files, store, now=database_time(copier.ledger), require=lambda: None)
    assert copy is not None
    return copy


@pytest.mark.parametrize("occurrence", sampled(range(1, CHANGES + 1), {1, FILES + 1, OPEN, CHANGES - 1, CHANGES}))
def test_lost_state_comes_from_the_copy_of_the_stop(
    copier: Copier, occurrence: int, capsys: pytest.CaptureFixture[str]
) -> None:
    copier.bench.publish(copier.bench.stage(1, [3], start_offsets=read_ends(copier), end_offsets=read_ends(copier)))
    root = filled(copier, batches=2)
    wanted = {path: entry for path, entry in content(root).items() if not path.rpartition("/")[2].startswith(".")}
    copy = copied(copier, root)
    shutil.rmtree(root / "state")
    assert len(content(root)) == FILES
    words = ["stream", "repair", copier.stream]

    code, shown, errors = typed([*words, "--dry-run"], capsys)
    assert (code, f"with {len(copy.files)} files behind batch 1" in shown) == (0, True), errors
    assert "0 rows are read again, 0 are lost, 0 are doubled." in shown
    killed(copier, CrashPoint.FILE_CHANGED, occurrence)
    assert ("metadata" in content(root)) is (occurrence == CHANGES), "no run starts from what is half restored"
    code, _, errors = typed([*words, "--yes"], capsys)

    assert code == 0, errors
    done = content(root)
    assert set(wanted) - set(done) == ({"commits/1"} if occurrence == OPEN else set())
    assert {path: entry.replace(" ", "") for path, entry in done.items()} == {
        path: entry.replace(" ", "") for path, entry in wanted.items() if path in done
    }
    events = recent_events(copier.ledger, EventSubject.STREAM, copier.stream, limit=5)
    assert [one.evidence["restores_copy"] for one in events if one.action == "repair"] == [
        *([copy.clock] if occurrence < OPEN else [] if occurrence == CHANGES else [None]),
        copy.clock,
    ]


def test_where_the_ledger_is_lost_too_the_copy_says_that_it_has_state_and_whose_it_is(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    root = filled(copier, batches=1)
    copied(copier, root)
    shutil.rmtree(root)
    with copier.ledger.transaction() as connection:
        for table in ("batches", "generations"):
            connection.execute(text(f"DELETE FROM {table} WHERE stream = :s"), {"s": copier.stream})  # noqa: S608

    code, said, errors = typed(["stream", "repair", copier.stream, "--yes"], capsys)

    assert (code, "Put the copy of " in said) == (0, True), errors
    assert set(content(root)) >= {"state/0/0/1.delta", "offsets/0", "commits/0", "metadata"}
    known = find_generation(copier.ledger, copier.stream)
    assert known is not None
    assert known.query_id == QUERY, "the checkpoint that is put in place is that of this query"
