"""The DAGs of the platform itself, and what is missed while one of them is paused."""

from __future__ import annotations

from collections.abc import Mapping

RECONCILER_DAG = "stream_reconciler"
QUALITY_DAG = "data_quality"
MAINTENANCE_DAG = "table_maintenance"
CHECKPOINTS_DAG = "checkpoint_health"
GAPS_DAG = "backfill_gaps"
REHEARSALS_DAG = "copy_rehearsals"
LEDGER_DAG = "ledger_upkeep"

MISSED_WHILE_PAUSED: Mapping[str, str] = {
    RECONCILER_DAG: "Streams are not brought to their desired states, and what is late or stalled is not noticed.",
    QUALITY_DAG: "No table is checked against its expectations.",
    MAINTENANCE_DAG: "No table is compacted, and no snapshot expires.",
    CHECKPOINTS_DAG: "No checkpoint is checked.",
    REHEARSALS_DAG: "No copy of a state is put back on trial.",
    GAPS_DAG: "No table is compared with what its sources give.",
    LEDGER_DAG: "The ledger and the logs grow.",
}
"""Those that run by a schedule, the most important first, each with what is missed while it is paused."""
