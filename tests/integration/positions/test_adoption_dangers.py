"""What an adoption might lose, bring back or double without a word. A real catalog and ledger, no Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from sqlalchemy import text
from tests.fixtures.drill import first_of
from tests.fixtures.publication import Workbench
from tests.integration.cli.test_operations import Copier, copier, typed
from tests.integration.maintenance.conftest import offset
from tests.integration.positions.test_adoptions import rolled_back, words
from tests.integration.positions.test_repair_commands import filled

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import UndeclaredOutputError
from sluice.ledger.generations import find_generation, record_identities
from sluice.positions.adoption import AdoptionWay
from sluice.publication.mark_moves import reject_batch
from sluice.publication.staged_batch import StagedOutput, canonical_offsets
from sluice.publication.start_check import observe_tables
from sluice.publication.undeclared_outputs import refuse_undeclared_outputs
from sluice.settings import load_settings
from sluice.sources.source_identities import output_table_name
from sluice.stored_keys import ADOPTION_TAG_PREFIX
from sluice_airflow.composition import load_deployment
from sluice_airflow.tasks.control_positions import plan_for

__all__ = ["copier"]


def set_back(bench: Workbench, snapshot_id: int | None) -> None:
    """Somebody rolls a table back."""
    assert snapshot_id is not None
    bench.target().manage_snapshots().rollback_to_snapshot(snapshot_id).commit()


def head(bench: Workbench) -> int:
    """The snapshot of main."""
    found = bench.target().metadata.current_snapshot_id
    assert found is not None
    return found


@pytest.mark.full  # every run: rows of others (`test_adoptions.py`)
def test_an_undo_that_brings_deleted_rows_back_asks_and_keeps_what_it_hides(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    rolled_back(copier)
    copier.bench.target().delete("id > 0")
    deleted = head(copier.bench)

    code, shown, errors = typed(words(copier, "undo"), capsys)
    assert (code, "`--yes`" in errors, copier.bench.ids()) == (2, True, []), errors
    code, said, errors = typed(words(copier, "undo", "--yes"), capsys)

    assert (code, f"snapshot {deleted} (delete, 0 rows added, 2 removed" in said) == (0, True), shown + errors
    assert copier.bench.target().metadata.refs[f"{ADOPTION_TAG_PREFIX}{deleted}"].snapshot_id == deleted
    assert copier.bench.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("way", first_of("accept", "reread"))
def test_what_others_had_committed_and_stays_out_is_named(
    copier: Copier, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = head(copier.bench)
    copier.bench.write_as_another(100, 101, 102)
    foreign = head(copier.bench)
    rolled_back(copier, with_foreign=True)
    set_back(copier.bench, first)

    code, shown, errors = typed(words(copier, way, "--dry-run", "--json"), capsys)

    assert code == 0, errors
    (plan,) = json.loads(shown)["plans"]
    assert (plan["at_stake"], plan["rows"]) == ("rows", 8)
    assert f"2 other commits with 6 rows stay out, and are not read again: snapshot {foreign}" in shown


@pytest.mark.full  # every run: while they are there
def test_what_others_had_committed_is_unknown_once_the_snapshots_are_expired(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    rolled_back(copier)
    copier.bench.target().maintenance.expire_snapshots().by_id(copier.bench.mark().snapshot_id).commit()

    code, shown, errors = typed(words(copier, "accept", "--dry-run"), capsys)

    assert (code, "was taken out as well is unknown: the snapshots are expired" in shown) == (0, True), shown + errors


def test_a_reader_follows_its_source_only_once_that_is_adopted(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `continue` an undo would show the reader once more what it has read."""
    source = StagedOutput(stream="former", output="rows", target=f"{copier.stream}.rows")
    writer = replace(copier.bench, output=source)
    before = head(writer)
    writer.begin()
    writer.publish(writer.stage(0, [7]))
    filled(copier, batches=2)
    ends = canonical_offsets({"rows": offset(head(writer))})
    copier.bench.publish(copier.bench.stage(1, [7], start_offsets=copier_ends(before), end_offsets=ends))
    set_back(writer, before)
    following = ["stream", "continue", copier.stream, "--dry-run"]

    code, shown, errors = typed(following, capsys)
    assert (code, f"`sluice table adopt {source.target} --undo --dry-run`" in errors) == (2, True), shown + errors
    _, shown, _ = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)
    assert f"Adopt {source.target} first" in shown

    code, shown, errors = typed(["table", "adopt", source.target, "--accept", "--yes"], capsys)
    assert (code, f"{copier.stream} read {source.target}." in shown) == (0, True), shown + errors
    code, shown, errors = typed(following, capsys)
    assert (code, "1 appended rows that were read are withdrawn" in shown) == (0, True), shown + errors


def copier_ends(snapshot_id: int) -> str:
    """The offsets of the copier behind a snapshot of its source."""
    return canonical_offsets({"rows": offset(snapshot_id)})


