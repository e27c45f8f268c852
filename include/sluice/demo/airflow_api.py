"""The requests that the demo makes to Airflow, through its public REST API.

The client from PyPI, `apache-airflow-client`, is not used: it brings a second HTTP library (urllib3) for six requests.

Source: https://airflow.apache.org/docs/apache-airflow/stable/stable-rest-api-ref.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import Any, TypeVar

import httpx
import tenacity

from sluice.errors import DemonstrationError

Answer = TypeVar("Answer")

_REQUEST_SECONDS = 30.0
_POLL_SECONDS = 0.5
_LOG_TAIL_LINES = 15
_ENDED = frozenset({"success", "failed"})
_FAILED_TASKS = frozenset({"failed", "upstream_failed"})


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
def open_airflow_api(access: AirflowAccess, *, stopped: Event) -> Iterator[AirflowApi]:
    """Log in to Airflow; the connection is closed when the block ends.

    Parameters
    ----------
    access: Airflow's address and the login.
    stopped: ends every wait when it is set.

    Raises
    ------
    DemonstrationError: when Airflow does not answer or rejects the login.
    """
    with httpx.Client(base_url=access.url, timeout=_REQUEST_SECONDS) as client:
        api = AirflowApi(client, stopped=stopped)
        answer = api.request("POST", "/auth/token", json={"username": access.user, "password": access.password})
        client.headers["Authorization"] = f"Bearer {answer['access_token']}"
        yield api


class AirflowApi:
    """A logged-in connection to Airflow; see `open_airflow_api`."""

    def __init__(self, client: httpx.Client, *, stopped: Event) -> None:
        self._client = client
        self._stopped = stopped

    def await_known(self, dag_id: str, *, deadline_seconds: float) -> None:
        """Wait until Airflow has parsed the file of a DAG.

        Raises
        ------
        DemonstrationError: when it has not done so within `deadline_seconds`.
        """
        self.await_answer(
            lambda: self._request_or_none("GET", f"/api/v2/dags/{dag_id}"),
            what=f"Airflow does not know the DAG {dag_id}",
            deadline_seconds=deadline_seconds,
            next_step="Look at `sluice validate` and at `sluice stack logs airflow-dag-processor`.",
        )

    def unpause(self, dag_id: str) -> None:
        """Unpause a DAG."""
        self.request("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": False})

    def run_now(
        self, dag_id: str, *, conf: Mapping[str, object], known: frozenset[str], deadline_seconds: float
    ) -> DagRunObservation:
        """Run an unpaused DAG now: take the run that Airflow starts itself when one is due, otherwise trigger one.

        A DAG whose schedule was due while it was paused, or while Airflow was down, starts a run as soon as it can. A
        second run right behind that one would only repeat its work.

        Parameters
        ----------
        conf: the parameters of a triggered run.
        known: the ids of earlier runs; none of them is taken.

        Raises
        ------
        DemonstrationError: when Airflow has not started the due run within `deadline_seconds`.
        """

        def started_run() -> DagRunObservation | None:
            if (started := self._new_run(dag_id, known)) is not None:
                return started
            return None if self._is_run_due(dag_id) else self.trigger(dag_id, conf=conf)

        return self.await_answer(
            started_run,
            what=f"Airflow has not started the run of {dag_id} that is due",
            deadline_seconds=deadline_seconds,
            next_step="Look at `sluice stack logs airflow-scheduler`.",
        )

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

    def await_new_run(self, dag_id: str, *, known: frozenset[str], deadline_seconds: float) -> DagRunObservation:
        """Wait until Airflow itself has started a run whose id is not among `known`.

        Raises
        ------
        DemonstrationError: when there is none within `deadline_seconds`.
        """
        return self.await_answer(
            lambda: self._new_run(dag_id, known),
            what=f"Airflow has not started a run of {dag_id}",
            deadline_seconds=deadline_seconds,
            next_step="Look at `sluice stack logs airflow-scheduler`.",
        )

    def has_raised_asset_events(self, run: DagRunObservation) -> bool:
        """Whether tasks of a run have raised asset events."""
        query = {"source_dag_id": run.dag_id, "source_run_id": run.run_id}
        return bool(self.request("GET", "/api/v2/assets/events", params=query)["asset_events"])

    def await_success(self, run: DagRunObservation, *, deadline_seconds: float) -> DagRunObservation:
        """Wait until a run has succeeded.

        Raises
        ------
        DemonstrationError: when the run fails, with the failed task and the end of its log, or when it has not ended
            within `deadline_seconds`.
        """
        path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}"

        def ended() -> DagRunObservation | None:
            seen = _run_of(self.request("GET", path))
            return seen if seen.has_ended else None

        seen = self.await_answer(
            ended,
            what=f"Run {run.run_id} of the DAG {run.dag_id} has not ended",
            deadline_seconds=deadline_seconds,
            next_step=f"Look at the DAG {run.dag_id} in Airflow.",
        )
        if seen.state != "success":
            raise DemonstrationError(
                f"Run {run.run_id} of the DAG {run.dag_id} failed. {self._failed_tasks(path)}",
                next_step="The task's whole log is in Airflow. The same command continues where this one stopped.",
            )
        return seen

    def await_answer(
        self, seen: Callable[[], Answer | None], *, what: str, deadline_seconds: float, next_step: str
    ) -> Answer:
        """Look repeatedly until there is an answer.

        Parameters
        ----------
        seen: looks once; None when there is no answer yet.
        what: what is not so yet, as the beginning of a sentence.

        Raises
        ------
        DemonstrationError: when there is none within `deadline_seconds`, or the demo is stopped.
        """
        waiting = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda answer: answer is None),
            wait=tenacity.wait_fixed(_POLL_SECONDS),
            stop=tenacity.stop_after_delay(deadline_seconds) | tenacity.stop_when_event_set(self._stopped),
            sleep=tenacity.sleep_using_event(self._stopped),
        )
        try:
            answer = waiting(seen)
        except tenacity.RetryError as error:
            raise DemonstrationError(f"{what} after {deadline_seconds:.0f} s.", next_step=next_step) from error
        assert answer is not None  # noqa: S101  # what the retry has waited for
        return answer

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

    def _request_or_none(self, method: str, path: str, **arguments: Any) -> Any | None:
        """The answer of a request; None when Airflow answers 404."""
        try:
            response = self._client.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise DemonstrationError(
                f"Airflow at {self._client.base_url} does not answer: {type(error).__name__} {error}.",
                next_step="Look at `sluice stack status`.",
            ) from error
        if response.status_code == httpx.codes.NOT_FOUND:
            return None
        if response.is_error:
            raise DemonstrationError(
                f"Airflow answers {response.status_code} to {method} {path}: {response.text[:500]}",
                next_step="Look at `sluice stack logs airflow-api-server`.",
            )
        return response.json()

    def _new_run(self, dag_id: str, known: frozenset[str]) -> DagRunObservation | None:
        return next((run for run in self.runs(dag_id) if run.run_id not in known), None)

    def _is_run_due(self, dag_id: str) -> bool:
        due = self.request("GET", f"/api/v2/dags/{dag_id}")["next_dagrun_run_after"]
        return due is not None and datetime.fromisoformat(due) <= datetime.now(UTC)

    def _failed_tasks(self, run_path: str) -> str:
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
