"""What does not agree at a start is repaired by that start; while a person has to decide, nothing is changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import delete
from tests.fixtures.lost_marks import remove_mark
from tests.fixtures.publication import Workbench
from tests.integration.publication.test_batch_commands import Deployment, deployment, former

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import StaleTokenError, UndeclaredOutputError
from sluice.ledger.batches import Batch, recent_batches
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import admit_run
from sluice.publication.batch_rejection import reject
from sluice.publication.chain import CheckpointPosition
from sluice.publication.mark_moves import take_over
from sluice.publication.repair import repair
from sluice.publication.start_check import Disagreement, StreamTables, disagreements, observe_tables

__all__ = ["deployment", "former"]


@pytest.fixture
def run(deployment: Deployment) -> RunObservation:
    """The run that begins."""
    return admit_run(
        deployment.ledger, stream=deployment.stream, mode="incremental", declaration_digest="d", launched_by="a test"
    )


def declared(deployment: Deployment) -> StreamDeclaration:
    return load_declarations(deployment.folder, only=deployment.stream).stream(deployment.stream).declaration


def look(deployment: Deployment, run: RunObservation) -> tuple[StreamTables, frozenset[Disagreement]]:
    tables = observe_tables(deployment.benches[0].catalog, declared(deployment))
    recorded = frozenset(one.key.batch for one in recent_batches(deployment.ledger, deployment.stream, limit=9))
    return tables, disagreements(tables, token=run.token, generation=1, rejected=recorded)


def repaired(deployment: Deployment, run: RunObservation, *, newest_committed: int = -1) -> RunObservation:
    """Repair what is found; afterwards nothing is left to repair."""
    tables, found = look(deployment, run)
    after = repair(
        found,
        tables,
        catalog=deployment.benches[0].catalog,
        ledger=deployment.ledger,
        declaration=declared(deployment),
        run=run,
        checkpoint=CheckpointPosition(
            generation=1, newest_planned=newest_committed + 1, newest_committed=newest_committed
        ),
    )
    found = look(deployment, after)[1]
    assert found <= {Disagreement.TOKEN}, "its own, where something was repaired"
    return after


def test_tables_and_ledger_agree_as_a_rule(deployment: Deployment, run: RunObservation) -> None:
    deployment.stage(0, 1)
    assert look(deployment, run)[1] == frozenset()


def test_a_run_of_an_older_ledger_gets_a_token_above_its_tables(deployment: Deployment, run: RunObservation) -> None:
    seen = run.token + 3_600_000
    first = deployment.benches[0]
    take_over(first.catalog, first.output, token=seen)
    assert look(deployment, run)[1] == {Disagreement.TOKEN}
    assert repaired(deployment, run).token == seen + 1


def test_a_run_of_an_older_ledger_gets_a_token_above_its_former_outputs(
    deployment: Deployment, run: RunObservation, former: Workbench
) -> None:
    """The declared tables may all be new, so that the former one alone remembers the runs of before."""
    former.publish(former.staged()[-1])
    seen = run.token + 3_600_000
    take_over(former.catalog, former.output, token=seen)
    assert repaired(deployment, run, newest_committed=1).token == seen + 1
    assert former.staged() == ()


def test_a_lost_mark_is_restored_with_the_token_of_the_run(deployment: Deployment, run: RunObservation) -> None:
    deployment.stage(0, 1)
    first = deployment.benches[0]
    first.publish(first.staged()[0])
    remove_mark(first)
    assert look(deployment, run)[1] == {Disagreement.MARK}
    repaired(deployment, run)
    assert first.mark().position == (1, 0)


def test_a_forgotten_rejection_is_recorded_again(deployment: Deployment) -> None:
    deployment.stage(0, 1, 2)
    catalog = deployment.benches[0].catalog
    reject(catalog, deployment.ledger, declared(deployment), number=0, requested_by="a test")
    with deployment.ledger.transaction() as connection:
        connection.execute(delete(Batch).where(Batch.stream == deployment.stream))
    begun = admit_run(
        deployment.ledger, stream=deployment.stream, mode="incremental", declaration_digest="d", launched_by="a test"
    )
    assert look(deployment, begun)[1] == {Disagreement.REJECTION}
    repaired(deployment, begun)
    (batch,) = recent_batches(deployment.ledger, deployment.stream, limit=9)
    assert (batch.is_rejected, batch.refused_rows, batch.published_rows) == (True, 4, {"main": 0, "other": 0})


def test_nothing_is_changed_while_batches_wait_for_a_former_output(
    deployment: Deployment, run: RunObservation, former: Workbench
) -> None:
    first = deployment.benches[0]
    take_over(first.catalog, first.output, token=run.token + 7)
    remove_mark(deployment.benches[1])
    tables, found = look(deployment, run)
    assert found == {Disagreement.TOKEN, Disagreement.MARK, Disagreement.UNDECLARED}
    with pytest.raises(UndeclaredOutputError, match="1 batch with 2 rows is staged for"):
        repaired(deployment, run)
    assert look(deployment, run)[1] == found
    assert [one.names.output for one in tables.lost] == ["other"]
    assert (len(former.staged()), former.mark().token) == (2, 1)


def test_a_former_output_with_visible_batches_is_left(
    deployment: Deployment, run: RunObservation, former: Workbench
) -> None:
    former.publish(former.staged()[-1])
    repaired(deployment, run, newest_committed=1)
    assert former.staged() == ()
    recorded = recent_batches(deployment.ledger, deployment.stream, limit=9)
    assert {one.key.batch: one.published_rows for one in recorded} == {0: {"former": 1}, 1: {"former": 2}}
    with pytest.raises(StaleTokenError):
        former.publish(former.stage(2, [4]))


def test_a_visible_batch_that_spark_runs_again_is_recorded_by_its_report(
    deployment: Deployment, run: RunObservation, former: Workbench
) -> None:
    former.publish(former.staged()[-1])
    repaired(deployment, run, newest_committed=0)
    assert [one.key.batch for one in recent_batches(deployment.ledger, deployment.stream, limit=9)] == [0]


def test_a_batch_of_a_former_output_is_recorded_with_what_the_others_have_of_it(
    deployment: Deployment, run: RunObservation, former: Workbench
) -> None:
    former.publish(former.staged()[-1])
    deployment.stage(0, 5, 6, 7)
    repaired(deployment, run, newest_committed=0)
    (batch,) = recent_batches(deployment.ledger, deployment.stream, limit=9)
    assert batch.published_rows == {"former": 1, "main": 3, "other": 3}


def test_an_output_that_is_declared_again_opens_where_the_checkpoint_stands(
    deployment: Deployment, run: RunObservation
) -> None:
    first = deployment.benches[0]
    with first.catalog.load_table(first.output.staging).transaction() as transaction:
        transaction.set_properties({"sluice.staging.closed-at": "1:0"})
    assert look(deployment, run)[1] == {Disagreement.REDECLARED}
    repaired(deployment, run, newest_committed=8)
    assert [one.mark().batch for one in deployment.benches] == [8, -1]


def test_batches_for_another_table_do_not_note_that_a_declared_output_was_left(
    deployment: Deployment, run: RunObservation
) -> None:
    """Its staging table is used for the table of today; noted as left, it would later open past what is staged."""
    first = deployment.benches[0]
    first.publish(first.stage(0, [1]))
    elsewhere = replace(first, output=replace(first.output, target=f"{deployment.stream}.elsewhere"))
    elsewhere.declare()
    file = deployment.folder / f"{deployment.stream}.stream.yaml"
    file.write_text(file.read_text().replace(first.output.target, elsewhere.output.target))
    (deployment.folder / f"{elsewhere.output.target}.table.yaml").write_text(
        (deployment.folder / f"{first.output.target}.table.yaml")
        .read_text()
        .replace(first.output.target, elsewhere.output.target)
    )
    assert look(deployment, run)[1] == {Disagreement.UNDECLARED, Disagreement.MARK}
    repaired_run = repaired_but_for(deployment, run)
    assert repaired_run.redeclared == ()


def repaired_but_for(deployment: Deployment, run: RunObservation) -> StreamTables:
    """The tables after a repair that leaves an output without a mark: it is new in its table."""
    tables, found = look(deployment, run)
    repair(
        found,
        tables,
        catalog=deployment.benches[0].catalog,
        ledger=deployment.ledger,
        declaration=declared(deployment),
        run=run,
        checkpoint=CheckpointPosition(generation=1, newest_planned=0, newest_committed=0),
    )
    return look(deployment, run)[0]
