"""What keeps a state from coming back whose batches the tables have not any more: copies and batches to run again. No
Spark."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import text as sql
from tests.fixtures.drill import first_of
from tests.integration.cli.test_operations import Copier, copier, typed
from tests.integration.positions.test_adoption_dangers import set_back
from tests.integration.positions.test_repair_commands import content, filled, folder
from tests.integration.positions.test_restored_copies import copied
from tests.integration.positions.test_restored_copies import published as publish_next
from tests.integration.positions.test_rewinds import NEWEST_TOKEN, killed, may_start, published, record, rewound, stage

from sluice.checkpoints.checkpoint_copies import copies_location, copy_checkpoint, list_copies
from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.declarations.load_declarations import load_declarations
from sluice.errors import UsageError
from sluice.ledger.batches import recent_batches
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, record_end
from sluice.positions.rewind_stream import rewind_stream
from sluice.publication.crash_points import CrashPoint
from sluice.settings import load_settings

__all__ = ["copier"]


def published_all(copier: Copier) -> None:
    """Batches 0 to 3 are in the tables, with a checkpoint that has committed them."""
    published(copier)
    copier.bench.publish(copier.bench.staged()[-1])
    copier.bench.clear()


def with_copy(copier: Copier) -> CheckpointFiles:
    """Copy the checkpoint of the stream as it is; the copies."""
    checkpoint, store = (
        open_checkpoint_files(one, load_settings().object_store)
        for one in (folder(copier).as_uri(), copies_location(folder(copier).as_uri()))
    )
    copy_checkpoint(checkpoint, store, now=datetime.now(tz=UTC), token=1, require=lambda: None)
    return store


def left_to_replay(copier: Copier) -> list[int]:
    """The batches that the next run would take the state through."""
    return sorted(int(path.removeprefix("replay/")) for path in content(folder(copier)) if path.startswith("replay/"))


def set_back_to(copier: Copier, place: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Set main back to one of its snapshots, decide that it is read again, and repair the checkpoint."""
    own = [one.snapshot_id for one in copier.bench.target().snapshots()]
    set_back(copier.bench, own[place])
    for words in (["table", "adopt", copier.bench.output.target, "--reread"], ["stream", "repair", copier.stream]):
        code, _, errors = typed([*words, "--yes"], capsys)
        assert code == 0, errors


