"""What each reason of a failure means, and the one next step for the on-call: the table of `docs/guides/on-call.md`.

`{stream}` in a next step is the stream's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.errors import FailureClass, FailureReason
from sluice.ledger.records.failure import Failure

_LOGS = "`sluice stream logs {stream}`"
_CHECK = "`sluice checkpoint check {stream}`"
_RESET = "`sluice stream reset {stream}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """One row of the guide. means: half a sentence. next_step: a whole one."""

    failure_class: FailureClass
    means: str
    next_step: str


def _of(failure_class: FailureClass, means: str, next_step: str) -> Guidance:
    return Guidance(failure_class=failure_class, means=means, next_step=next_step)


_T, _I, _R = FailureClass.TRANSIENT, FailureClass.INFRASTRUCTURE, FailureClass.RESOURCE
_S, _K, _C = FailureClass.SCHEMA, FailureClass.CHECKPOINT, FailureClass.CODE
_L, _P = FailureClass.SOURCE_DATA_LOST, FailureClass.POISON_DATA

GUIDE: Mapping[FailureReason, Guidance] = {
    FailureReason.SERVICE_BUSY: _of(
        _T, "a service answered that it is too busy", "Nothing; if it stays, see the load of the service that is named."
    ),
    FailureReason.TIMED_OUT: _of(
        _T, "a service took too long to answer", "Nothing; if it stays, see the service that is named."
    ),
    FailureReason.LEASE_LOST: _of(
        _T, "the run lost its lease, so it published nothing more", "Nothing; if it stays, see that the ledger answers."
    ),
    FailureReason.COMMIT_UNCERTAIN: _of(
        _T, "the catalog's answer to a commit was lost", "Nothing: the next run looks whether the batch has landed."
    ),
    FailureReason.KAFKA_UNREACHABLE: _of(
        _I, "no broker of the Kafka connection answers", "See that Kafka runs and is reachable from the driver's host."
    ),
    FailureReason.CATALOG_UNREACHABLE: _of(
        _I, "the Iceberg catalog does not answer", "See that the catalog runs and is reachable from the driver's host."
    ),
    FailureReason.OBJECT_STORE_UNREACHABLE: _of(
        _I,
        "the object store does not answer",
        "See that the object store runs and is reachable from the driver's host.",
    ),
    FailureReason.LEDGER_UNREACHABLE: _of(
        _I, "the ledger does not answer", "See that the ledger's PostgreSQL runs (`sluice stack status` locally)."
    ),
    FailureReason.REGISTRY_UNREACHABLE: _of(
        _I,
        "the schema registry does not answer",
        "See that the registry runs and is reachable from the workers' hosts.",
    ),
    FailureReason.NETWORK_UNREACHABLE: _of(
        _I, "a service cannot be connected", f"Find which service in {_LOGS}, and see that it runs."
    ),
    FailureReason.ACCESS_REFUSED: _of(
        _I, "a service refused the credentials", "See that the credentials of the service that is named are valid."
    ),
    FailureReason.SOURCE_MISSING: _of(
        _I, "a topic, folder or table of an input does not exist", "Create the source, or correct its name."
    ),
    FailureReason.DRIVER_KILLED: _of(
        _I,
        "a signal ended the driver",
        "If nobody did it, see the host's memory: its kernel kills what takes too much.",
    ),
    FailureReason.DRIVER_LOST: _of(
        _I, "the driver vanished without a word", "See whether its host was restarted or is out of memory."
    ),
    FailureReason.LAUNCH_FAILED: _of(
        _I, "no driver could be started", "See the Spark connection, and that the logs folder can be written."
    ),
    FailureReason.OFFSETS_LOST: _of(
        _L,
        "records were removed from the topic before they were read, or the topic was made anew",
        f"Decide what the gap means; then {_RESET} reads what the topic still holds.",
    ),
    FailureReason.SNAPSHOT_EXPIRED: _of(
        _L,
        "the source table no longer has the snapshot at which the stream stands",
        f"Decide what the gap means; then {_RESET} reads the snapshots that are left.",
    ),
    FailureReason.FILE_VANISHED: _of(
        _L,
        "a data file that the source lists does not exist",
        "Restore the file, or remove it from the source table and start the stream again.",
    ),
    FailureReason.MALFORMED_RECORD: _of(
        _P, "a record cannot be parsed", "Let the transformation hand such rows to the quarantine, then start it again."
    ),
    FailureReason.VALUE_REFUSED: _of(
        _P,
        "a value does not fit what the query or the table asks of it",
        f"Find the value in {_LOGS}; let the transformation refuse such rows, then start it again.",
    ),
    FailureReason.AMBIGUOUS_MERGE: _of(
        _P,
        "several rows of one batch change the same row of the target",
        "Declare an `ordering_column`, or let the transformation keep one row for each key.",
    ),
    FailureReason.SCHEMA_DIFFERS: _of(
        _S,
        "the rows do not have the target's schema",
        "Compare the two in the message; change the transformation or the table's declaration.",
    ),
    FailureReason.COLUMN_MISSING: _of(
        _S, "a column that is named does not exist", "Change the transformation, or bring the column back."
    ),
    FailureReason.TABLE_MISSING: _of(
        _S, "a table does not exist", "Create it: `sluice table create`; a dropped one is restored from its backup."
    ),
    FailureReason.CHECKPOINT_DAMAGED: _of(
        _K,
        "a file of the checkpoint is missing or cannot be read",
        f"See {_CHECK}; restore it, or leave it behind: {_RESET} reads anew.",
    ),
    FailureReason.CHECKPOINT_FOREIGN: _of(
        _K,
        "the checkpoint is not the one that the ledger knows",
        f"See {_CHECK}; restore it, or leave it behind: {_RESET} reads anew.",
    ),
    FailureReason.QUERY_CHANGED: _of(
        _K,
        "the query was changed in a way that its checkpoint cannot follow",
        f"Undo the change, declare the new query as a stream of another name, or read anew: {_RESET}.",
    ),
    FailureReason.TABLE_DIVERGED: _of(
        _K,
        "table and checkpoint tell different stories",
        "Do not restart it; find who rolled back or wrote the table, and restore both together.",
    ),
    FailureReason.COMMIT_CONFLICT: _of(
        FailureClass.COMMIT_CONFLICT,
        "another writer changed the table meanwhile",
        "Nothing; if it stays, see which other jobs write the table.",
    ),
    FailureReason.COMMIT_STARVED: _of(
        FailureClass.COMMIT_CONFLICT,
        "other writers won every race for the table",
        "See which other jobs write the table, and give this stream a time without them.",
    ),
    FailureReason.OUT_OF_MEMORY: _of(
        _R, "the driver or its Python worker ran out of memory", "Raise `engine.driver_memory`, or bound the batch."
    ),
    FailureReason.DISK_FULL: _of(_R, "a disk is full", "Make space on the disk of the checkpoint, the logs, or Spark."),
    FailureReason.TOO_MANY_FILES: _of(
        _R, "the process may not open more files", "Raise the limit of open files for drivers, and restart it."
    ),
    FailureReason.WORKER_DIED: _of(
        _R, "Spark's Python worker ended", f"Mostly it ran out of memory: see the end of {_LOGS} and the host's memory."
    ),
    FailureReason.TRANSFORMATION_FAILED: _of(
        _C, "the transformation raised an error", f"Correct the transformation; its traceback is in {_LOGS}."
    ),
    FailureReason.QUERY_REFUSED: _of(_C, "Spark refuses the query", "Correct the transformation as the message says."),
    FailureReason.DECLARATION_REFUSED: _of(
        _C, "the declaration is wrong, or asks for what cannot be", "Correct the declaration: `sluice validate`."
    ),
    FailureReason.SETTINGS_REFUSED: _of(
        _C, "the deployment's settings are wrong", "Correct the setting that is named in the driver's environment."
    ),
    FailureReason.ENDED_BY_ITSELF: _of(
        FailureClass.UNKNOWN, "the driver ended without being asked", f"See the end of {_LOGS}."
    ),
    FailureReason.UNEXPLAINED: _of(
        FailureClass.UNKNOWN, "an error that no rule knows", f"See the end of {_LOGS}, and the error itself."
    ),
}


def failure_of(reason: FailureReason) -> Failure:
    """A reason with its class."""
    return Failure(failure_class=GUIDE[reason].failure_class, reason=reason)


def told(failure: Failure) -> str:
    """A failure for a person: `schema: column_missing (a column that is named does not exist)`."""
    return f"{failure.failure_class}: {failure.reason} ({GUIDE[failure.reason].means})"


def given_up_steps(failure: Failure, *, stream: str) -> str:
    """What a person does about a stream that was given up."""
    step = next_step(failure.reason, stream=stream)
    return f"{step} Then ask for the stream again: unpause its DAG, or without Airflow `sluice stream start {stream}`."


def next_step(reason: FailureReason, *, stream: str) -> str:
    """The one thing that the on-call does about a failure."""
    return GUIDE[reason].next_step.format(stream=stream)
