"""Why a run failed: every reason with its class, its meaning and the next step for the on-call.

This is the one table of failures. The errors of `sluice.errors` name their reasons, `sluice.failures.classification`
finds the reason of an error chain, and `docs/guides/on-call.md` is generated from the table. The module imports the
standard library only, because the bootstrap runs it before any package is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureClass(StrEnum):
    """The kind of a failure. Each class has its own restart policy (`sluice.supervision.restart_policy`)."""

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


_T, _I, _R = FailureClass.TRANSIENT, FailureClass.INFRASTRUCTURE, FailureClass.RESOURCE
_S, _K, _C = FailureClass.SCHEMA, FailureClass.CHECKPOINT, FailureClass.CODE
_L, _P, _W = FailureClass.SOURCE_DATA_LOST, FailureClass.POISON_DATA, FailureClass.COMMIT_CONFLICT

_LOGS = "`sluice stream logs {stream}`"
_RESET = "`sluice stream reset {stream}`"
_REPAIR = "`sluice stream repair {stream} --dry-run`"


class FailureReason(StrEnum):
    """The reason of a failure, in one word. The ledger, logs, Airflow and the command line use the same word.

    A row is the stored word, the class, the meaning (half a sentence) and the next step (a whole sentence, in which
    `{stream}` is the stream's name). A row without a class is of the class `unknown`.
    """

    failure_class: FailureClass
    means: str
    step: str

    def __new__(
        cls, word: str, failure_class: FailureClass = FailureClass.UNKNOWN, means: str = "", step: str = ""
    ) -> FailureReason:
        """Make the member of one row."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.failure_class, member.means, member.step = failure_class, means, step
        return member

    SERVICE_BUSY = (
        "service_busy",
        _T,
        "a service answered that it is too busy",
        "Nothing; if it stays, see the load of the service that is named.",
    )
    TIMED_OUT = (
        "timed_out",
        _T,
        "a service took too long to answer",
        "Nothing; if it stays, see the service that is named.",
    )
    LEASE_LOST = (
        "lease_lost",
        _T,
        "the run lost its lease, so it published nothing more",
        "Nothing; if it stays, see that the ledger answers.",
    )
    COMMIT_UNCERTAIN = (
        "commit_uncertain",
        _T,
        "the catalog's answer to a commit was lost",
        "Nothing: the next run checks whether the batch was committed.",
    )

    KAFKA_UNREACHABLE = (
        "kafka_unreachable",
        _I,
        "no broker of the Kafka connection answers",
        "See that Kafka runs and is reachable from the driver's host.",
    )
    CATALOG_UNREACHABLE = (
        "catalog_unreachable",
        _I,
        "the Iceberg catalog does not answer",
        "See that the catalog runs and is reachable from the driver's host.",
    )
    OBJECT_STORE_UNREACHABLE = (
        "object_store_unreachable",
        _I,
        "the object store does not answer",
        "See that the object store runs and is reachable from the driver's host.",
    )
    LEDGER_UNREACHABLE = (
        "ledger_unreachable",
        _I,
        "the ledger does not answer",
        "See that the ledger's PostgreSQL runs (`sluice stack status` locally).",
    )
    REGISTRY_UNREACHABLE = (
        "registry_unreachable",
        _I,
        "the schema registry does not answer",
        "See that the registry runs and is reachable from the workers' hosts.",
    )
    NETWORK_UNREACHABLE = (
        "network_unreachable",
        _I,
        "a connection to a service failed",
        f"Find the service in {_LOGS}, and see that it runs.",
    )
    ACCESS_REFUSED = (
        "access_refused",
        _I,
        "a service refused the credentials, or a folder this user",
        "See that the credentials of the service that is named are valid, or this user may read the folder.",
    )
    SOURCE_MISSING = (
        "source_missing",
        _I,
        "a topic, folder or table of an input does not exist",
        "Create the source, or correct its name.",
    )
    DRIVER_KILLED = (
        "driver_killed",
        _I,
        "a signal ended the driver",
        "If no person sent it, see the host's memory: the kernel kills the largest process when memory runs out.",
    )
    DRIVER_LOST = (
        "driver_lost",
        _I,
        "the driver ended without reporting a status",
        "See whether its host was restarted or is out of memory.",
    )
    LAUNCH_FAILED = (
        "launch_failed",
        _I,
        "no driver could be started",
        "See the Spark connection, and that the logs folder can be written.",
    )
    FILES_DIFFER = (
        "files_differ",
        _I,
        "the driver's host holds other files than those that the run was started for",
        "Bring the same declarations and code to every host; the stream then starts again by itself.",
    )

    OFFSETS_LOST = (
        "offsets_lost",
        _L,
        "records were removed from the topic before they were read, or the topic was recreated",
        f"Decide what the gap means; then {_RESET} reads what the topic still holds.",
    )
    SNAPSHOT_EXPIRED = (
        "snapshot_expired",
        _L,
        "snapshots of the source table were expired before the stream had read them",
        "`sluice stream continue {stream} --dry-run` names what is missing, and shows whether it can still be read "
        "exactly once.",
    )
    SOURCE_REPLACED = (
        "source_replaced",
        _L,
        "an input was rolled back, replaced, or deleted and created again under its name",
        "`sluice stream continue {stream} --dry-run` shows where it can continue and what that reads; "
        f"{_RESET} reads every input again.",
    )
    FILE_VANISHED = (
        "file_vanished",
        _L,
        "a data file that the source lists does not exist",
        "Restore the file, or remove it from the source table and start the stream again.",
    )

    STAGED_FILES_LOST = (
        "staged_files_lost",
        _L,
        "files of a staged batch are gone, so its rows cannot be published",
        "Restore the files, or give up the rows of the batch that the message names: `sluice batch reject`.",
    )

    MALFORMED_RECORD = (
        "malformed_record",
        _P,
        "a record cannot be parsed",
        "Let the transformation send such rows to quarantine, then start the stream again.",
    )
    VALUE_REFUSED = (
        "value_refused",
        _P,
        "a value does not fit what the query or the table requires of it",
        f"Find the value in {_LOGS}; let the transformation reject such rows, then start the stream again.",
    )
    RULE_BROKEN = (
        "rule_broken",
        _P,
        "rows of a batch break a rule that fails the run; nothing of the batch was staged",
        f"Find the rule and its counts in {_LOGS}; correct the data or the rule, then start the stream again.",
    )
    AMBIGUOUS_MERGE = (
        "ambiguous_merge",
        _P,
        "several rows of one batch change the same row of the target",
        "Declare an `ordering_column`, or let the transformation keep one row for each key.",
    )

    SCHEMA_DIFFERS = (
        "schema_differs",
        _S,
        "the rows do not have the target's schema",
        "Compare the two in the message; change the transformation or the table's declaration.",
    )
    COLUMN_MISSING = (
        "column_missing",
        _S,
        "a column that is named does not exist",
        "Change the transformation, or restore the column.",
    )
    TABLE_MISSING = (
        "table_missing",
        _S,
        "a table does not exist",
        "Create it: `sluice table create`; a dropped one is restored from its backup.",
    )

    CHECKPOINT_DAMAGED = (
        "checkpoint_damaged",
        _K,
        "a file of the checkpoint is missing or cannot be read",
        f"{_REPAIR} names it and shows what writes it back; where state is lost for good, {_RESET} rereads the inputs.",
    )
    CHECKPOINT_FOREIGN = (
        "checkpoint_foreign",
        _K,
        "the checkpoint is not the one that the ledger knows",
        f"{_REPAIR} shows whether it is its own under another id, and what writes it back.",
    )
    QUERY_CHANGED = (
        "query_changed",
        _K,
        "the query was changed in a way that its checkpoint cannot follow",
        f"Undo the change, declare the new query as a stream of another name, or reread the inputs: {_RESET}.",
    )
    TABLE_DIVERGED = (
        "table_diverged",
        _K,
        "table and checkpoint are inconsistent",
        f"Do not restart the stream: {_REPAIR} names who disagrees, and what writes it back or comes first.",
    )

    COMMIT_CONFLICT = (
        "commit_conflict",
        _W,
        "another writer changed the table at the same time",
        "Nothing; if it stays, see which other jobs write the table.",
    )
    COMMIT_STARVED = (
        "commit_starved",
        _W,
        "other writers committed to the table before every attempt of this one",
        "See which other jobs write the table, and give this stream a time without them.",
    )

    OUT_OF_MEMORY = (
        "out_of_memory",
        _R,
        "the driver or its Python worker ran out of memory",
        "Raise `engine.driver_memory`, or limit the size of a batch.",
    )
    DISK_FULL = (
        "disk_full",
        _R,
        "a disk is full",
        "Make space on the disk of the checkpoint, the logs, or Spark.",
    )
    TOO_MANY_FILES = (
        "too_many_files",
        _R,
        "the process may not open more files",
        "Raise the limit of open files for drivers, and restart the stream.",
    )
    WORKER_DIED = (
        "worker_died",
        _R,
        "Spark's Python worker ended",
        f"The usual cause is memory: see the end of {_LOGS} and the host's memory.",
    )

    TRANSFORMATION_FAILED = (
        "transformation_failed",
        _C,
        "the transformation raised an error",
        f"Correct the transformation; its traceback is in {_LOGS}.",
    )
    QUERY_REFUSED = (
        "query_refused",
        _C,
        "Spark refuses the query",
        "Correct the transformation as the message says.",
    )
    DECLARATION_REFUSED = (
        "declaration_refused",
        _C,
        "the declaration is wrong, or asks for something that is not supported",
        "Correct the declaration: `sluice validate`.",
    )
    SETTINGS_REFUSED = (
        "settings_refused",
        _C,
        "the deployment's settings are wrong",
        "Correct the setting that is named in the driver's environment.",
    )

    ENDED_BY_ITSELF = (
        "ended_by_itself",
        FailureClass.UNKNOWN,
        "the driver ended without being asked",
        f"See the end of {_LOGS}.",
    )
    UNEXPLAINED = (
        "unexplained",
        FailureClass.UNKNOWN,
        "no rule matches the error",
        f"See the end of {_LOGS}, and the error itself.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure as the ledger stores it: the class, and the reason within the class. `Failure.of` builds one."""

    failure_class: FailureClass
    reason: FailureReason

    @classmethod
    def of(cls, reason: FailureReason) -> Failure:
        """Return the failure of a reason."""
        return cls(failure_class=reason.failure_class, reason=reason)


def describe_failure(failure: Failure) -> str:
    """Describe a failure for a person: `schema: column_missing (a column that is named does not exist)`."""
    return f"{failure.failure_class}: {failure.reason} ({failure.reason.means})"


def next_step(reason: FailureReason, *, stream: str) -> str:
    """Return the one step that the on-call takes after a failure of this reason."""
    return reason.step.format(stream=stream)


def given_up_steps(failure: Failure, *, stream: str) -> str:
    """Return what a person does about a stream that Sluice no longer restarts."""
    step = next_step(failure.reason, stream=stream)
    return f"{step} Then start the stream again: unpause its DAG, or `sluice stream start {stream}`."
