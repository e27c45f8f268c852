"""`sluice stream repair` from the copy of a stop, killed at its steps and typed again. No Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.fixtures.drill import first_of, sampled
from tests.integration.cli.test_operations import Copier, copier, typed
from tests.integration.positions.test_repair_commands import QUERY, content, filled, killed, read_ends

from sluice.checkpoints.checkpoint_copies import (
    CheckpointCopy,
    Rehearsal,
    copies_location,
    copy_checkpoint,
    record_rehearsal,
)
from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import database_time
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.generations import find_generation
from sluice.ledger.recorded_checks import CheckpointFinding, CheckpointProperty
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, record_end
from sluice.positions.check_checkpoints import check_checkpoints
from sluice.publication.crash_points import CrashPoint
from sluice.settings import load_settings

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
    copy = copy_checkpoint(files, store, now=database_time(copier.ledger), token=1, require=lambda: None)
    assert copy is not None
    return copy


@pytest.mark.parametrize(
    "occurrence", sampled(range(1, CHANGES + 1), {OPEN}, full={1, FILES + 1, CHANGES - 1, CHANGES})
)
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
        for statement in ("DELETE FROM batches WHERE stream = :s", "DELETE FROM generations WHERE stream = :s"):
            connection.execute(text(statement), {"s": copier.stream})

    code, said, errors = typed(["stream", "repair", copier.stream, "--yes"], capsys)

    assert (code, "Put the copy of " in said) == (0, True), errors
    assert set(content(root)) >= {"state/0/0/1.delta", "offsets/0", "commits/0", "metadata"}
    known = find_generation(copier.ledger, copier.stream)
    assert known is not None
    assert known.query_id == QUERY, "the checkpoint that is put in place is that of this query"


def published(copier: Copier, batch: int, run_id: str) -> None:
    """Publish a batch, of which the ledger knows the run."""
    ends = read_ends(copier)
    copier.bench.publish(copier.bench.stage(batch, [batch], start_offsets=ends, end_offsets=ends))
    record_batch(
        copier.ledger,
        BatchObservation(
            key=PublicationKey(stream=copier.stream, generation=1, batch=batch),
            run_id=run_id,
            started_at=database_time(copier.ledger),
            duration_ms=1,
            input_rows=1,
            published_rows={"copies": 1},
            end_offsets=json.loads(ends),
        ),
    )


@pytest.mark.parametrize("is_same", first_of(True, False))
def test_behind_an_older_copy_the_next_run_is_left_the_batches_between_of_the_same_declaration(
    copier: Copier, is_same: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    root = filled(copier, batches=1)
    copied(copier, root)
    shutil.rmtree(root)
    digest = load_declarations(load_settings().pipelines).stream(copier.stream).digest if is_same else "ab" * 32
    run = admit_run(
        copier.ledger, stream=copier.stream, mode="incremental", declaration_digest=digest, launched_by="a test"
    )
    for batch in (1, 2):
        published(copier, batch, run.run_id)
    record_end(copier.ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="done")
    words = ["stream", "repair", copier.stream]

    code, shown, errors = typed([*words, "--dry-run"], capsys)

    if not is_same:
        assert (code, "run by another version of the declaration" in shown) == (1, True), (shown, errors)
        return
    assert (code, "The next start runs the batches 1 to 2 again" in shown) == (0, True), (shown, errors)
    assert "2 rows are read again, 0 are lost, 0 are doubled." in shown
    code, _, errors = typed([*words, "--yes"], capsys)
    assert code == 0, errors
    assert set(content(root)) == {
        *("metadata", "offsets/0", "commits/0", "state/0/0/1.delta"),
        *("replay/1", "replay/2"),
    }
    assert "agree: nothing is written." in typed([*words, "--dry-run"], capsys)[1]
    code, _, errors = typed(["stream", "continue", copier.stream, "--dry-run"], capsys)
    assert (code, "the batches 1 to 2 are still to be run again" in errors) == (2, True), errors


@pytest.mark.full
def test_the_newest_copy_is_shown_for_a_stream_with_state(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["stream", "show", copier.stream]
    assert "of its state" not in typed(words, capsys)[1]
    assert json.loads(typed([*words, "--json"], capsys)[1])["state_copies"] is None
    root = filled(copier, batches=2)
    assert "its state has no copy yet: the next orderly stop makes one" in typed(words, capsys)[1]

    copy = copied(copier, root)

    _, shown, errors = typed(words, capsys)
    made = f"made {copy.copied_at:%Y-%m-%d %H:%M:%S} UTC; 1 kept; not rehearsed yet"
    assert f"the newest copy of its state stands behind batch 1, 0 before the newest one, {made}" in shown, errors
    (listed,) = json.loads(typed([*words, "--json"], capsys)[1])["state_copies"]["copies"]
    assert (listed["batch"], listed["files"], listed["bytes"]) == (1, 7, sum(one.size_bytes for one in copy.files))
    assert listed["age_seconds"] >= 0
    assert listed["rehearsal"] is None
    store = LocalCheckpointFiles(copies_location(root.as_uri()))
    for problem, words_of_it in (
        ("", " UTC, in 12 s"),
        ("files are gone", "it does not do, files are gone"),
    ):
        record_rehearsal(store, copy, Rehearsal(rehearsed_at=copy.copied_at, batch=1, seconds=12.2, problem=problem))
        assert words_of_it in typed(words, capsys)[1]
        (listed,) = json.loads(typed([*words, "--json"], capsys)[1])["state_copies"]["copies"]
        assert listed["rehearsal"]["problem"] == problem


@pytest.mark.full  # every run: what a repair says of them
def test_a_check_says_what_the_copies_are_worth(copier: Copier) -> None:
    root = filled(copier, batches=2)

    def found() -> CheckpointFinding:
        (seen,) = check_checkpoints(
            copier.ledger, load_declarations(load_settings().pipelines), load_settings(), streams=[copier.stream]
        )
        return next(one for one in seen.findings if one.name is CheckpointProperty.COPIES)

    assert (found().healthy, found().message) == (True, "its state has no copy yet: the next orderly stop makes one")
    copy = copied(copier, root)
    assert (found().healthy, "0 before the newest one" in found().message) == (True, True)
    store = LocalCheckpointFiles(copies_location(root.as_uri()))
    record_rehearsal(store, copy, Rehearsal(rehearsed_at=copy.copied_at, batch=1, seconds=1, problem="files are gone"))

    assert (found().healthy, "it does not do, files are gone" in found().message) == (False, True)