@pytest.mark.full  # every run: the same after a rewind that was killed
def test_copies_go_also_where_the_checkpoint_stands_there_already(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older checkpoint is put back, and the stream taken back to it. Batches 2 and 3 are read again to the same
    ends, by other code, and then the checkpoint is lost."""
    published_all(copier)
    store = with_copy(copier)
    shutil.rmtree(folder(copier))
    filled(copier, batches=2)

    code, _, errors = rewound(copier, capsys, "--yes", to=1)

    assert code == 0, errors
    assert list_copies(store) == ()
    later = copier.bench.as_run(NEWEST_TOKEN)
    later.begin()
    for number in (2, 3):
        later.publish(stage(replace(copier, bench=later), number, 70 + number))
    shutil.rmtree(folder(copier))
    assert "Put the copy of" not in typed(["stream", "repair", copier.stream, "--dry-run"], capsys)[1]


@pytest.mark.parametrize("occurrence", first_of(2, 0))
def test_a_copy_that_is_left_behind_by_an_interrupted_rewind_is_not_restored(
    copier: Copier, occurrence: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """As above, but the rewind was killed behind the commits on the table, and a repair has ended it as the refused
    start says. Without a rewind the copy is restored."""
    published_all(copier)
    store = with_copy(copier)
    if occurrence:
        shutil.rmtree(folder(copier))
        filled(copier, batches=2)
        killed(copier, CrashPoint.COMMITTED, occurrence, to=1)
        assert not may_start(copier)
        code, said, errors = typed(["stream", "repair", copier.stream, "--yes"], capsys)
        assert (code, "Forget 1 later batches in the ledger" in said, may_start(copier)) == (0, True, True), errors
        assert [one.key.batch for one in recent_batches(copier.ledger, copier.stream, 9)] == [1, 0]
        later = copier.bench.as_run(NEWEST_TOKEN)
        later.begin()
        for number in (2, 3):
            later.publish(stage(replace(copier, bench=later), number, 70 + number))
    assert len(list_copies(store)) == (occurrence == 0)
    shutil.rmtree(folder(copier))

    shown = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)[1]

    assert ("Put the copy of" in shown) is (occurrence == 0), shown


@pytest.mark.full  # every run: a rewind that was killed there, and a repair
def test_copies_go_with_the_second_try_of_a_rewind(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    """The checkpoint stands there already, and an older copy of the ledger does not know the later batches."""
    published_all(copier)
    store = with_copy(copier)
    shutil.rmtree(folder(copier))
    filled(copier, batches=2)
    with copier.ledger.transaction() as connection:
        connection.execute(sql("DELETE FROM batches WHERE stream = :s AND batch > 1"), {"s": copier.stream})
    killed(copier, CrashPoint.COMMITTED, 2, to=1)
    assert len(list_copies(store)) == 1

    code, _, errors = rewound(copier, capsys, "--yes", to=1)

    assert (code, may_start(copier)) == (0, True), errors
    assert list_copies(store) == ()


@pytest.mark.full  # every run: a rewind that was killed behind its commits
def test_copies_go_before_the_batches_that_are_only_staged(copier: Copier) -> None:
    """Batch 3 waits behind the mark, and the rewind that discards it is killed at once: no commit on the table shows
    that the copy is of a batch that is planned again as another one."""
    published(copier)
    store = with_copy(copier)
    shutil.rmtree(folder(copier))
    filled(copier, batches=3)

    killed(copier, CrashPoint.CLEARED, 1, to=2)

    assert list_copies(store) == ()


@pytest.mark.full  # every run: such a commit before an undo (`test_adoptions.py`)
def test_copies_stay_where_the_table_cannot_go_back(copier: Copier) -> None:
    """Another one commits between the plan and the commit."""
    published_all(copier)
    store = with_copy(copier)

    def commit_before(place: CrashPoint) -> None:
        if place is CrashPoint.BEGUN:
            copier.bench.write_as_another(100)

    settings = load_settings()
    with pytest.raises(UsageError, match="was not set to snapshot"):
        rewind_stream(
            copier.ledger, copier.bench.catalog, load_declarations(settings.pipelines), settings,
            stream=copier.stream, batch=1, asked_by="a test", reached=commit_before,
        )  # fmt: skip

    assert len(list_copies(store)) == 1
    assert may_start(copier)


@pytest.mark.full  # every run: `test_restore_copy.py`
def test_copies_go_with_an_adoption_that_needs_no_repair(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    """The checkpoint is an older copy, and stands where the table was set back to."""
    published_all(copier)
    store = with_copy(copier)
    shutil.rmtree(folder(copier))
    filled(copier, batches=2)
    set_back(copier.bench, copier.bench.target().snapshots()[-3].snapshot_id)

    code, _, errors = typed(["table", "adopt", copier.bench.output.target, "--reread", "--yes"], capsys)

    assert (code, may_start(copier)) == (0, True), errors
    assert list_copies(store) == ()
    assert [one.key.batch for one in recent_batches(copier.ledger, copier.stream, 9)] == [1, 0]


@pytest.mark.full  # every run: `test_restore_copy.py`
def test_copies_go_also_with_a_repair_behind_an_adoption(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    published_all(copier)
    store = with_copy(copier)

    set_back_to(copier, -3, capsys)

    assert list_copies(store) == ()


@pytest.mark.full  # every run: `test_restore_copy.py`
def test_a_copy_that_has_planned_what_is_planned_again_goes(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    published_all(copier)
    root = folder(copier)
    kept = {path: (root / path).read_text() for path in content(root)}
    for path in ("commits/2", "commits/3", "offsets/3", "state/0/0/3.delta", "state/0/0/4.delta"):
        (root / path).unlink()
    store = with_copy(copier)
    (copy,) = list_copies(store)
    assert (copy.committed, copy.planned) == (1, 2)
    for path, text in kept.items():
        (root / path).write_text(text)

    code, _, errors = rewound(copier, capsys, "--yes", to=1)

    assert code == 0, errors
    assert list_copies(store) == ()


def behind_a_copy(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    """A repair has left batches 1 to 4 to run again behind a copy of batch 0."""
    root = filled(copier, batches=1)
    copied(copier, root)
    shutil.rmtree(root)
    digest = load_declarations(load_settings().pipelines).stream(copier.stream).digest
    run = admit_run(
        copier.ledger, stream=copier.stream, mode="incremental", declaration_digest=digest, launched_by="a test"
    )
    for batch in (1, 2, 3, 4):
        publish_next(copier, batch, run.run_id)
    record_end(copier.ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="done")
    code, _, errors = typed(["stream", "repair", copier.stream, "--yes"], capsys)
    assert code == 0, errors
    assert left_to_replay(copier) == [1, 2, 3, 4]


@pytest.mark.parametrize("to", first_of(1, 0))
def test_a_rewind_takes_back_what_a_repair_has_left_to_run_again(
    copier: Copier, to: int, capsys: pytest.CaptureFixture[str]
) -> None:
    behind_a_copy(copier, capsys)

    code, _, errors = rewound(copier, capsys, "--yes", to=to)

    assert code == 0, errors
    assert left_to_replay(copier) == [*range(1, to + 1)]
    assert may_start(copier)


@pytest.mark.full  # every run: one behind it
def test_a_rewind_into_what_is_left_to_run_again_is_refused(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    behind_a_copy(copier, capsys)

    code, _, errors = rewound(copier, capsys, "--yes", to=2)

    assert (code, left_to_replay(copier)) == (1, [1, 2, 3, 4])
    assert "2 batches with 2 rows would be missing" in errors


@pytest.mark.full  # every run: a rewind
def test_so_does_a_repair_behind_a_table_that_was_set_back(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    behind_a_copy(copier, capsys)
    copier.bench.clear()

    set_back_to(copier, -4, capsys)

    assert copier.bench.mark().batch == 1
    assert left_to_replay(copier) == [1]
    assert may_start(copier)


@pytest.mark.full  # every run: `test_judge_position.py`
def test_a_rewind_without_its_generation_in_the_ledger_is_refused(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is known then of rejected batches and of inputs, and no start would accept what it leaves."""
    published_all(copier)
    before = copier.bench.ids()
    forgotten(copier)

    code, shown, errors = rewound(copier, capsys, "--yes", to=1)

    assert code != 0
    assert f"sluice stream repair {copier.stream}" in shown + errors
    assert copier.bench.ids() == before


@pytest.mark.full  # every run: a lost checkpoint
def test_a_lost_state_of_which_there_is_a_copy_is_repaired_before_it_goes_back(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    published_all(copier)
    with_copy(copier)
    shutil.rmtree(folder(copier) / "state")

    _, _, errors = rewound(copier, capsys, "--yes", to=1)

    assert f"`sluice stream repair {copier.stream} --dry-run`" in errors, errors
    assert "reset" not in errors
    assert typed(["stream", "repair", copier.stream, "--yes"], capsys)[0] == 0
    code, _, errors = rewound(copier, capsys, "--yes", to=1)
    assert code == 0, errors
    assert may_start(copier)


@pytest.mark.full  # every run: `test_repair_decision.py`
def test_a_state_that_is_not_kept_so_far_back_asks_for_a_later_batch(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost, and the stream runs as it is."""
    published_all(copier)
    states = folder(copier) / "state/0/0"
    (states / "1.delta").unlink()
    (states / "2.delta").rename(states / "2.snapshot")

    _, _, errors = rewound(copier, capsys, "--yes")

    assert "Choose a later batch, to which it can be taken back" in errors, errors
    assert "reset" not in errors
    assert rewound(copier, capsys, "--yes", to=1)[0] == 0


@pytest.mark.full  # every run counts without a copy
def test_a_table_that_is_read_again_counts_the_copy_of_a_lost_state(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    published_all(copier)
    with_copy(copier)
    record(copier, 3)
    shutil.rmtree(folder(copier) / "state")
    set_back(copier.bench, copier.bench.target().snapshots()[-3].snapshot_id)
    words = ["table", "adopt", copier.bench.output.target, "--reread", "--dry-run"]
    assert "and 2 input rows are read again." in typed(words, capsys)[1]

    set_back_to(copier, -3, capsys)

    assert may_start(copier)
    assert "state/0/0/2.delta" in content(folder(copier))


def test_a_lost_checkpoint_is_repaired_before_its_stream_continues_past_a_gap(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    published_all(copier)
    with_copy(copier)
    shutil.rmtree(folder(copier))

    code, _, errors = typed(["stream", "continue", copier.stream, "--dry-run"], capsys)

    assert (code, f"`sluice stream repair {copier.stream} --dry-run`" in errors) == (2, True), errors


def forgotten(copier: Copier) -> None:
    """An older copy of the ledger knows neither the batches nor the generation."""
    with copier.ledger.transaction() as connection:
        for statement in ("DELETE FROM batches WHERE stream = :s", "DELETE FROM generations WHERE stream = :s"):
            connection.execute(sql(statement), {"s": copier.stream})


@pytest.mark.full  # every run: `test_repair_commands.py`
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_forgotten_generation_is_written_back_also_where_the_state_is_lost(
    copier: Copier, is_kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it every other command is refused. is_kept: whether an earlier state is there, to which it can go back;
    otherwise a reset is what is left."""
    published_all(copier)
    states = folder(copier) / "state/0/0"
    for version in (3, 4) if is_kept else (1, 2, 3, 4):
        (states / f"{version}.delta").unlink()
    forgotten(copier)
    _, _, errors = rewound(copier, capsys, "--yes", to=1)
    assert f"`sluice stream repair {copier.stream} --dry-run`" in errors, errors
    assert "reset" not in errors
    code, _, errors = typed(["stream", "reset", copier.stream, "--dry-run"], capsys)
    assert (code, f"`sluice stream repair {copier.stream} --dry-run`" in errors) == (2, True), errors

    code, said, errors = typed(["stream", "repair", copier.stream, "--yes"], capsys)

    assert (code, "Write generation 1 into the ledger" in said) == (0, True), said + errors
    assert f"The checkpoint of {copier.stream} cannot be written back: its state is" in said
    assert f"`sluice stream reset {copier.stream} --dry-run`" in said
    assert f"Then: `sluice stream start {copier.stream}`" not in said
    code, _, errors = rewound(copier, capsys, "--yes", to=1)
    assert (code == 0, may_start(copier)) == (is_kept, is_kept), errors
    if not is_kept:
        assert f"`sluice stream reset {copier.stream} --dry-run`" in errors
        code, said, errors = typed(["stream", "reset", copier.stream, "--yes"], capsys)
        assert code == 0, said + errors
