"""What the pages of one API server process share: the deployment, one small pool of connections, the declarations, and
the ways to ask this Airflow.

Airflow is asked to run something by its own public API and as the person who asks. The request does not leave the
process: it goes to the application that serves the API, with the person's own credentials. So Airflow decides whether
they may, names them in the run and in its audit log, and the refusals of `adapters.api_permissions` apply as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

import anyio.from_thread
import httpx
from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException, Request
from sqlalchemy import select

from sluice.declarations.load_declarations import DeclaredNow
from sluice.declarations.loaded_declarations import Declarations, all_tables, declared_name
from sluice.ledger.connection import Ledger
from sluice.ledger.stream_troubles import StreamTrouble
from sluice.pages.job_plans import UNPAUSE, AirflowRequest, BackfillDays
from sluice.pages.quarantine_page import QuarantineReading
from sluice.pages.stream_lines import ObservedStreams, ObservingLauncher, observe_streams
from sluice.pages.table_lines import visible_tables
from sluice.pages.table_looks import TableLooks
from sluice.supervision.platform_dags import MAINTENANCE_DAG, MISSED_WHILE_PAUSED, QUALITY_DAG
from sluice.supervision.platform_troubles import subjects_beside_streams, troubles_beside_streams
from sluice_airflow.composition import Deployment
from sluice_airflow.pages.page_access import Reader
from sluice_airflow.pages.page_guard import PlanTokens, ShownPlan

AskAirflow = Callable[[Request, AirflowRequest], Mapping[str, Any]]

_CREDENTIALS = ("authorization", "cookie")


def ask_airflow(request: Request, asked: AirflowRequest) -> Mapping[str, Any]:
    """Send a request to the API. For routes that run in a thread, as all of the pages do.

    Raises
    ------
    HTTPException: when Airflow refuses, with its own status and sentence.
    """
    answer = anyio.from_thread.run(partial(_send, request.headers, asked))
    if answer.is_success:
        document: Mapping[str, Any] = answer.json()
        return document
    status = answer.status_code if answer.is_client_error else HTTPStatus.BAD_GATEWAY
    raise HTTPException(status, f"Airflow refuses it: {_sentence_of(answer)}")


async def _send(headers: Mapping[str, str], asked: AirflowRequest) -> httpx.Response:
    from airflow.api_fastapi.main import app  # the application that serves this very request

    credentials = {name: headers[name] for name in _CREDENTIALS if name in headers}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://airflow") as client:
        return await client.request(asked.method, f"/api/v2/{asked.path}", json=asked.body, headers=credentials)


def _sentence_of(answer: httpx.Response) -> str:
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return f"it answers {answer.status_code}."
    return detail if isinstance(detail, str) else str(detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class DagOutlook:
    """A DAG as its scheduler has it.

    next_run_at: unset when its schedule yields no further run.
    token: of the form that unpauses it; empty for who may not.
    """

    dag: str
    is_paused: bool
    next_run_at: datetime | None
    token: str = ""

    @property
    def is_missed(self) -> str:
        """What is missed while it is paused; empty when it is not, or is no DAG of the platform."""
        return MISSED_WHILE_PAUSED.get(self.dag, "") if self.is_paused else ""


def find_outlooks(dags: Collection[str]) -> Mapping[str, DagOutlook]:
    """Look DAGs up by their ids, in one query by the primary key. What Airflow has not parsed is left out."""
    query = select(DagModel.dag_id, DagModel.is_paused, DagModel.next_dagrun_create_after).where(
        DagModel.dag_id.in_(list(dags)), DagModel.is_stale.is_(False)
    )
    with create_session(scoped=False) as session:
        rows = session.execute(query).all()
    return {row[0]: DagOutlook(dag=row[0], is_paused=bool(row[1]), next_run_at=row[2]) for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """The shared parts. ask_airflow: sends a request to Airflow's API as the person who asks."""

    deployment: Deployment
    ledger: Ledger
    declared: DeclaredNow
    tokens: PlanTokens
    quarantines: QuarantineReading
    looks: TableLooks
    backfill_days: BackfillDays
    ask_airflow: AskAirflow = ask_airflow

    @classmethod
    def of(cls, deployment: Deployment) -> PageState:
        """The parts of a deployment; the ledger connects with the first query."""
        return cls(
            deployment=deployment,
            ledger=deployment.open_ledger(),
            declared=DeclaredNow(deployment.settings.pipelines),
            tokens=PlanTokens(conf.get_mandatory_value("api", "secret_key")),
            quarantines=QuarantineReading(settings=deployment.settings),
            looks=TableLooks(settings=deployment.settings),
            backfill_days=BackfillDays(settings=deployment.settings),
        )

    @property
    def declarations(self) -> Declarations:
        """The declarations as they are now."""
        return self.declared.read()

    def maintained_tables(self, reader: Reader) -> frozenset[str]:
        """The tables that the DAG `table_maintenance` looks after, without quarantines that a person may not see."""
        streams = self.declarations.streams
        readable = reader.may_read(streams)
        hidden = {one.declaration.quarantine_table for name, one in streams.items() if name not in readable}
        return frozenset(
            name
            for name, table in all_tables(self.declarations).items()
            if name not in hidden and table.maintenance.is_any
        )

    def tables_for(self, reader: Reader) -> frozenset[str]:
        """The tables whose pages a person may see."""
        if not reader.may_read([MAINTENANCE_DAG]):
            return frozenset()
        declarations = self.declarations
        return frozenset(visible_tables(declarations, readable_streams=reader.may_read(declarations.streams)))

    def paused_for(
        self, reader: Reader, *, among: Collection[str] = tuple(MISSED_WHILE_PAUSED)
    ) -> tuple[DagOutlook, ...]:
        """The DAGs of the platform that are paused, of those that a person may read, the most important first."""
        outlooks = find_outlooks(reader.may_read(among))
        paused = [outlooks[dag] for dag in MISSED_WHILE_PAUSED if dag in outlooks and outlooks[dag].is_paused]
        may_unpause = reader.may_act_on([one.dag for one in paused]) if paused else ()
        shown = {dag: ShownPlan(user=reader.name, subject=dag, verb=UNPAUSE) for dag in may_unpause}
        tokens = {dag: self.tokens.token_of(plan) for dag, plan in shown.items()}
        return tuple(replace(one, token=tokens.get(one.dag, "")) for one in paused)

    def failed_checks_for(self, reader: Reader) -> tuple[StreamTrouble, ...]:
        """The tables whose newest check failed, of those that a person may see."""
        if not reader.may_read([QUALITY_DAG]):
            return ()
        checked = subjects_beside_streams(self.declarations) - set(MISSED_WHILE_PAUSED)
        found = troubles_beside_streams(self.ledger, checked)
        visible = self.tables_for(reader) if found else ()
        return tuple(trouble for trouble in found if trouble.stream in visible)

    def problems_for(self, reader: Reader) -> tuple[str, ...]:
        """What is wrong with declarations; each as short as a line, for those who may see the stream or table."""
        by_name = {declared_name(file): found for file, found in self.declarations.broken.items()}
        readable = reader.may_read(by_name)
        return tuple(str(found[0]).splitlines()[0] for name, found in sorted(by_name.items()) if name in readable)

    def observe(
        self,
        reader: Reader,
        *,
        among: Collection[str] | None = None,
        with_figures: bool = True,
        with_history: bool = True,
    ) -> ObservedStreams:
        """Observe the streams that a person may see."""
        observe = partial(observe_streams, self.ledger, self.declarations, launcher=ObservingLauncher())
        return observe(may_read=reader.may_read, among=among, with_figures=with_figures, with_history=with_history)


def _state(request: Request) -> PageState:
    state: PageState = request.app.state.pages
    return state


StateDep = Annotated[PageState, Depends(_state)]
"""The shared parts, as a parameter of a route."""
