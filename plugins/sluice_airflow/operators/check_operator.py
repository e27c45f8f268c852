"""The check of a table as a task, with the way to what each of its rules found."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow.sdk import BaseOperatorLink, conf

from sluice_airflow.operators.work_operator import WorkOperator
from sluice_airflow.pages.page_addresses import quality_address

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class QualityReportLink(BaseOperatorLink):
    """The button on the page of the task. Airflow saves its address whenever the task stops running on a worker, so it
    is there while the check is awaited and when it has failed."""

    @property
    def name(self) -> str:
        """What the button says."""
        return "Quality report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # Airflow's signature
        """The page of the table's quality, in this Airflow: with the path below which it lies, without its host."""
        below = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
        return f"{below}/{quality_address(getattr(operator, 'subject', ''))}"


class CheckOperator(WorkOperator):
    """Check a table against its rules."""

    operator_extra_links = (QualityReportLink(),)
