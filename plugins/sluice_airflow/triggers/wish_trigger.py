"""The former name of `DesiredStateTrigger`. Airflow's database holds this path and these arguments for every task that
an earlier version deferred until its stream is started; such a task may wait for months.
"""

from __future__ import annotations

from sluice_airflow.triggers.desired_state_trigger import DesiredStateTrigger


class WishTrigger(DesiredStateTrigger):
    """A `DesiredStateTrigger` under the arguments of version 1.

    Parameters
    ----------
    wished_at: now `known_change_at`.
    """

    arguments = ("stream", "wished_at", "due_seconds", "poll_seconds", "version")

    def __init__(
        self, *, stream: str, wished_at: str | None, due_seconds: float | None, poll_seconds: float, version: int = 1
    ) -> None:
        super().__init__(
            stream=stream,
            known_change_at=wished_at,
            due_seconds=due_seconds,
            poll_seconds=poll_seconds,
            version=version,
        )
        self.wished_at = wished_at
