"""A commit whose answer is lost has landed or has not; either way its batch becomes visible once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from requests import ConnectionError as RequestsConnectionError
from sqlalchemy.exc import OperationalError
from tests.fixtures.publication import Workbench
from tests.fixtures.stack import Stack
from tests.fixtures.tampering import dropping_proxy, tampered

from sluice.errors import UncertainError
from sluice.publication.checked_commit import RacePolicy
from sluice.publication.mark_moves import take_over
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


@BEHIND_A_CONNECTION
def test_a_connection_that_breaks_after_the_commit(bench: Workbench, services_stack: Stack) -> None:
    batch = bench.stage(0, [1])
    settings = services_stack.settings()
    with dropping_proxy(settings.catalog.uri) as proxy:
        through = settings.catalog.model_copy(update={"uri": f"http://127.0.0.1:{proxy.port}"})
        behind = replace(bench, catalog=open_catalog(settings.model_copy(update={"catalog": through})))
        proxy.to_drop = 1
        published = behind.publish(batch)
        assert proxy.dropped == 1
        behind.catalog.close()
    assert (published.attempts, published.published) == (1, (batch,))
    assert bench.ids() == [1]


@BEHIND_A_CONNECTION
def test_a_commit_that_arrives_after_its_repetition_is_refused(bench: Workbench, services_stack: Stack) -> None:
    batch = bench.stage(0, [1])
    settings = services_stack.settings()
    with dropping_proxy(settings.catalog.uri) as proxy:
        through = settings.catalog.model_copy(update={"uri": f"http://127.0.0.1:{proxy.port}"})
        behind = replace(bench, catalog=open_catalog(settings.model_copy(update={"catalog": through})))
        proxy.to_hold = 1
        assert behind.publish(batch).attempts == 2
        assert proxy.deliver() == [409]
        behind.catalog.close()
    assert bench.ids() == [1]


@BEHIND_A_CONNECTION
def test_a_connection_that_breaks_and_a_catalog_that_is_gone_then(bench: Workbench, services_stack: Stack) -> None:
    batch = bench.stage(0, [1])
    settings = services_stack.settings()
    with dropping_proxy(settings.catalog.uri) as proxy:
        through = settings.catalog.model_copy(update={"uri": f"http://127.0.0.1:{proxy.port}"})
        behind = replace(bench, catalog=open_catalog(settings.model_copy(update={"catalog": through})))
        proxy.to_drop, proxy.is_silent_after_drop = 1, True
        with pytest.raises(UncertainError, match="It is unknown whether this was published"):
            behind.publish(batch, policy=RacePolicy(attempts=3))
        behind.catalog.close()
    assert bench.publish(batch).was_published_before
    assert bench.ids() == [1]
