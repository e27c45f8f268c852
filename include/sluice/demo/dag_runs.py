"""Starts runs of Airflow's DAGs and waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.demo.airflow_api import AirflowApi, DagRunObservation
from sluice.demo.standstill import Standstill
from sluice.demo.stream_watch import SILVER, STREAMS
from sluice.errors import DemonstrationError

BRONZE_WEATHER, GOLD_BY_WEATHER = "bronze_weather", "gold_delays_by_weather"
MAINTENANCE, QUALITY, CHECKPOINT_HEALTH = "table_maintenance", "data_quality", "checkpoint_health"
BACKFILL = f"{SILVER}__backfill"
"""Its runs replace the interval of `silver_flights`, then that of gold, which follows it."""

DAGS = (*STREAMS, BRONZE_WEATHER, GOLD_BY_WEATHER, MAINTENANCE, QUALITY, CHECKPOINT_HEALTH, BACKFILL)
"""Every DAG that the demo waits for."""

MAINTAINED_TABLES = ("bronze.flights", "silver.flights")
"""The tables that the continuous streams fill with small files. The hourly run of the DAG takes all tables."""

CHECKED_TABLES = ("silver.flights", "gold.delays_by_carrier_hour")
"""Two of the tables that people read. The scheduled run of the DAG takes all tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRuns:
    """The runs of one Airflow. Every wait fails with a DemonstrationError when nothing on the platform moves."""

    airflow: AirflowApi
    standstill: Standstill

    def await_known(self, dag_id: str) -> None:
        """Wait until Airflow has parsed the file of a DAG."""
        self.standstill.await_answer(
            lambda: self.airflow.is_known(dag_id) or None,
            what=f"Airflow does not know the DAG {dag_id}",
            next_step="Look at `sluice validate` and at `sluice stack logs airflow-dag-processor`.",
        )

    def run_now(self, dag_id: str, *, conf: Mapping[str, object], known: frozenset[str]) -> DagRunObservation:
        """Run an unpaused DAG now: take the run that Airflow starts itself when one is due, otherwise trigger one.

        A DAG whose schedule was due while it was paused, or while Airflow was down, starts a run as soon as it can. A
        second run right behind that one would only repeat its work.

        Parameters
        ----------
        conf: the parameters of a triggered run.
        known: the ids of earlier runs; none of them is taken.
        """

        def started_run() -> DagRunObservation | None:
            if (started := self.airflow.new_run(dag_id, known=known)) is not None:
                return started
            return None if self.airflow.is_run_due(dag_id) else self.airflow.trigger(dag_id, conf=conf)

        return self.standstill.await_answer(
            started_run,
            what=f"Airflow has not started the run of {dag_id} that is due",
            next_step="Look at `sluice stack logs airflow-scheduler`.",
        )

    def await_new(self, dag_id: str, *, known: frozenset[str]) -> DagRunObservation:
        """Wait until Airflow itself has started a run whose id is not among `known`."""
        return self.standstill.await_answer(
            lambda: self.airflow.new_run(dag_id, known=known),
            what=f"Airflow has not started a run of {dag_id}",
            next_step="Look at `sluice stack logs airflow-scheduler`.",
        )

    def await_success(self, run: DagRunObservation) -> DagRunObservation:
        """Wait until a run has succeeded.

        Raises
        ------
        DemonstrationError: also when the run fails, with the failed task and the end of its log.
        """

        def ended() -> DagRunObservation | None:
            seen = self.airflow.find_run(run)
            return seen if seen.has_ended else None

        seen = self.standstill.await_answer(
            ended,
            what=f"Run {run.run_id} of the DAG {run.dag_id} has not ended",
            next_step=f"Look at the DAG {run.dag_id} in Airflow.",
        )
        if seen.state != "success":
            raise DemonstrationError(
                f"Run {run.run_id} of the DAG {run.dag_id} failed. {self.airflow.explain_failure(run)}",
                next_step="The task's whole log is in Airflow. The same command continues where this one stopped.",
            )
        return seen
