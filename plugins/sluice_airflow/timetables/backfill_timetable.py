"""A timetable that yields runs for backfills only: whole hours, days or months in UTC, and never a scheduled run.

Airflow asks a timetable for the runs of a backfill as it asks for scheduled ones, but with catch-up, whatever the DAG
says. A DAG without catch-up is therefore asked with it for backfills alone.

Source: `SerializedDAG.iter_dagrun_infos_between` of Airflow 3.3, and decision 0041.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.timetables.interval import CronDataIntervalTimetable

if TYPE_CHECKING:
    from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction

_CRON = {"hour": "0 * * * *", "day": "0 0 * * *", "month": "0 0 1 * *"}


class BackfillTimetable(CronDataIntervalTimetable):
    """The intervals of a backfill.

    Parameters
    ----------
    length: `hour`, `day` or `month`.
    """

    def __init__(self, length: str) -> None:
        super().__init__(_CRON[length], timezone="UTC")
        self.length = length
        self.description = f"Runs for backfills only, each of one {length}"

    @property
    def summary(self) -> str:
        """What the list of DAGs shows as the schedule."""
        return f"backfills by {self.length}"

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """The next interval of a backfill; none when the scheduler asks."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )

    def serialize(self) -> dict[str, Any]:
        """The parameter, for the database."""
        return {"length": self.length}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> BackfillTimetable:
        """The timetable that was serialized."""
        return cls(data["length"])


ALL_BUT_BACKFILLS = frozenset(DagRunType) - {DagRunType.BACKFILL}
"""The types of runs that the own DAG of a stream takes: its page names the DAG for backfills."""
