"""Everything that Sluice raises on purpose, in one tree.

SluiceError
├── UsageError              the command was called wrongly (exit code 2)
├── SettingsError           the environment does not describe a usable deployment (exit code 2)
├── DeclarationError        a declaration is wrong; knows file and line (exit code 2)
├── NotYetError             a declaration asks for a part that does not work yet; a DeclarationError
├── PrerequisiteError       what the machine must bring is missing and may not be installed
├── StackError              a local service cannot be started, reached or stopped
├── LedgerError             the ledger refuses or cannot be reached
├── LedgerUnreachableError  the ledger does not answer now; a LedgerError that is worth another try
├── RunAlreadyLiveError     a stream has a live run already; a LedgerError that knows the run
├── LeaseLostError          a driver may not publish any more: its lease is over
├── LaunchError             a driver cannot be started
├── ClusterError            a cluster's API does not answer, or refuses; nothing is known then
├── LakehouseError          a table, the catalog or the object store refuses
├── RegistryError           a schema registry refuses, or holds no schema that can be used
├── RegistryUnreachableError  a schema registry does not answer now; a RegistryError that is worth another try
├── DeliveryError           a batch cannot be made visible
├── SchemaError             the rows of an output do not fit their table; a DeliveryError that knows the differences
│   ├── UnpublishableError  nothing can be published into this table in this way, and why
│   ├── StagingError        a staging table is not as publication left it
│   ├── MarkError           the mark on the target is missing, cannot be read, or is of another generation
│   ├── StaleTokenError     a newer run has taken the stream over; this one must end
│   ├── DivergedError       the table holds another batch under this number, or one after it
│   ├── RolledBackError     the target was set back behind the mark
│   ├── StarvedError        other writers won every race; nothing was published
│   └── UncertainError      nobody knows whether a commit landed
├── CheckpointError         a checkpoint is damaged or is not the stream's
├── DemonstrationError      a step of the demo failed or took too long
├── VerificationError       what was counted does not add up
└── UnhealthyError          the command worked and its answer is bad news

A message says what went wrong, where, what was got and what is allowed; `next_step` says the one thing to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


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


class SluiceError(Exception):
    """The root: a sentence for a person, and the next step.

    Parameters
    ----------
    message: what went wrong, where, what was got, what is allowed.
    next_step: the one thing to do about it; empty when the message already is the instruction.
    """

    exit_code = 1

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".rstrip()


class UsageError(SluiceError):
    """The command was called wrongly."""

    exit_code = 2


class SettingsError(SluiceError):
    """The environment does not describe a usable deployment."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where something was written: a file and, where it is known, the 1-based line."""

    file: Path
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line is not None else str(self.file)


class DeclarationError(SluiceError):
    """A declaration is wrong.

    Parameters
    ----------
    message: what was got and what is allowed, without the place.
    location: the file and line of the key that is wrong.
    """

    exit_code = 2

    def __init__(self, message: str, *, location: Location, next_step: str = "") -> None:
        super().__init__(f"{location}: {message}", next_step=next_step)
        self.location = location
        self.problem = message


class NotYetError(DeclarationError):
    """A declaration asks for a part of the design that does not work yet, so it is refused instead of ignored."""


class PrerequisiteError(SluiceError):
    """What the machine must bring, for example Java, is missing and cannot or may not be installed."""


class StackError(SluiceError):
    """A local service cannot be started, reached or stopped."""


class LedgerError(SluiceError):
    """The ledger refuses, or cannot be reached."""


class LedgerUnreachableError(LedgerError):
    """The ledger does not answer now. Asking again later may help, which is true of no other `LedgerError`."""


class RunAlreadyLiveError(LedgerError):
    """A stream has a live run, so the ledger admits no other.

    Parameters
    ----------
    stream: the stream.
    run_id: the live run, which is to be adopted instead.
    launch: its state, and who launched it when, for a person.
    """

    def __init__(self, *, stream: str, run_id: str, launch: str) -> None:
        super().__init__(
            f"Stream {stream} has a live run: {run_id}, {launch}. A stream has one run at a time.",
            next_step=f"Adopt that run, or stop it first: `sluice stream stop {stream}`.",
        )
        self.stream = stream
        self.run_id = run_id


class LeaseLostError(SluiceError):
    """A run does not hold its lease any more, or cannot know it; it publishes nothing more and stops."""


class LaunchError(SluiceError):
    """A driver cannot be started."""


class ClusterError(SluiceError):
    """A cluster's API does not answer, or refuses. What it was asked about is unknown, and nothing follows from it.

    Parameters
    ----------
    message: who was asked, and what came back.
    status: the HTTP status of a refusal; unset when there was no answer.
    """

    def __init__(self, message: str, *, status: int | None = None, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.status = status


class LakehouseError(SluiceError):
    """A table, the catalog or the object store refuses."""


class RegistryError(SluiceError):
    """A schema registry refuses, or holds no schema that can be used."""


class RegistryUnreachableError(RegistryError):
    """A schema registry does not answer now. Asking again later may help, which is true of no other `RegistryError`."""


class DeliveryError(SluiceError):
    """A batch cannot be made visible."""


class UnpublishableError(DeliveryError):
    """Nothing can be published into this table in this way; the message has the reason and the way out."""


class StagingError(DeliveryError):
    """A staging table is not as publication left it: somebody else wrote there, or removed what was staged."""


class MarkError(DeliveryError):
    """The mark on the target is missing, cannot be read, or is not of the generation that is published."""


class StaleTokenError(DeliveryError):
    """A newer run has taken the stream over. This one must end; nothing that it does is admitted any more."""


class DivergedError(DeliveryError):
    """The table holds another batch under this number, or one after it: checkpoint and table tell two stories."""


class RolledBackError(DeliveryError):
    """The target was set back, or replaced, behind the mark. Nothing is published until a person has resolved it."""


class StarvedError(DeliveryError):
    """Other writers of the table won every race, so nothing was published. Trying again later is safe."""


class UncertainError(DeliveryError):
    """The catalog's answer to a commit was lost and it cannot be asked whether it landed. Trying again is safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDifference:
    """A column that rows and their table do not agree on.

    column: its name; for a field inside a column, with the names of what it lies in.
    declared: the type in the table; empty when the table does not have it.
    got: the type in the rows; empty when the rows do not have it.
    """

    column: str
    declared: str
    got: str

    def __str__(self) -> str:
        return f"{self.column}: declared {self.declared or 'nothing'}, got {self.got or 'nothing'}"


class SchemaError(DeliveryError):
    """The rows of an output do not fit the table that they go into, so nothing is written.

    Parameters
    ----------
    message: which output of which stream, and which table.
    differences: every column that differs, in the order of the table.
    """

    def __init__(self, message: str, *, differences: tuple[ColumnDifference, ...], next_step: str) -> None:
        listed = "; ".join(str(difference) for difference in differences)
        super().__init__(f"{message} {listed}.", next_step=next_step)
        self.differences = differences


class CheckpointError(SluiceError):
    """A checkpoint is damaged, or is not the stream's."""


class DemonstrationError(SluiceError):
    """A step of the demo failed, or took longer than its deadline."""


class VerificationError(SluiceError):
    """What was counted does not add up."""


class UnhealthyError(SluiceError):
    """The command did its work and its answer is bad news: something that was looked at is not healthy."""
