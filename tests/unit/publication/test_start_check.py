"""One look at the tables of a stream shows whether they agree with its ledger, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.fixtures.lost_marks import forget_previous_metadata, remove_mark
from tests.fixtures.publication import CatalogPlace, Workbench, open_catalog_at

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import MarkError
from sluice.publication.mark_moves import open_generation, reject_batch
from sluice.publication.repair import close_output, leave_output
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.start_check import Disagreement, StreamTables, disagreements
from sluice.publication.undeclared_outputs import (
    find_undeclared_outputs,
    has_unmarked_outputs,
    remembers_batches,
    repeating_outputs,
)

NEXT = 5
"""The token of the run that begins, above that of the run before."""


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    """An output whose generation is open, in a catalog of this test alone."""
    place = CatalogPlace(sql_url=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog = open_catalog_at(place)
    assert isinstance(catalog, SqlCatalog)
    output = StagedOutput(stream="orders", output="main", target="silver.orders")
    made = Workbench(open_catalog=lambda: catalog, catalog=catalog, output=output, place=place)
    made.declare()
    made.begin()
    return made


def found(bench: Workbench, *, token: int = NEXT, rejected: frozenset[int] = frozenset()) -> set[Disagreement]:
    return set(disagreements(bench.observe(), token=token, generation=bench.generation, rejected=rejected))


def without_output(bench: Workbench) -> StreamTables:
    """What a start sees of the stream when it declares the output no longer."""
    former = find_undeclared_outputs(bench.catalog, bench.output.stream, ())
    return StreamTables(stream=bench.output.stream, outputs=(), former=former)


def found_without_output(bench: Workbench, *, generation: int = 1, token: int = NEXT) -> set[Disagreement]:
    return set(disagreements(without_output(bench), token=token, generation=generation, rejected=()))


def test_a_stream_that_nobody_has_touched_agrees(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    bench.stage(1, [1])
    assert found(bench) == set()
    bench.recover()
    bench.clear()
    assert found(bench) == set()


def test_a_new_output_has_nothing_to_repair(bench: Workbench) -> None:
    new = replace(bench, output=replace(bench.output, output="other"))
    assert found(new) == set()
    assert new.observe().unmarked == {"other"}


@pytest.mark.parametrize(("token", "is_seen"), [(1, True), (2, False)])
def test_a_token_that_the_mark_has_seen_is_too_low(bench: Workbench, token: int, *, is_seen: bool) -> None:
    assert found(bench, token=token) == ({Disagreement.TOKEN} if is_seen else set())


def test_a_token_that_only_the_staging_table_has_seen_is_too_low(bench: Workbench) -> None:
    bench.stage(0, [0], token=NEXT)
    assert found(bench, token=NEXT) == {Disagreement.TOKEN}
    assert found(bench, token=NEXT + 1) == set()


def test_a_token_that_only_a_former_output_has_seen_is_too_low(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    bench.begin_as(NEXT)
    assert found_without_output(bench) == {Disagreement.TOKEN, Disagreement.UNDECLARED}
    assert without_output(bench).highest_token == NEXT


def test_a_rejection_that_the_ledger_has_cleared_with_old_batches_is_not_missed(bench: Workbench) -> None:
    reject_batch(bench.catalog, bench.output, bench.stage(0, [0]), token=1)
    assert found(bench) == {Disagreement.REJECTION}
    bench.publish(bench.stage(1, [1]))
    bench.clear()
    assert bench.observe().rejected(1) == {0}
    assert found(bench) == set()


def test_a_rejection_that_the_ledger_has_forgotten_is_seen_in_the_history(bench: Workbench) -> None:
    reject_batch(bench.catalog, bench.output, bench.stage(0, [0]), token=1)
    bench.publish(bench.stage(1, [1]))
    assert bench.observe().rejected(1) == {0}
    assert found(bench) == {Disagreement.REJECTION}
    assert found(bench, rejected=frozenset({0, 7})) == set()
    assert bench.observe().rejected(2) == set()


def test_a_rejection_in_another_output_of_the_table_is_not_this_ones(bench: Workbench) -> None:
    reject_batch(bench.catalog, bench.output, bench.stage(0, [0]), token=1)
    assert replace(bench, output=replace(bench.output, output="other")).observe().rejected(1) == set()


def test_a_mark_that_was_removed_is_missed(bench: Workbench) -> None:
    remove_mark(bench)
    assert found(bench) == {Disagreement.MARK}


def test_a_removed_mark_is_missed_when_the_history_has_expired(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    bench.write_as_another(100)
    bench.expire_all_but_the_newest()
    remove_mark(bench)
    assert found(bench) == {Disagreement.MARK}


def test_a_removed_mark_is_missed_without_a_staging_table(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    bench.catalog.drop_table(bench.output.staging)
    assert found(bench) == set()
    remove_mark(bench)
    forget_previous_metadata(bench)
    assert found(bench) == {Disagreement.MARK}


def test_no_generation_opens_where_a_mark_was_removed_after_the_look(bench: Workbench) -> None:
    """Opened at the newest committed batch, all that is staged would count as published."""
    bench.stage(0, [0])
    remove_mark(bench)
    with pytest.raises(MarkError, match=r"was removed"):
        open_generation(bench.catalog, bench.output, generation=1, token=NEXT, batch=0)
    assert bench.observe().unmarked == {"main"}


def test_a_former_output_is_found_until_the_stream_has_left_it(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    assert found_without_output(bench) == {Disagreement.UNDECLARED}
    (former,) = without_output(bench).former
    leave_output(bench.catalog, former, token=NEXT)
    assert found_without_output(bench, token=NEXT + 1) == {Disagreement.UNDECLARED}, "it is not noted yet"
    close_output(bench.catalog, former, checkpoint=bench.checkpoint(0, newest_committed=0))
    assert found_without_output(bench, token=NEXT + 1) == set()


def test_what_is_staged_for_an_output_that_was_left_is_found(bench: Workbench) -> None:
    (former,) = without_output(bench).former
    close_output(bench.catalog, former, checkpoint=bench.checkpoint(0))
    batch = bench.stage(0, [0])
    assert found_without_output(bench) == {Disagreement.UNDECLARED}
    assert found_without_output(bench, generation=2) == set(), "a reset has left it behind"
    bench.publish(batch)
    assert found_without_output(bench, generation=2) == {Disagreement.UNDECLARED}, "what is visible is to be recorded"


def test_an_output_that_is_declared_again_is_found(bench: Workbench) -> None:
    (former,) = without_output(bench).former
    close_output(bench.catalog, former, checkpoint=bench.checkpoint(0))
    assert found(bench) == {Disagreement.REDECLARED}


@pytest.mark.parametrize(
    ("output", "is_unmarked", "knows_numbers"),
    [
        ({"iceberg": {"table": "silver.orders"}}, False, False),
        ({"iceberg": {"table": "silver.orders", "delivery": "direct"}}, True, True),
        ({"files": {"connection": "lake", "path": "orders", "format": "json"}}, True, True),
        ({"kafka": {"connection": "kafka", "topic": "orders"}}, True, False),
    ],
)
def test_which_outputs_have_no_mark_and_which_of_them_know_a_batch(
    output: dict[str, Any], is_unmarked: bool, knows_numbers: bool
) -> None:
    content = {
        "stream": "orders",
        "description": "Orders",
        "owner": "team",
        "mode": "continuous",
        "trigger": {"processing_time": "2 seconds"},
        "inputs": {"r": {"stream": {"iceberg": {"table": "bronze.orders"}}}},
        "transformation": {"sql": "orders.sql"},
        "outputs": {"main": output},
    }
    declaration = StreamDeclaration.model_validate(content)
    assert (has_unmarked_outputs(declaration), remembers_batches(declaration)) == (is_unmarked, knows_numbers)
    assert bool(repeating_outputs(declaration)) == (is_unmarked and not knows_numbers)
