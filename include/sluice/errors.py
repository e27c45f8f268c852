"""Everything that Sluice raises on purpose, in one tree.

SluiceError
├── UsageError                      the command was called wrongly (exit code 2)
├── SettingsError                   the environment does not describe a usable deployment (exit code 2)
├── DeclarationError                a declaration is wrong; knows file and line (exit code 2)
│   └── NotYetError                 a declaration asks for a part that is not implemented yet
├── PrerequisiteError               a program of the machine, such as Java, is missing and may not be installed
├── StackError                      a local service cannot be started, reached or stopped
├── LedgerError                     the ledger refuses a change, or cannot be reached
│   ├── LedgerUnreachableError      the ledger does not answer now, or not in time; worth another try
│   ├── UnknownRunError             the ledger answers and has no such run
│   └── RunAlreadyLiveError         a stream has a live run already; knows the run
├── LeaseLostError                  a run may not publish any more: its lease is over
├── LaunchError                     a driver cannot be started
├── WithdrawnError                  work was stopped because it is not asked for any more
├── FilesDifferError                the host of a driver holds other files than the run was started for
├── JvmLostError                    the JVM of a driver ended by itself, or does not answer any more
│   ├── JvmKilledError              a signal ended the JVM of a driver
│   └── MemoryKillError             the kernel killed a process of a driver, because memory ran out
├── DriverUiError                   Spark's own UI of a driver cannot be shown
├── ClusterError                    a cluster's API does not answer, or refuses; the application's state is unknown
├── LakehouseError                  a table, the catalog or the object store refuses
│   └── SourceRefusedError          a source answered that it may not be read
├── RegistryError                   a schema registry refuses, or holds no schema that can be used
│   └── RegistryUnreachableError    a schema registry does not answer now; worth another try
├── DeliveryError                   a batch cannot be made visible
│   ├── UnpublishableError          nothing can be published into this table in this way, and why
│   ├── StagingError                a staging table was changed by another writer
│   │   └── StagedFilesMissingError files of a staged batch were deleted from the object store
│   ├── UndeclaredOutputError       batches are staged for an output that the stream no longer declares
│   ├── MarkError                   the mark on the target is missing, unreadable, or of another generation
│   ├── StaleTokenError             a newer run has taken the stream over; this one must end
│   ├── DivergedError               the table holds another batch under this number, or a later one
│   ├── RolledBackError             the target was set back behind the mark, or created again
│   ├── IntervalChangedError        somebody else changed the interval that a backfill replaces
│   ├── StarvedError                other writers committed first every time; nothing was published
│   ├── UncertainError              it is unknown whether a commit succeeded
│   └── SchemaError                 the rows of an output do not fit their table; knows the differences
├── InputGapError                   snapshots of an input were expired before a stream read them
├── InputReplacedError              an input was rolled back, or created again under its name
├── CheckpointError                 a checkpoint is damaged, or belongs to another stream
│   └── CheckpointStorageError      the storage of a checkpoint does not answer, or refuses
├── DemonstrationError              a step of the demo failed or took too long
├── VerificationError               counted figures are inconsistent
└── UnhealthyError                  the command succeeded and found something unhealthy

Each class carries the reason under which its failure is recorded (`sluice.failure_reasons`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sluice.failure_reasons import FailureReason
from sluice.messages import Location, one_line, redacted


class SluiceError(Exception):
    """The root: a sentence for a person, and the next step.

    Parameters
    ----------
    message: what went wrong, where, what was found, what is allowed. Secrets in it are recognised and left out.
    next_step: the one thing to do about it; empty when the message already is the instruction.

    Attributes
    ----------
    exit_code: the exit status of a command or job that ends with this error.
    failure_reason: the reason of the failure, whatever caused the error; unset when the causes decide.
    fallback_reason: the reason when no cause has one, for errors that only say where a failure happened.
    """

    exit_code: ClassVar[int] = 1
    failure_reason: ClassVar[FailureReason | None] = None
    fallback_reason: ClassVar[FailureReason | None] = None

    def __init__(self, message: str, *, next_step: str = "") -> None:
        self.message = redacted(message)
        self.next_step = redacted(next_step)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.next_step}".rstrip()


class UsageError(SluiceError):
    """The command was called wrongly."""

    exit_code, failure_reason = 2, FailureReason.DECLARATION_REFUSED


class SettingsError(SluiceError):
    """The environment does not describe a usable deployment."""

    exit_code, failure_reason = 2, FailureReason.SETTINGS_REFUSED


class DeclarationError(SluiceError):
    """A declaration is wrong.

    Parameters
    ----------
    message: what was found and what is allowed, without the place; it becomes one line, as it may repeat any text.
    location: the file and line of the key that is wrong.
    """

    exit_code, fallback_reason = 2, FailureReason.DECLARATION_REFUSED

    def __init__(self, message: str, *, location: Location, next_step: str = "") -> None:
        message = one_line(message)
        super().__init__(f"{location}: {message}", next_step=next_step)
        self.location = location
        self.problem = redacted(message)


class NotYetError(DeclarationError):
    """A declaration asks for a part that is not implemented yet; it is refused instead of ignored."""


class PrerequisiteError(SluiceError):
    """A program that the machine must have, for example Java, is missing and cannot or may not be installed."""

    failure_reason = FailureReason.SETTINGS_REFUSED


class StackError(SluiceError):
    """A local service cannot be started, reached or stopped."""

    fallback_reason = FailureReason.NETWORK_UNREACHABLE


class LedgerError(SluiceError):
    """The ledger refuses a change, or cannot be reached."""

    fallback_reason = FailureReason.SETTINGS_REFUSED


class LedgerUnreachableError(LedgerError):
    """The ledger does not answer now, or not in time. A later try may succeed, unlike after any other `LedgerError`."""

    failure_reason = FailureReason.LEDGER_UNREACHABLE


class UnknownRunError(LedgerError):
    """The ledger answers and has no such run, as when an older copy has replaced it: its driver has lost its lease."""

    failure_reason = FailureReason.LEASE_LOST

    def __init__(self, run_id: str) -> None:
        super().__init__(f"The ledger has no run {run_id}.", next_step="See the runs with `sluice stream list`.")
        self.run_id = run_id


class RunAlreadyLiveError(LedgerError):
    """A stream has a live run, so the ledger does not admit another one.

    run_id: the live run, which is adopted instead. launch: its state, by whom it was launched, and when, for a person.
    """

    failure_reason = FailureReason.LEASE_LOST

    def __init__(self, *, stream: str, run_id: str, launch: str) -> None:
        super().__init__(
            f"Stream {stream} has a live run: {run_id}, {launch}. A stream has one run at a time.",
            next_step=f"Adopt that run, or stop it first: `sluice stream stop {stream}`.",
        )
        self.stream = stream
        self.run_id = run_id


class LeaseLostError(SluiceError):
    """A run no longer holds its lease, or cannot confirm that it does. It publishes nothing more and stops."""

    failure_reason = FailureReason.LEASE_LOST


class LaunchError(SluiceError):
    """A driver cannot be started."""

    failure_reason = FailureReason.LAUNCH_FAILED


class WithdrawnError(SluiceError):
    """Work was stopped between two steps, because it is not asked for any more or its application ends."""


class FilesDifferError(SluiceError):
    """The host of a driver holds other files of a stream than the run was started for; nothing was begun."""

    failure_reason = FailureReason.FILES_DIFFER


class JvmLostError(SluiceError):
    """The JVM of a driver ended by itself, or its connection is lost, so the driver's Python cannot continue."""

    failure_reason = FailureReason.DRIVER_LOST


