"""Who asks, and what they may see and do: Airflow's own login and its permissions for each DAG.

The DAG of a stream has the stream's name. Who may read the DAG sees the stream; who may edit the DAG, and so pause it,
may start, stop, restart and reset the stream. Data of a stream are behind a permission of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Depends

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
