"""The classification of failures: those that were really provoked, the errors of Sluice, and unexplained ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.failures import CORPUS, EXPECTED, recorded_chain

from sluice.errors import ERROR_CLASSES
from sluice.failure_reasons import Failure, FailureClass, FailureReason, next_step
from sluice.failures.classification import CONDITIONS, KINDS, TEXTS, classify, failure_of_exit
from sluice.failures.error_chains import ErrorChain, ErrorLink, chain_in
from sluice.ledger.run_values import RunState

Reason = FailureReason


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_provoked_failure_has_its_reason(name: str) -> None:
    assert classify(recorded_chain(name)) == Failure.of(EXPECTED[name])


def test_every_recorded_failure_is_judged() -> None:
    assert {file.stem for file in CORPUS.glob("*.json")} == set(EXPECTED)


def test_the_corpus_meets_every_class_but_unknown() -> None:
    met = {reason.failure_class for reason in EXPECTED.values()}
    assert met == set(FailureClass) - {FailureClass.UNKNOWN}


def test_every_reason_has_a_class_a_meaning_and_a_next_step() -> None:
    assert {reason.failure_class for reason in FailureReason} == set(FailureClass)
    for reason in FailureReason:
        assert reason.means
        assert next_step(reason, stream="flights").endswith(".")
        assert "{" not in next_step(reason, stream="flights")


OWN_REASONS = {
    "UsageError": Reason.DECLARATION_REFUSED,
    "SettingsError": Reason.SETTINGS_REFUSED,
    "PrerequisiteError": Reason.SETTINGS_REFUSED,
    "LedgerUnreachableError": Reason.LEDGER_UNREACHABLE,
    "RegistryUnreachableError": Reason.REGISTRY_UNREACHABLE,
    "RunAlreadyLiveError": Reason.LEASE_LOST,
    "LeaseLostError": Reason.LEASE_LOST,
    "UnknownRunError": Reason.LEASE_LOST,
    "StaleTokenError": Reason.LEASE_LOST,
    "LaunchError": Reason.LAUNCH_FAILED,
    "FilesDifferError": Reason.FILES_DIFFER,
    "SourceRefusedError": Reason.ACCESS_REFUSED,
    "JvmLostError": Reason.DRIVER_LOST,
    "JvmKilledError": Reason.DRIVER_KILLED,
    "MemoryKillError": Reason.OUT_OF_MEMORY,
    "UnpublishableError": Reason.DECLARATION_REFUSED,
    "StagingError": Reason.TABLE_DIVERGED,
    "UndeclaredOutputError": Reason.DECLARATION_REFUSED,
    "StagedFilesMissingError": Reason.STAGED_FILES_LOST,
    "MarkError": Reason.TABLE_DIVERGED,
    "DivergedError": Reason.TABLE_DIVERGED,
    "RolledBackError": Reason.TABLE_DIVERGED,
    "SchemaError": Reason.SCHEMA_DIFFERS,
    "InputGapError": Reason.SNAPSHOT_EXPIRED,
    "InputReplacedError": Reason.SOURCE_REPLACED,
    "IntervalChangedError": Reason.COMMIT_STARVED,
    "StarvedError": Reason.COMMIT_STARVED,
    "UncertainError": Reason.COMMIT_UNCERTAIN,
}
FALLBACK_REASONS = {
    "CheckpointError": Reason.CHECKPOINT_DAMAGED,
    "CheckpointStorageError": Reason.OBJECT_STORE_UNREACHABLE,
    "DeclarationError": Reason.DECLARATION_REFUSED,
    "NotYetError": Reason.DECLARATION_REFUSED,
    "LedgerError": Reason.SETTINGS_REFUSED,
    "RegistryError": Reason.DECLARATION_REFUSED,
    "LakehouseError": Reason.CATALOG_UNREACHABLE,
    "StackError": Reason.NETWORK_UNREACHABLE,
}
OUT_OF_MEMORY = ErrorLink(kind="java.lang.OutOfMemoryError")


@pytest.mark.parametrize("error", sorted(ERROR_CLASSES))
def test_an_error_of_ours_has_its_own_reason_a_fallback_reason_or_none(error: str) -> None:
    link = ErrorLink(kind=f"sluice.errors.{error}", message="it failed")
    alone = OWN_REASONS.get(error) or FALLBACK_REASONS.get(error) or Reason.UNEXPLAINED
    assert classify((link,)) == Failure.of(alone)
    assert classify((ErrorLink(kind=error, message="as the last line of a log names it"),)) == Failure.of(alone)
    assert classify((link, OUT_OF_MEMORY)) == Failure.of(OWN_REASONS.get(error, Reason.OUT_OF_MEMORY))


def test_a_message_counts_last() -> None:
    """Whoever writes "timed out" into a message does not make a schema failure transient."""
    link = ErrorLink(kind="org.apache.spark.sql.AnalysisException", condition="UNRESOLVED_COLUMN", message="timed out")
    assert classify((link,)) == Failure.of(Reason.COLUMN_MISSING)
    assert classify((replace(link, kind="Mystery", condition=""),)) == Failure.of(Reason.TIMED_OUT)


@given(st.lists(st.builds(ErrorLink, kind=st.text(), message=st.text(), condition=st.text()), max_size=30).map(tuple))
def test_whatever_is_raised_has_a_class(chain: ErrorChain) -> None:
    failure = classify(chain)
    assert failure == Failure.of(failure.reason)


def test_an_unknown_error_is_unexplained() -> None:
    assert classify(()) == Failure.of(Reason.UNEXPLAINED)
    assert classify((ErrorLink(kind="Mystery", message="?"),)) == Failure.of(Reason.UNEXPLAINED)


@pytest.mark.parametrize(
    ("exit_code", "state", "reason", "expected"),
    [
        (None, RunState.LOST, "The process of run r is gone.", Reason.DRIVER_LOST),
        (-9, RunState.FAILED, "killed by SIGKILL", Reason.DRIVER_KILLED),
        (0, RunState.FINISHED, "finished", Reason.ENDED_BY_ITSELF),
        (1, RunState.FAILED, "CheckpointError: The checkpoint is damaged.", Reason.CHECKPOINT_DAMAGED),
        (None, RunState.FAILED, "LaunchError: spark-submit is not found.", Reason.LAUNCH_FAILED),
        (1, RunState.FAILED, "StaleTokenError: Token 3 is older than 4.", Reason.LEASE_LOST),
        (1, RunState.FAILED, "exit code 1", Reason.UNEXPLAINED),
        (1, RunState.FAILED, "KeyError: 'a'", Reason.TRANSFORMATION_FAILED),
        (52, RunState.FAILED, "java.lang.OutOfMemoryError: Java heap space", Reason.OUT_OF_MEMORY),
    ],
)
def test_a_driver_without_a_recorded_failure_is_classified_by_its_exit(
    exit_code: int | None, state: RunState, reason: str, expected: FailureReason
) -> None:
    assert failure_of_exit(exit_code, state=state, reason=reason) == Failure.of(expected)


@pytest.mark.parametrize(
    "message",
    [
        "batch 2 doesn't exist",
        "Checksum error: file:/data/checkpoints/s/1/offsets/12 at 0 exp: 1480215342 got: 205018277",
        "Checksum error: file:/data/checkpoints/s/1/state/0/1/7.delta at 0 exp: 1 got: 2",
    ],
)
def test_what_spark_says_of_damaged_logs_is_a_damaged_checkpoint(message: str) -> None:
    link = ErrorLink(kind="java.lang.IllegalStateException", message=message)
    assert classify((link,)) == Failure.of(Reason.CHECKPOINT_DAMAGED)


def test_no_rule_is_without_an_error() -> None:
    for rule in (*CONDITIONS, *KINDS, *TEXTS):
        assert rule.kinds or rule.conditions or rule.text is not None


def test_the_message_of_an_error_ends_where_the_traceback_of_a_worker_begins() -> None:
    (link,) = chain_in(
        "pyspark.errors.AnalysisException: [PYTHON_DATA_SOURCE_ERROR] Failed when method is called: "
        "Traceback (most recent call last):"
    )
    assert link.message == "[PYTHON_DATA_SOURCE_ERROR] Failed when method is called"
