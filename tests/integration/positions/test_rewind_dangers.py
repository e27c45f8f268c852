"""What a rewind might lose, double or leave behind without a word. A real catalog and ledger, no Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import yaml
from sqlalchemy import insert, select
from tests.fixtures.drill import first_of
from tests.fixtures.ledger_rows import recent_rule_results
from tests.fixtures.publication import Workbench
from tests.integration.cli.test_operations import Copier, copier
from tests.integration.maintenance.conftest import offset
from tests.integration.positions.test_adoption_dangers import head, set_back
from tests.integration.positions.test_repair_commands import TABLES, filled, folder
from tests.integration.positions.test_rewinds import (
    ends_of,
    published,
    reader_of,
    record,
    require_rewound,
    rewound,
    stage,
)

from sluice.checkpoints.checkpoint_copies import copies_location, copy_checkpoint, list_copies
from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.ledger.announcements import Announcement
from sluice.ledger.batch_findings import RuleCount, RuleResult
from sluice.ledger.batches import BatchObservation, PublicationKey, newest_batch, record_batch
from sluice.ledger.generations import record_identities
from sluice.ledger.held_batches import HeldBatch, hold_batch
from sluice.ledger.runs import admit_run
from sluice.publication.mark_moves import reject_batch
from sluice.publication.staged_batch import StagedBatch, StagedOutput
from sluice.settings import load_settings
from sluice.sources.source_identities import input_table_name, since_batch

__all__ = ["copier"]


def refused(copier: Copier, capsys: pytest.CaptureFixture[str], *more: str, to: int = 0) -> str:
    """What a dry run refuses; the command itself changes nothing then."""
    before = (head(copier.bench), copier.bench.ids())
    code, shown, errors = rewound(copier, capsys, "--dry-run", *more, to=to)
    assert (code, "refused (" in shown) == (1, True), shown + errors
    assert rewound(copier, capsys, "--yes", *more, to=to)[0] != 0
    assert (head(copier.bench), copier.bench.ids()) == before
    return shown


def other(copier: Copier) -> Workbench:
    """The bench of another stream in the same table."""
    output = StagedOutput(stream="other", output="copies", target=copier.bench.output.target)
    return replace(copier.bench, output=output)


@pytest.mark.full  # every run: rows of others (`test_rewinds.py`)
def test_the_mark_of_another_stream_is_not_left_behind(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    published(copier)
    other(copier).begin()

    shown = refused(copier, capsys)

    assert "refused (other_writers): The mark of other.copies was set on" in shown


@pytest.mark.full  # every run: rows of others (`test_rewinds.py`)
def test_a_batch_of_another_stream_without_rows_is_not_hidden(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its stream would stand one batch before its checkpoint."""
    filled(copier, batches=2)
    another = other(copier)
    another.begin()
    copier.bench.publish(stage(copier, 1, 10))
    another.merge_in(another.stage(0, []), [])

    shown = refused(copier, capsys)

    assert "written by others since batch 0" in shown
    assert "0 rows of theirs would be lost" in shown


