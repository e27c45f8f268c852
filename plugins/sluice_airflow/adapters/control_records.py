"""What the middleware `ControlPermission` reads from Airflow's database and records in the ledger."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from sluice.errors import SluiceError
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.control_requests import record_answer, record_control_request
from sluice.ledger.control_values import Person
from sluice.settings import load_settings
from sluice_airflow.adapters.control_routes import CONTROL_DAG, digest_in

_log = logging.getLogger(__name__)

_Found = TypeVar("_Found")


class LedgerControlRecords:
    """The records of this Airflow and of its deployment's ledger."""

    async def stream_of_run(self, run_id: str) -> str | None:
        """The stream in the conf of a run."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import select

        def find() -> str | None:
            with create_session() as session:
                query = select(DagRun.conf).where(DagRun.dag_id == CONTROL_DAG, DagRun.run_id == run_id)
                conf = session.scalars(query).one_or_none()
            stream = (conf or {}).get("stream")
            return stream if isinstance(stream, str) else None

        return await _in_thread(find)

    async def shown_digest(self, run_id: str, task: str, *, map_index: int) -> str | None:
        """The digest within the text that Airflow shows: after a task was cleared it is still the first one."""
        from airflow.models.hitl import HITLDetail
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        def find() -> str | None:
            query = (
                select(HITLDetail.body)
                .join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
                .where(
                    TaskInstance.dag_id == CONTROL_DAG,
                    TaskInstance.run_id == run_id,
                    TaskInstance.task_id == task,
                    TaskInstance.map_index == map_index,
                )
            )
            with create_session() as session:
                body = session.scalars(query).one_or_none()
            return digest_in(body or "")

        return await _in_thread(find)

    async def record_request(self, run_id: str, conf: Mapping[str, Any], *, by: Person) -> bool | None:
        """Record the request."""
        batch, digest = conf.get("batch"), conf.get("plan_digest")

        def record() -> bool:
            return record_control_request(
                _ledger(),
                run_id,
                stream=str(conf["stream"]),
                verb=str(conf.get("verb")),
                by=by,
                batch=batch if isinstance(batch, int) else None,
                plan_digest=digest if isinstance(digest, str) else None,
            )

        return await _in_thread(lambda: _recorded(record))

    async def record_answer(self, run_id: str, *, by: Person, approved_digest: str | None) -> bool | None:
        """Record the answer."""
        return await _in_thread(
            lambda: _recorded(lambda: record_answer(_ledger(), run_id, by=by, approved_digest=approved_digest))
        )


def _recorded(record: Callable[[], bool]) -> bool | None:
    try:
        return record()
    except SluiceError as error:
        _log.warning("a request about stream_control was not recorded: %s", error)
        return None


async def _in_thread(work: Callable[[], _Found]) -> _Found:
    from starlette.concurrency import run_in_threadpool

    return await run_in_threadpool(work)


@cache
def _ledger() -> Ledger:
    """The ledger of this process; it connects with the first query."""
    return open_ledger(load_settings().ledger_url)