class JvmKilledError(JvmLostError):
    """A signal ended the JVM of a driver."""

    failure_reason = FailureReason.DRIVER_KILLED


class MemoryKillError(JvmLostError):
    """The kernel killed the JVM or a worker of a driver, because memory ran out."""

    failure_reason = FailureReason.OUT_OF_MEMORY


class DriverUiError(SluiceError):
    """Spark's own UI of a driver cannot be shown, and why."""


class ClusterError(SluiceError):
    """A cluster's API does not answer, or refuses. The state of the application is unknown then.

    Parameters
    ----------
    message: which API was called, and its answer.
    status: the HTTP status of a refusal; unset when there was no answer.
    """

    def __init__(self, message: str, *, status: int | None = None, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.status = status


class LakehouseError(SluiceError):
    """A table, the catalog or the object store refuses."""

    fallback_reason = FailureReason.CATALOG_UNREACHABLE


class SourceRefusedError(LakehouseError):
    """A source answered that it may not be read."""

    failure_reason = FailureReason.ACCESS_REFUSED


class RegistryError(SluiceError):
    """A schema registry refuses, or holds no schema that can be used."""

    fallback_reason = FailureReason.DECLARATION_REFUSED


class RegistryUnreachableError(RegistryError):
    """A schema registry does not answer now. A later try may succeed, unlike after any other `RegistryError`."""

    failure_reason = FailureReason.REGISTRY_UNREACHABLE


class DeliveryError(SluiceError):
    """A batch cannot be made visible."""


class UnpublishableError(DeliveryError):
    """Nothing can be published into this table in this way; the message has the reason and the remedy."""

    failure_reason = FailureReason.DECLARATION_REFUSED


class StagingError(DeliveryError):
    """A staging table was changed by another writer."""

    failure_reason = FailureReason.TABLE_DIVERGED


class StagedFilesMissingError(StagingError):
    """Files of a staged batch were deleted from the object store, so their rows cannot be published."""

    failure_reason = FailureReason.STAGED_FILES_LOST


class UndeclaredOutputError(DeliveryError):
    """Batches are staged for an output that the stream no longer declares, or declares for another table."""

    failure_reason = FailureReason.DECLARATION_REFUSED


class MarkError(DeliveryError):
    """The mark on the target is missing, cannot be read, or belongs to another generation."""

    failure_reason = FailureReason.TABLE_DIVERGED


class StaleTokenError(DeliveryError):
    """A newer run has taken the stream over. This one must end; its publications are refused."""

    failure_reason = FailureReason.LEASE_LOST


class DivergedError(DeliveryError):
    """The table holds another batch under this number, or a later one: checkpoint and table are inconsistent."""

    failure_reason = FailureReason.TABLE_DIVERGED


class RolledBackError(DeliveryError):
    """The target was rolled back or replaced, so its mark is older than expected. A person must resolve it first."""

    failure_reason = FailureReason.TABLE_DIVERGED


class IntervalChangedError(DeliveryError):
    """Another writer changed the interval that a backfill was about to replace. Nothing was published."""

    failure_reason = FailureReason.COMMIT_STARVED


class StarvedError(DeliveryError):
    """Other writers of the table committed first every time, so nothing was published. A later try is safe."""

    failure_reason = FailureReason.COMMIT_STARVED


class UncertainError(DeliveryError):
    """The catalog's answer to a commit was lost, and the commit cannot be verified. Another try is safe."""

    failure_reason = FailureReason.COMMIT_UNCERTAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDifference:
    """A column that differs between rows and their table.

    column: its name; for a field inside a column, with the names of the enclosing columns.
    declared: the type in the table; empty when the table does not have it.
    got: the type in the rows; empty when the rows do not have it.
    """

    column: str
    declared: str
    got: str

    def __str__(self) -> str:
        return f"{self.column}: declared {self.declared or 'nothing'}, got {self.got or 'nothing'}"


class SchemaError(DeliveryError):
    """The rows of an output do not fit their target table, so nothing is written.

    Parameters
    ----------
    message: which output of which stream, and which table.
    differences: every column that differs, in the order of the table.
    """

    failure_reason = FailureReason.SCHEMA_DIFFERS

    def __init__(self, message: str, *, differences: tuple[ColumnDifference, ...], next_step: str) -> None:
        super().__init__(f"{message} {'; '.join(map(str, differences))}.", next_step=next_step)
        self.differences = differences


class InputGapError(SluiceError):
    """Snapshots of an input table were expired before a stream had read them; a person decides what is to happen."""

    failure_reason = FailureReason.SNAPSHOT_EXPIRED


class InputReplacedError(SluiceError):
    """An input has its name and is not what the position is in: it was rolled back, replaced, or created again."""

    failure_reason = FailureReason.SOURCE_REPLACED


class CheckpointError(SluiceError):
    """A checkpoint is damaged, or belongs to another stream."""

    fallback_reason = FailureReason.CHECKPOINT_DAMAGED


class CheckpointStorageError(CheckpointError):
    """The storage of a checkpoint does not answer, or refuses, which says nothing about the checkpoint."""

    fallback_reason = FailureReason.OBJECT_STORE_UNREACHABLE


class DemonstrationError(SluiceError):
    """A step of the demo failed, or took longer than its deadline."""


class VerificationError(SluiceError):
    """Counted figures are inconsistent."""


class UnhealthyError(SluiceError):
    """The command succeeded, and something that it checked is unhealthy."""


ERROR_CLASSES: Mapping[str, type[SluiceError]] = {
    name: kind for name, kind in list(globals().items()) if isinstance(kind, type) and issubclass(kind, SluiceError)
}
"""Every error of the tree by its name: the last line of a driver's log names a class without its package."""