@pytest.mark.full  # every run: rows of others (`test_rewinds.py`)
def test_a_rollback_that_took_rows_of_others_out_is_adopted_first(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(copier, batches=3)
    copier.bench.publish(stage(copier, 1, 10))
    before = head(copier.bench)
    copier.bench.write_as_another(100, 101)
    copier.bench.publish(stage(copier, 2, 20))
    set_back(copier.bench, before)

    shown = refused(copier, capsys)

    assert f"`sluice table adopt {copier.bench.output.target} --undo --dry-run`" in shown


@pytest.mark.full  # every run: rows of others (`test_rewinds.py`)
def test_a_rollback_by_somebody_that_took_out_no_other_rows_is_taken_in(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    published(copier)
    set_back(copier.bench, copier.bench.target().snapshots()[-2].snapshot_id)

    code, _, errors = rewound(copier, capsys, "--yes")

    assert code == 0, errors
    require_rewound(copier)


@pytest.mark.parametrize("is_rolled_back", first_of(True, False))
@pytest.mark.parametrize("witness", first_of("ledger", "table"))
def test_a_rejected_batch_is_not_read_again(
    copier: Copier, witness: str, is_rolled_back: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its number would count as rejected, with other rows. An older copy of the ledger does not know it."""
    filled(copier, batches=2)
    record(copier, 0)
    first = head(copier.bench)
    reject(copier, stage(copier, 1, 10), is_recorded=witness == "ledger")
    if is_rolled_back:
        set_back(copier.bench, first)

    assert "Batch 1:1" in refused(copier, capsys)


def reject(copier: Copier, staged: StagedBatch, *, is_recorded: bool) -> None:
    """A person has rejected a batch. is_recorded: whether the ledger knows that."""
    bench = copier.bench
    reject_batch(bench.catalog, bench.output, staged, token=bench.run)
    if is_recorded:
        rejected = BatchObservation(
            key=staged.summary.key, run_id="run-1", started_at=datetime.now(tz=UTC), duration_ms=1, input_rows=1,
            published_rows={}, end_offsets=json.loads(ends_of(copier)), is_rejected=True,
        )  # fmt: skip
        record_batch(copier.ledger, rejected)


def test_a_held_batch_is_decided_about_first(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    published(copier)
    key = PublicationKey(stream=copier.stream, generation=1, batch=3)
    hold_batch(copier.ledger, HeldBatch(key=key, reason="id > 0", rows={"copies": 1}))

    assert "refused (batch_held)" in refused(copier, capsys)


@pytest.mark.full  # every run: before a repair (`test_repair_commands.py`)
def test_what_runs_is_stopped_first(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    published(copier)
    admit_run(copier.ledger, stream=copier.stream, mode="incremental", declaration_digest="d", launched_by="a test")

    assert "refused (not_at_rest)" in refused(copier, capsys)


@pytest.mark.full  # every run: one that was expired
@pytest.mark.parametrize("is_gone", [False, True])
def test_an_input_that_is_another_one_since_is_not_read_again(
    copier: Copier, is_gone: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    published(copier)
    name = input_table_name(f"{copier.stream}.{'gone' if is_gone else TABLES[0]}")
    found = str(copier.bench.catalog.load_table(f"{copier.stream}.rows").metadata.table_uuid)
    record_identities(copier.ledger, copier.stream, 1, {name: found, since_batch(name): "2"}, replacing=True)

    shown = refused(copier, capsys, to=1)

    assert f"refused (source_gone): Batch 1:1 of {copier.stream} has read {name}, which " in shown
    assert ("is not there" in shown) is is_gone
    if not is_gone:
        code, _, errors = rewound(copier, capsys, "--yes", to=2)
        assert (code, copier.bench.ids()) == (0, [1, 2, 10, 20]), errors


def test_input_that_was_expired_is_not_read_again(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    published(copier)
    source = replace(copier.bench, output=replace(copier.bench.output, target=f"{copier.stream}.rows"))
    source.write_as_another(3)
    source.write_as_another(4)
    source.expire_all_but_the_newest()

    assert "refused (source_gone): What comes behind batch 0" in refused(copier, capsys)


@pytest.mark.full  # every run: `test_repair_decision.py`
def test_state_that_is_not_kept_so_far_back_refuses(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    published(copier)
    for file in ("1.delta", ".1.delta.crc"):
        (folder(copier) / "state/0/0" / file).unlink()

    assert "refused (not_provable): The checkpoint of" in refused(copier, capsys)


@pytest.mark.full
def test_a_batch_beyond_the_newest_one_is_not_called_expired(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    published(copier)

    shown = refused(copier, capsys, to=9)

    assert f"does not show batch 1:9 of {copier.bench.output}: batch 1:2 is its newest one" in shown
    assert "expired" not in shown


def test_a_batch_that_became_visible_with_a_later_one_is_refused(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(copier, batches=3)
    copier.bench.publish(*(stage(copier, number, 10 * number) for number in (1, 2)))

    assert "the batch became visible together with later ones" in refused(copier, capsys, to=1)


def with_files_beside(copier: Copier) -> None:
    """The stream has an output without a mark, which knows a batch by its number."""
    pipelines = load_settings().pipelines
    file = pipelines / f"{copier.stream}.stream.yaml"
    declared = yaml.safe_load(file.read_text())
    declared["outputs"]["beside"] = {"files": {"connection": "exports", "path": "beside", "format": "parquet"}}
    declared["transformation"] = {"python": "split.py:split"}
    del declared["backfill"]
    file.write_text(yaml.safe_dump(declared))
    (pipelines / "split.py").write_text("def split(rows):\n    return {'copies': rows, 'beside': rows}\n")


@pytest.mark.full  # every run: `test_repair_decision.py`
def test_outputs_that_cannot_go_back_refuse(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    published(copier)
    with_files_beside(copier)

    assert "refused (not_yet)" in refused(copier, capsys)


@pytest.mark.full  # every run: one that has passed (`test_rewinds.py`)
def test_a_reader_that_does_not_show_how_far_it_is_is_not_passed_over(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    published(copier)
    reader = reader_of(copier)
    planned = folder(copier).parent.parent / reader / "1/offsets/0"
    planned.unlink()
    planned.parent.rmdir()
    planned.parent.write_text("no folder")

    shown = refused(copier, capsys)

    assert f"refused (readers_repeat): Whether {reader} has read" in shown
    code, _, errors = rewound(copier, capsys, "--leave-readers", "--yes")
    assert code == 0, errors


@pytest.mark.full  # every run: what it has recorded (`test_rewinds.py`)
def test_what_a_reader_has_planned_counts_as_read(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the ledger has neither its batch nor the names of its sources."""
    published(copier)
    reader = reader_of(copier)
    planned = folder(copier).parent.parent / reader / "1/offsets/0"
    planned.write_text(f"v1\n{{}}\n{json.dumps(offset(head(copier.bench)))}")

    shown = refused(copier, capsys)

    assert f"{reader} has read {copier.bench.output.target} beyond that, in batches 0 to 0 with an unknown" in shown


def test_what_is_recorded_by_number_is_forgotten_with_the_batches(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what is recorded by a number, what came first stays; what is announced is not announced again."""
    filled(copier, batches=2)
    copier.bench.publish(stage(copier, 1, 10))
    for number in (0, 1):
        found = RuleResult(
            stream=copier.stream, generation=1, batch=number, output="copies", table=copier.bench.output.target,
            rows=1, rules={"named": RuleCount(counted=1, failed=0, on_failure="warn", is_broken=False)},
        )  # fmt: skip
        record(copier, number, rules=(found,))
    table = Announcement.__table__
    announced = {"table": copier.bench.output.target, "stream": copier.stream, "generation": 1, "batch": 1}
    with copier.ledger.transaction() as connection:
        connection.execute(insert(Announcement).values(**announced))

    code, _, errors = rewound(copier, capsys, "--yes")

    assert code == 0, errors
    assert [one.batch for one in recent_rule_results(copier.ledger, stream=copier.stream)] == [0]
    newest = newest_batch(copier.ledger, copier.stream)
    assert newest is not None
    assert newest.key.batch == 0
    with copier.ledger.transaction() as connection:
        assert connection.execute(select(table.c.batch).where(table.c.stream == copier.stream)).scalar_one() == 0


@pytest.mark.full  # every run: `test_repair_decision.py`
def test_what_the_ledger_does_not_have_yet_stays_staged(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    """The next run records the batch to which the stream goes back, from what is staged of it."""
    filled(copier, batches=2)
    copier.bench.publish(stage(copier, 1, 10))
    assert [one.summary.key.batch for one in copier.bench.staged()] == [0, 1]

    code, _, errors = rewound(copier, capsys, "--yes")

    assert code == 0, errors
    assert [one.summary.key.batch for one in copier.bench.staged()] == [0]


@pytest.mark.full  # every run: `test_states_taken_back.py`
def test_copies_of_later_states_are_not_restored_afterwards(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    """The batches of their numbers are read again, and their states may be others."""
    published(copier)
    checkpoint, store = (
        open_checkpoint_files(one, load_settings().object_store)
        for one in (folder(copier).as_uri(), copies_location(folder(copier).as_uri()))
    )
    copied = copy_checkpoint(checkpoint, store, now=datetime.now(tz=UTC), token=1, require=lambda: None)
    assert copied is not None
    assert copied.committed == 3

    code, _, errors = rewound(copier, capsys, "--yes")

    assert (code, list_copies(store)) == (0, ()), errors
    kept = copy_checkpoint(checkpoint, store, now=datetime.now(tz=UTC), token=1, require=lambda: None)
    assert rewound(copier, capsys, "--yes")[0] == 0
    assert list_copies(store) == (kept,)


@pytest.mark.full  # every run: `test_states_taken_back.py`
def test_what_is_published_and_cleared_goes_back_as_well(copier: Copier, capsys: pytest.CaptureFixture[str]) -> None:
    """The usual state: nothing is staged any more."""
    published(copier)
    copier.bench.publish(copier.bench.staged()[-1])
    copier.bench.clear()

    code, said, errors = rewound(copier, capsys, "--yes")

    assert (code, "Discard" in said) == (0, False), errors
    require_rewound(copier)
