"""Starts runs of Airflow's DAGs, and waits for them as for all of the demo: as long as anything on the platform moves.

A wait with a total would fail on a busy machine although the platform is at work. A wait without any would never report
a platform that hangs. So every wait of the demo ends early only when nothing has moved for some time, wherever: a
record sent, a batch or a job recorded in the ledger, a task of Airflow in another state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import TypeVar

from sluice.demo.airflow_api import AirflowApi, DagRunObservation
from sluice.demo.stream_watch import SILVER, STREAMS
from sluice.errors import DemonstrationError

Answer = TypeVar("Answer")

STANDSTILL_SECONDS = 480.0
"""The longest step of the platform that shows nothing, a start of several JVMs, takes half a minute on two idle cores.
It is less than the ten minutes after which the schedule of the weather moves something by itself."""

_OBSERVE_EVERY_SECONDS = 10.0
"""An observation asks the ledger and Airflow, and is of interest only when nothing happens."""

_POLL_SECONDS = 1.0
"""Several waits at a time look at the streams and ask Airflow's API server, each for some hundredths of a second of a
processor: twice a second they would cost as much as a driver's start."""


class Standstill:
    """Waits, and notices when nothing moves. Safe to use from several threads.

    Parameters
    ----------
    observe: what the platform has done so far; another value is a move.
    stopped: ends every wait when it is set.
    clock: a monotonic clock in seconds.
    """

    def __init__(
        self, observe: Callable[[], object], *, stopped: Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._observe = observe
        self._stopped = stopped
        self._clock = clock
        self._lock = threading.Lock()
        self._observed_at = float("-inf")
        self._observed: object = None
        self._moved_at = float("-inf")

    def note_move(self) -> None:
        """Note a move that no observation shows."""
        self._moved_at = self._clock()

    def await_answer(self, look: Callable[[], Answer | None], *, what: str, next_step: str) -> Answer:
        """Look repeatedly until there is an answer.

        Parameters
        ----------
        look: looks once; None when there is no answer yet.
        what: what is not so yet, as the beginning of a sentence.
        next_step: what a person does when nothing moves.

        Raises
        ------
        DemonstrationError: when nothing has moved for `STANDSTILL_SECONDS`, or the demo is stopped.
        """
        began = self._clock()
        while (answer := look()) is None:
            self._observe_when_due()
            if self._clock() - max(began, self._moved_at) > STANDSTILL_SECONDS:
                raise DemonstrationError(
                    f"{what}, and nothing has moved for {STANDSTILL_SECONDS:.0f} s.", next_step=next_step
                )
            if self._stopped.wait(_POLL_SECONDS):
                raise DemonstrationError("The demo was stopped.")
        return answer

    def _observe_when_due(self) -> None:
        with self._lock:
            if self._clock() - self._observed_at < _OBSERVE_EVERY_SECONDS:
                return
            seen = self._observe()
            self._observed_at = self._clock()
            if seen != self._observed:
                self._observed, self._moved_at = seen, self._observed_at


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
