"""The two parameters of every route: who asks, and what the pages of one API server process share.

*Who asks*, and what they may see and do, is Airflow's own login and its permissions for each DAG. The DAG of a stream
has the stream's name. Who may read the DAG sees the stream; who may edit the DAG, and so pause it, may start, stop,
restart and reset the stream. Data of a stream are behind a permission of their own.

*Shared* are the deployment, one small pool of connections, the declarations, and the ways to ask this Airflow. Airflow
is asked to run something by its own public API and as the person who asks. The request does not leave the process: it
goes to the application that serves the API, with the person's own credentials. So Airflow decides whether they may,
names them in the run and in its audit log, and the refusals of `adapters.api_permissions` apply as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio.from_thread
import httpx
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException, Request
from sqlalchemy import select

from sluice.declarations.loaded_declarations import Declarations, all_tables, declared_name
from sluice.ledger.connection import Ledger
from sluice.ledger.stream_troubles import StreamTrouble
from sluice.pages.declared_now import DeclaredNow
from sluice.pages.job_plans import UNPAUSE, AirflowRequest, BackfillDays
from sluice.pages.quarantine_page import QuarantineReading
from sluice.pages.stream_lines import ObservedStreams, ObservingLauncher, observe_streams
from sluice.pages.table_lines import visible_tables
from sluice.pages.table_looks import TableLooks
from sluice.supervision.platform_dags import MAINTENANCE_DAG, MISSED_WHILE_PAUSED, QUALITY_DAG
from sluice.supervision.platform_troubles import subjects_beside_streams, troubles_beside_streams
from sluice_airflow.composition import Deployment
from sluice_airflow.pages.page_guard import PlanTokens, ShownPlan

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager

Method = Literal["GET", "PUT"]

REQUIRES_LOGIN = Depends(requires_access_view(AccessView.PLUGINS))
"""Every address of the application: 401 without a login, 403 without the permission to see plugins."""


SAMPLES_VIEW = "Sluice Quarantine Samples"
"""The custom view, in the words of Airflow's auth managers, that one must be permitted to read to see data."""

SAMPLES_HIDDEN = (
    f"Samples of quarantined records are data. To see them you need the permission to read {SAMPLES_VIEW!r}; where "
    "Airflow's auth manager knows no such permissions, the permission to edit the DAG of the stream."
)

_NO_VIEW = "Sluice: no view has this name"
"""Permitted only by an auth manager that does not distinguish custom views."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The person who asks."""

    user: Any
    name: str

    @property
    def actor(self) -> str:
        """The person as the ledger names them."""
        return f"airflow: pages, {self.name}"

    def may_read(self, streams: Iterable[str]) -> frozenset[str]:
        """Of some streams those that they may see."""
        return self._permitted(streams, "GET")

    def may_act_on(self, streams: Iterable[str]) -> frozenset[str]:
        """Of some streams those that they may start and stop."""
        return self._permitted(streams, "PUT")

    def may_start(self, dag: str) -> bool:
        """Whether they may start runs of a DAG."""
        return bool(
            _auth_manager().is_authorized_dag(
                method="POST", access_entity=DagAccessEntity.RUN, details=DagDetails(id=dag), user=self.user
            )
        )

    def may_read_log(self, stream: str) -> bool:
        """Whether they may read the logs of the tasks of a stream's DAG."""
        return bool(
            _auth_manager().is_authorized_dag(
                method="GET", access_entity=DagAccessEntity.TASK_LOGS, details=DagDetails(id=stream), user=self.user
            )
        )

    def may_see_samples(self, stream: str) -> bool:
        """Whether they may see records in the quarantine of a stream that they may read.

        The permission is that to read the custom view `SAMPLES_VIEW`. Airflow's simple auth manager permits every
        custom view to everybody who is logged in, also one that does not exist; there, who may edit the DAG sees them.
        """
        if not self.may_view(SAMPLES_VIEW):
            return False
        return not self.may_view(_NO_VIEW) or bool(self.may_act_on([stream]))

    def may_view(self, name: str) -> bool:
        """Whether they may read a custom view, as Airflow's auth managers call a view of a plugin."""
        return bool(_auth_manager().is_authorized_custom_view(method="GET", resource_name=name, user=self.user))

    def _permitted(self, streams: Iterable[str], method: Method) -> frozenset[str]:
        """One question to Airflow about all of its DAGs; streams without a DAG are asked about one by one."""
        names = frozenset(streams)
        permitted = _auth_manager().get_authorized_dag_ids(user=self.user, method=method)
        known = names & permitted
        return known | {
            name
            for name in names - known
            if _auth_manager().is_authorized_dag(method=method, details=DagDetails(id=name), user=self.user)
        }


def _auth_manager() -> BaseAuthManager[Any]:
    return get_auth_manager()


def _reader(user: GetUserDep) -> Reader:
    return Reader(user=user, name=str(user.get_name()))


ReaderDep = Annotated[Reader, Depends(_reader)]
"""The person who asks, as a parameter of a route."""

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
