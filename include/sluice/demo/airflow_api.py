"""The requests that the demo makes to Airflow, through its public REST API, and the runs that it starts and waits for.

The client from PyPI, `apache-airflow-client`, is not used: for these few requests it brings a second HTTP library, and
its import takes 1.1 s of a processor, that of httpx 0.1.

Source: https://airflow.apache.org/docs/apache-airflow/stable/stable-rest-api-ref.html

A wait with a total would fail on a busy machine although the platform is at work. A wait without any would never report
a platform that hangs. So every wait of the demo ends early only when nothing has moved for some time, wherever: a
record sent, a batch or a job recorded in the ledger, a task of Airflow in another state.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import Any, TypeVar

import httpx

from sluice.demo.report import SILVER, STREAMS
from sluice.errors import DemonstrationError

_REQUEST_SECONDS = 120.0
"""Longer than any answer takes, also of an API server that shares its cores with twenty other programs."""

_LOG_TAIL_LINES = 15
_ENDED_ALREADY = httpx.codes.CONFLICT
_ENDED = frozenset({"success", "failed"})
_FAILED_TASKS = frozenset({"failed", "upstream_failed"})

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowAccess:
    """Airflow's address and a login. url: the root of its web address. `repr` hides the password."""

    url: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"AirflowAccess(url={self.url!r}, user={self.user!r}, password=***)"


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRunObservation:
    """A DAG run as Airflow reports it. state: `queued`, `running`, `success` or `failed`."""

    dag_id: str
    run_id: str
    run_type: str
    state: str

    @property
    def has_ended(self) -> bool:
        """Whether the run has reached a final state."""
        return self.state in _ENDED


@contextmanager
def open_airflow_api(access: AirflowAccess) -> Iterator[AirflowApi]:
    """Log in to Airflow; the connection is closed when the block ends.

    Raises
    ------
    DemonstrationError: when Airflow does not answer or rejects the login.
    """
    with httpx.Client(base_url=access.url, timeout=_REQUEST_SECONDS) as client:
        api = AirflowApi(client)
        answer = api.request("POST", "/auth/token", json={"username": access.user, "password": access.password})
        client.headers["Authorization"] = f"Bearer {answer['access_token']}"
        yield api


