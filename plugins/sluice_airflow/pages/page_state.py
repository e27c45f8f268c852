"""What the pages of one API server process share: the deployment, one small pool of connections, the declarations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from airflow.configuration import conf
from fastapi import Depends, Request

from sluice.declarations.loaded_declarations import Declarations, all_tables, declared_name
from sluice.ledger.connection import Ledger
from sluice.ledger.stream_troubles import StreamTrouble
from sluice.pages.backfill_days import BackfillDays
from sluice.pages.declared_now import DeclaredNow
from sluice.pages.job_plans import UNPAUSE
from sluice.pages.quarantine_page import QuarantineReading
from sluice.pages.stream_lines import ObservedStreams, ObservingLauncher, observe_streams
from sluice.pages.table_lines import visible_tables
from sluice.pages.table_looks import TableLooks
from sluice.supervision.platform_dags import MAINTENANCE_DAG, MISSED_WHILE_PAUSED, QUALITY_DAG
from sluice.supervision.platform_troubles import subjects_beside_streams, troubles_beside_streams
from sluice_airflow.composition import Deployment
from sluice_airflow.pages.airflow_requests import AskAirflow, ask_airflow
from sluice_airflow.pages.dag_outlooks import DagOutlook, find_outlooks
from sluice_airflow.pages.page_access import Reader
from sluice_airflow.pages.page_guard import PlanTokens, ShownPlan


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
