"""A commit whose answer is lost has landed or has not; either way its batch becomes visible once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AssertTableUUID, SetDefaultSpecUpdate
from requests import ConnectionError as RequestsConnectionError
from sqlalchemy.exc import OperationalError
from tests.fixtures.drill import first_of
from tests.fixtures.publication import Workbench
from tests.fixtures.stack import Stack
from tests.fixtures.tampering import ALWAYS, Fault, FaultyProxy, Requirements, Updates, faulty_proxy, tampered

from sluice.errors import UncertainError
from sluice.publication import publish_batches
from sluice.publication.checked_commit import PreparedCommit, RacePolicy, TableChange
from sluice.publication.mark_moves import reject_batch, take_over
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.tables.catalog import open_catalog

BEHIND_A_CONNECTION = pytest.mark.parametrize("catalog_place", ["rest"], indirect=True)
"""Only the REST catalog is reached by a connection that a proxy can break."""

LOST = (
    RequestsConnectionError("connection reset"),
    CommitStateUnknownException("internal error"),
    OperationalError("COMMIT", None, RuntimeError("server closed the connection")),
)


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
def test_a_commit_that_landed_though_its_answer_was_lost_is_recognised(bench: Workbench, error: Exception) -> None:
    batch = bench.stage(0, [1])
    deaf = replace(bench, catalog=tampered(bench.catalog, lose_answers=1, error=error))
    published = deaf.publish(batch)
    assert published.attempts == 1
    assert published.snapshot_id == bench.target().metadata.current_snapshot_id
    assert published.published == (batch,)
    assert bench.ids() == [1]
    assert bench.publish(batch).was_published_before


def test_a_mark_that_moved_though_the_answer_was_lost_is_recognised(bench: Workbench) -> None:
    deaf = tampered(bench.catalog, lose_answers=1, error=LOST[0])
    assert take_over(deaf, bench.output, token=5).token == 5


def test_a_lost_answer_and_a_newer_run_in_between(bench: Workbench) -> None:
    batch, new = bench.stage(0, [1]), bench.as_run(2)
    deaf = replace(bench, catalog=tampered(bench.catalog, lose_answers=1, error=LOST[0]))
    assert deaf.publish(batch).published == (batch,)
    take_over(new.catalog, new.output, token=2)
    assert new.publish(batch).was_published_before
    assert bench.ids() == [1]


def test_files_that_a_late_commit_made_visible_are_not_taken_for_superseded(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(3)]
    bench.declare(partitioning=[{"column": "id"}])
    slow = LateCatalog(bench.catalog, lambda: set_first_spec(bench))
    published = replace(bench, catalog=cast("Catalog", slow)).publish(*batches, merge_small=True)
    assert slow.commits == 2
    bench.clear(superseded_files=published.superseded_files)
    assert bench.ids() == bench.ids_by_duckdb() == [0, 1, 2]


class LateCatalog:
    """A catalog that the first commit reaches late: its answer is lost, and it arrives right before the second one."""

    def __init__(self, inner: Catalog, meanwhile: Callable[[], None]) -> None:
        self._inner = inner
        self._meanwhile = meanwhile
        self._held: list[tuple[Table, Requirements, Updates]] = []
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit_table(self, table: Table, requirements: Requirements, updates: Updates) -> CommitTableResponse:
        """Hold the first commit back; let it in before the second."""
        self.commits += 1
        if self.commits == 1:
            self._held.append((table, requirements, updates))
            self._meanwhile()
            raise LOST[0]
        while self._held:
            self._inner.commit_table(*self._held.pop())
        return self._inner.commit_table(table, requirements, updates)


def set_first_spec(bench: Workbench) -> None:
    """Make the partition spec the default again under which everything was staged."""
    target = bench.target()
    first = (SetDefaultSpecUpdate(spec_id=0),)
    bench.catalog.commit_table(target, (AssertTableUUID(uuid=target.metadata.table_uuid),), first)


@pytest.fixture
def proxy(services_stack: Stack) -> Iterator[FaultyProxy]:
    """A proxy in front of the REST catalog."""
    with faulty_proxy(services_stack.settings().catalog.uri) as proxy:
        yield proxy


@pytest.fixture
def behind(bench: Workbench, services_stack: Stack, proxy: FaultyProxy) -> Iterator[Workbench]:
    """The same output in the hands of a driver that reaches the catalog through the proxy."""
    settings = services_stack.settings()
    through = settings.catalog.model_copy(update={"uri": proxy.address})
    catalog = open_catalog(settings.model_copy(update={"catalog": through}))
    yield replace(bench, catalog=catalog)
    catalog.close()


@BEHIND_A_CONNECTION
@pytest.mark.parametrize("fault", first_of(Fault.DROPPED, Fault.REPEATED, Fault.FAILED_AFTER))
def test_a_commit_that_landed_is_recognised_whatever_the_gateway_answered(
    bench: Workbench, behind: Workbench, proxy: FaultyProxy, fault: Fault
) -> None:
    batches = [bench.stage(number, [number]) for number in range(3)]
    proxy.faults[fault] = 1
    published = behind.publish(batches[0])
    assert proxy.befallen == {fault: 1}
    assert (published.attempts, published.published) == (1, (batches[0],))
    assert bench.ids() == bench.ids_by_duckdb() == [0]
    bench.write_as_another(100)
    bench.publish(*batches[1:])
    assert bench.ids() == bench.ids_by_duckdb() == [0, 1, 2, 100]


@BEHIND_A_CONNECTION
@pytest.mark.parametrize("fault", first_of(Fault.REPEATED, Fault.FAILED_AFTER))
def test_every_commit_of_a_stream_behind_such_a_gateway(
    bench: Workbench, behind: Workbench, proxy: FaultyProxy, fault: Fault
) -> None:
    bench.declare(partitioning=[{"column": "id"}])  # so that the staging table has to follow
    proxy.faults[fault] = ALWAYS
    new = replace(behind, run=2)
    new.begin()
    batches = [bench.as_run(2).stage(number, [number]) for number in range(4)]
    assert new.publish(batches[0]).published == (batches[0],)
    reject_batch(new.catalog, new.output, batches[1], token=2)
    assert new.clear().batches == tuple(batches[:2])
    assert new.publish(*batches[2:], merge_small=True).published == tuple(batches[2:])
    assert new.clear().batches == tuple(batches[2:])
    assert (new.staged(), new.mark().batch) == ((), 3)
    assert bench.ids() == bench.ids_by_duckdb() == [0, 2, 3]
    assert proxy.befallen[fault] >= 8, "layout, mark, token, two publications, a rejection, two clearings"


@BEHIND_A_CONNECTION
def test_a_commit_that_landed_and_was_expired_before_it_was_looked_for(
    bench: Workbench, behind: Workbench, proxy: FaultyProxy
) -> None:
    batch = bench.stage(0, [0])
    proxy.faults[Fault.REPEATED] = 1
    others = [bench.expire_all_but_the_newest, lambda: bench.write_as_another(100)]
    with patch.object(publish_batches, "PyIcebergCommitter", partial(_CommitterBeside, others=others)):
        assert behind.publish(batch).published == (batch,)
    assert bench.ids() == bench.ids_by_duckdb() == [0, 100]


class _CommitterBeside:
    """The real committer, beside others who act before the table is loaded a second time."""

    def __init__(self, catalog: Catalog, others: list[Callable[[], None]]) -> None:
        self._real = PyIcebergCommitter(catalog)
        self._others = others
        self._loads = 0

    def load(self, identifier: str) -> Table:
        """Load a table freshly."""
        self._loads += 1
        while self._loads == 2 and self._others:
            self._others.pop()()
        return self._real.load(identifier)

    def prepare(self, table: Table, change: TableChange) -> PreparedCommit:
        """Write the manifests of a change."""
        return self._real.prepare(table, change)


@BEHIND_A_CONNECTION
def test_a_commit_that_never_arrived_is_sent_again(bench: Workbench, behind: Workbench, proxy: FaultyProxy) -> None:
    batch = bench.stage(0, [0])
    proxy.faults[Fault.FAILED_BEFORE] = 2
    published = behind.publish(batch)
    assert (published.attempts, published.published) == (3, (batch,))
    assert bench.ids() == bench.ids_by_duckdb() == [0]


@BEHIND_A_CONNECTION
def test_a_commit_that_arrives_after_its_repetition_is_refused(
    bench: Workbench, behind: Workbench, proxy: FaultyProxy
) -> None:
    batch = bench.stage(0, [1])
    proxy.faults[Fault.HELD] = 1
    assert behind.publish(batch).attempts == 2
    assert proxy.deliver() == [409]
    assert bench.ids() == [1]


@BEHIND_A_CONNECTION
def test_an_answer_that_is_lost_and_a_catalog_that_is_gone_then(
    bench: Workbench, behind: Workbench, proxy: FaultyProxy
) -> None:
    batch = bench.stage(0, [1])
    proxy.faults[Fault.DROPPED], proxy.is_silent_after_drop = 1, True
    with pytest.raises(UncertainError, match="It is unknown whether this was published"):
        behind.publish(batch, policy=RacePolicy(attempts=3))
    assert bench.publish(batch).was_published_before
    assert bench.ids() == [1]
