"""What was seen of a failure: the chain of its errors; and the words in which it is told everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureClass(StrEnum):
    """What kind of failure ended a run; each has a restart policy of its own (`decisions.restart_policy`)."""

    TRANSIENT = "transient"
    INFRASTRUCTURE = "infrastructure"
    SOURCE_DATA_LOST = "source_data_lost"
    POISON_DATA = "poison_data"
    SCHEMA = "schema"
    CHECKPOINT = "checkpoint"
    COMMIT_CONFLICT = "commit_conflict"
    RESOURCE = "resource"
    CODE = "code"
    UNKNOWN = "unknown"


class FailureReason(StrEnum):
    """Why, in one word. The same word stands in the ledger, in logs, in Airflow, in the command line's answers."""

    SERVICE_BUSY = "service_busy"
    TIMED_OUT = "timed_out"
    LEASE_LOST = "lease_lost"
    COMMIT_UNCERTAIN = "commit_uncertain"

    KAFKA_UNREACHABLE = "kafka_unreachable"
    CATALOG_UNREACHABLE = "catalog_unreachable"
    OBJECT_STORE_UNREACHABLE = "object_store_unreachable"
    LEDGER_UNREACHABLE = "ledger_unreachable"
    REGISTRY_UNREACHABLE = "registry_unreachable"
    NETWORK_UNREACHABLE = "network_unreachable"
    ACCESS_REFUSED = "access_refused"
    SOURCE_MISSING = "source_missing"
    DRIVER_KILLED = "driver_killed"
    DRIVER_LOST = "driver_lost"
    LAUNCH_FAILED = "launch_failed"

    OFFSETS_LOST = "offsets_lost"
    SNAPSHOT_EXPIRED = "snapshot_expired"
    FILE_VANISHED = "file_vanished"

    MALFORMED_RECORD = "malformed_record"
    VALUE_REFUSED = "value_refused"
    AMBIGUOUS_MERGE = "ambiguous_merge"

    SCHEMA_DIFFERS = "schema_differs"
    COLUMN_MISSING = "column_missing"
    TABLE_MISSING = "table_missing"

    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    CHECKPOINT_FOREIGN = "checkpoint_foreign"
    QUERY_CHANGED = "query_changed"
    TABLE_DIVERGED = "table_diverged"

    COMMIT_CONFLICT = "commit_conflict"
    COMMIT_STARVED = "commit_starved"

    OUT_OF_MEMORY = "out_of_memory"
    DISK_FULL = "disk_full"
    TOO_MANY_FILES = "too_many_files"
    WORKER_DIED = "worker_died"

    TRANSFORMATION_FAILED = "transformation_failed"
    QUERY_REFUSED = "query_refused"
    DECLARATION_REFUSED = "declaration_refused"
    SETTINGS_REFUSED = "settings_refused"

    ENDED_BY_ITSELF = "ended_by_itself"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLink:
    """One error of a chain.

    kind: the class of the error with its package, as Java or Python names it; Python's own without one.
    message: what it said, shortened.
    condition: Spark's error condition, an SQLSTATE, the name of an errno, an S3 error code; empty without one.
    """

    kind: str
    message: str = ""
    condition: str = ""

    @property
    def name(self) -> str:
        """The class of the error without its package."""
        return self.kind.rpartition(".")[2]


ErrorChain = tuple[ErrorLink, ...]
"""The errors of one failure, the outermost first, each caused by the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure as it is told: its class, and the reason within it."""

    failure_class: FailureClass
    reason: FailureReason