@pytest.mark.full  # every run: a lost state (`test_adoptions.py`)
def test_a_mark_is_not_set_back_to_where_nothing_shows_what_is_read(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    rolled_back(copier)
    set_back(copier.bench, copier.bench.target().snapshots()[0].snapshot_id)

    code, shown, _ = typed(words(copier, "reread", "--dry-run"), capsys)

    assert (code, "refused (not_provable): Neither tables, ledger nor" in shown) == (1, True), shown
    assert "unknown number of of" not in shown
    code, said, errors = typed(words(copier, "accept", "--yes"), capsys)
    assert code == 0, errors
    code, said, errors = typed(["stream", "reset", copier.stream, "--dry-run"], capsys)
    assert code == 0, said + errors


@pytest.mark.parametrize("witness", first_of("ledger", "table"))
def test_a_mark_is_not_set_back_behind_a_rejected_batch(
    copier: Copier, witness: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older copy of the ledger does not know it."""
    if witness == "ledger":
        rolled_back(copier)
        with copier.ledger.transaction() as connection:
            connection.execute(
                text("UPDATE sluice.batches SET is_rejected = true WHERE stream = :stream AND batch = 1"),
                {"stream": copier.stream},
            )
    else:
        first, ends = head(copier.bench), copier.bench.staged()[-1].summary.end_offsets
        staged = copier.bench.stage(1, [3], start_offsets=ends, end_offsets=ends)
        reject_batch(copier.bench.catalog, copier.bench.output, staged, token=copier.bench.run)
        set_back(copier.bench, first)

    code, shown, _ = typed(words(copier, "reread", "--dry-run"), capsys)

    assert (code, f"Batch 1:1 of {copier.stream} was rejected" in shown) == (1, True), shown
    assert typed(words(copier, "undo", "--dry-run"), capsys)[0] == 0


def test_the_form_adopts_while_another_output_has_no_table_yet(copier: Copier, tmp_path: Path) -> None:
    rolled_back(copier)
    file = tmp_path / f"{copier.stream}.stream.yaml"
    declared = yaml.safe_load(file.read_text())
    declared["quarantine"] = True
    declared["rules"] = [{"name": "is_known", "expression": "id > 0", "on_failure": "quarantine"}]
    file.write_text(yaml.safe_dump(declared))
    deployment = load_deployment()
    stream = load_declarations(deployment.settings.pipelines).stream(copier.stream)

    plan = plan_for(deployment, copier.ledger, stream, AdoptionWay.UNDO)

    assert (plan.subject, plan.seen.is_empty) == (copier.bench.output.target, False)


@pytest.mark.full  # every run: rows that do (`test_adoptions.py`)
def test_rows_that_were_accepted_as_gone_are_not_said_to_come_back(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    rolled_back(copier, with_foreign=True)
    first = copier.bench.target().snapshots()[1].snapshot_id
    assert typed(words(copier, "accept", "--yes"), capsys)[0] == 0
    set_back(copier.bench, first)

    code, said, errors = typed(words(copier, "undo", "--yes"), capsys)

    assert (code, f"0 rows of {copier.stream}.copies come back." in said) == (0, True), said + errors
    assert copier.bench.ids() == [1, 2, 100, 101, 102]


def test_a_table_that_was_created_again_is_adopted_also_where_the_ledger_lost_the_batches(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start refuses then, and names the command; what waits for the old table stays in its way and is named."""
    filled(copier, batches=2)
    bench, ends = copier.bench, copier_ends(1)
    bench.clear()
    bench.stage(1, [3, 4], start_offsets=ends, end_offsets=ends)
    table, schema, was = bench.output.target, bench.target().schema(), str(bench.target().metadata.table_uuid)
    record_identities(copier.ledger, copier.stream, 1, {output_table_name(table): was})
    bench.open_catalog().drop_table(table)
    bench.open_catalog().create_table(table, schema)

    code, said, errors = typed(words(copier, "accept", "--yes"), capsys)

    abandon = f"`sluice batch abandon {copier.stream} copies --dry-run`"
    assert (code, f"2 rows of {copier.stream}.copies are staged for the old one" in said) == (0, True), said + errors
    known = find_generation(copier.ledger, copier.stream)
    assert known is not None
    assert known.identities[output_table_name(table)] != was
    declaration = load_declarations(load_settings().pipelines).stream(copier.stream).declaration
    with pytest.raises(UndeclaredOutputError, match="was created again") as refused:
        refuse_undeclared_outputs(observe_tables(bench.catalog, declaration).former, generation=1)
    assert abandon in (refused.value.next_step or "")
    assert abandon in said
    code, said, errors = typed(["batch", "abandon", copier.stream, "copies", "--yes"], capsys)
    assert code == 0, errors
    assert not observe_tables(bench.catalog, declaration).former
