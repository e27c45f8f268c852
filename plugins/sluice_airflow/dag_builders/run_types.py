"""The types of runs that DAGs take."""

from __future__ import annotations

from airflow.sdk.api.datamodels._generated import DagRunType

ALL_BUT_BACKFILLS = frozenset(DagRunType) - {DagRunType.BACKFILL}
"""Those that the own DAG of a stream takes: its page names the DAG for backfills. A module of its own, since the
operators of backfills are not imported where continuous streams are parsed."""
