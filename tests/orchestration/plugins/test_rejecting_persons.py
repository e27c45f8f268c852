"""Who may decide about a batch on a page: who may edit the stream's DAG and start runs of `stream_control`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import DeclaredNow

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # a library of Airflow's imports FastAPI's test client, which warns of its own
    from sluice_airflow.pages.action_routes import stream_with_batches
    from sluice_airflow.pages.page_access import Reader
    from sluice_airflow.pages.page_guard import PlanTokens
    from sluice_airflow.pages.page_state import PageState


@dataclass(frozen=True, slots=True, kw_only=True)
class Permitted(Reader):
    """A person with these permissions."""

    edits: frozenset[str] = frozenset()
    starts: frozenset[str] = frozenset()

    def may_act_on(self, streams: Iterable[str]) -> frozenset[str]:
        """The DAGs that they may edit."""
        return frozenset(streams) & self.edits

    def may_start(self, dag: str) -> bool:
        """Whether they may start runs of a DAG."""
        return dag in self.starts


def person(*, edits: str = "clicks", starts: str = "stream_control") -> Permitted:
    """A person who may edit one DAG, and start another."""
    return Permitted(user=None, name="ann", edits=frozenset({edits}), starts=frozenset({starts}))


@pytest.fixture
def pages(tmp_path: Path) -> PageState:
    """The pages of a deployment with the stream `clicks`."""
    for table in ("bronze.flights", "silver.flights"):
        write_table(tmp_path, table)
    write_continuous_stream(tmp_path, "clicks")
    nothing: Any = None  # a permission needs neither
    return PageState(
        deployment=nothing,
        ledger=nothing,
        declared=DeclaredNow(tmp_path),
        tokens=PlanTokens("secret"),
        quarantines=nothing,
        looks=nothing,
        backfill_days=nothing,
    )


def test_who_may_edit_the_stream_and_start_the_run_may_decide(pages: PageState) -> None:
    assert stream_with_batches("clicks", person(), pages).name == "clicks"


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (person(edits="another"), "may not edit the DAG clicks"),
        (person(starts="another"), "may not start runs of the DAG stream_control"),
    ],
    ids=["may not edit the stream's DAG", "may not start the run"],
)
def test_who_lacks_one_of_both_may_not(pages: PageState, reader: Reader, said: str) -> None:
    with pytest.raises(HTTPException, match=said) as refused:
        stream_with_batches("clicks", reader, pages)
    assert refused.value.status_code == 403


def test_who_may_not_edit_does_not_learn_whether_a_stream_exists(pages: PageState) -> None:
    with pytest.raises(HTTPException) as refused:
        stream_with_batches("no_such_stream", person(), pages)
    assert refused.value.status_code == 403