class AirflowApi:
    """A logged-in connection to Airflow; see `open_airflow_api`."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def is_known(self, dag_id: str) -> bool:
        """Whether Airflow has parsed the file of a DAG."""
        return self._request_or_none("GET", f"/api/v2/dags/{dag_id}") is not None

    def unpause(self, dag_id: str) -> None:
        """Unpause a DAG."""
        self.request("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": False})

    def trigger(self, dag_id: str, *, conf: Mapping[str, object]) -> DagRunObservation:
        """Trigger a run of a DAG. conf: its parameters."""
        order = {"logical_date": None, "conf": dict(conf)}
        return _run_of(self.request("POST", f"/api/v2/dags/{dag_id}/dagRuns", json=order))

    def runs(self, dag_id: str, **filters: str) -> tuple[DagRunObservation, ...]:
        """The newest runs of a DAG, newest first.

        Parameters
        ----------
        filters: conditions of Airflow's API, such as `run_type`.
        """
        query = {"order_by": "-run_after", "limit": 50, **filters}
        answer = self.request("GET", f"/api/v2/dags/{dag_id}/dagRuns", params=query)
        return tuple(_run_of(run) for run in answer["dag_runs"])

    def find_run(self, run: DagRunObservation) -> DagRunObservation:
        """A run as it is now."""
        return _run_of(self.request("GET", _path(run)))

    def new_run(self, dag_id: str, *, known: frozenset[str]) -> DagRunObservation | None:
        """The newest run of a DAG whose id is not among `known`."""
        return next((run for run in self.runs(dag_id) if run.run_id not in known), None)

    def is_run_due(self, dag_id: str) -> bool:
        """Whether Airflow itself starts a run of an unpaused DAG now."""
        due = self.request("GET", f"/api/v2/dags/{dag_id}")["next_dagrun_run_after"]
        return due is not None and datetime.fromisoformat(due) <= datetime.now(UTC)

    def observe_tasks(self, dag_ids: Sequence[str]) -> object:
        """The states of the tasks of DAGs, to be compared with those of another moment."""
        wanted = {"dag_ids": list(dag_ids), "page_limit": 100, "order_by": "-start_date"}
        answer = self.request("POST", "/api/v2/dags/~/dagRuns/~/taskInstances/list", json=wanted)
        fields = ("dag_id", "dag_run_id", "task_id", "map_index", "try_number", "state")
        return frozenset(tuple(task[field] for field in fields) for task in answer["task_instances"])

    def open_backfill(self, dag_id: str) -> int | None:
        """The id of the newest backfill of a DAG, when Airflow has not noticed its end yet."""
        newest_first = {"dag_id": dag_id, "order_by": "-id", "limit": 1}
        found = self.request("GET", "/api/v2/backfills", params=newest_first)["backfills"]
        return next((int(one["id"]) for one in found if one["completed_at"] is None), None)

    def close_backfill(self, dag_id: str) -> None:
        """Let Airflow notice now that the newest backfill of a DAG, whose runs have ended, has ended too."""
        if (number := self.open_backfill(dag_id)) is not None:
            self._request_or_none("PUT", f"/api/v2/backfills/{number}/cancel", none_at=_ENDED_ALREADY)

    def has_raised_asset_events(self, run: DagRunObservation) -> bool:
        """Whether tasks of a run have raised asset events."""
        query = {"source_dag_id": run.dag_id, "source_run_id": run.run_id}
        return bool(self.request("GET", "/api/v2/assets/events", params=query)["asset_events"])

    def request(self, method: str, path: str, **arguments: Any) -> Any:
        """Make one request, and return its JSON answer.

        Raises
        ------
        DemonstrationError: when Airflow does not answer, or answers with an error.
        """
        answer = self._request_or_none(method, path, **arguments)
        if answer is None:
            raise DemonstrationError(f"Airflow at {self._client.base_url} has nothing at {method} {path}.")
        return answer

    def _request_or_none(
        self, method: str, path: str, *, none_at: int = httpx.codes.NOT_FOUND, **arguments: Any
    ) -> Any | None:
        """The answer of a request; None when Airflow answers with the status `none_at`."""
        try:
            response = self._client.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise DemonstrationError(
                f"Airflow at {self._client.base_url} does not answer: {type(error).__name__} {error}.",
                next_step="Look at `sluice stack status`.",
            ) from error
        if response.status_code == none_at:
            return None
        if response.is_error:
            raise DemonstrationError(
                f"Airflow answers {response.status_code} to {method} {path}: {response.text[:500]}",
                next_step="Look at `sluice stack logs airflow-api-server`.",
            )
        return response.json()

    def explain_failure(self, run: DagRunObservation) -> str:
        """The failed tasks of a run, and the end of the log of the first of them."""
        run_path = _path(run)
        tasks = self.request("GET", f"{run_path}/taskInstances", params={"limit": 100})["task_instances"]
        failed = [task for task in tasks if task["state"] in _FAILED_TASKS]
        names = ", ".join(task["task_id"] for task in failed)
        first = next((task for task in failed if task["state"] == "failed"), None)
        if first is None:
            return f"Failed tasks: {names or 'none'}."
        tail = self._log_tail(run_path, task_id=first["task_id"], try_number=first["try_number"])
        return f"Failed tasks: {names}. The end of the log of {first['task_id']}:\n{tail}\n"

    def _log_tail(self, run_path: str, *, task_id: str, try_number: int) -> str:
        path = f"{run_path}/taskInstances/{task_id}/logs/{try_number}"
        answer = self._request_or_none("GET", path, params={"full_content": True})
        lines = [_log_line(line) for line in (answer or {}).get("content", [])]
        return "\n".join(f"    {line}" for line in lines[-_LOG_TAIL_LINES:])


def _path(run: DagRunObservation) -> str:
    return f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}"


def _run_of(answer: dict[str, Any]) -> DagRunObservation:
    return DagRunObservation(
        dag_id=answer["dag_id"], run_id=answer["dag_run_id"], run_type=answer["run_type"], state=answer["state"]
    )


def _log_line(line: str | dict[str, Any]) -> str:
    """The message of a log line, with the type and the text of its errors."""
    if isinstance(line, str):
        return line
    errors = [f"{error.get('exc_type')}: {error.get('exc_value')}" for error in line.get("error_detail") or ()]
    return " ".join([str(line.get("event", json.dumps(line))), *errors])
