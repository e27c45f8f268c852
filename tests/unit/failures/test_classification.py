"""Failures that were really provoked, each told by its class and reason; and failures that nobody explains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.failures import CORPUS, EXPECTED, recorded_chain

from sluice import errors
from sluice.errors import FailureClass, FailureReason
from sluice.failures.classification import OWN, classify, failure_of_exit
from sluice.failures.error_chains import ErrorChain, ErrorLink
from sluice.failures.guide import GUIDE, failure_of, next_step
from sluice.failures.rules import CONDITIONS, KINDS, TEXTS, WRAPPERS
from sluice.ledger.records.run import RunState

Reason = FailureReason


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_provoked_failure_is_told_by_its_reason(name: str) -> None:
    assert classify(recorded_chain(name)) == failure_of(EXPECTED[name])


def test_every_recorded_failure_is_judged() -> None:
    assert {file.stem for file in CORPUS.glob("*.json")} == set(EXPECTED)


def test_the_corpus_meets_every_class_but_unknown() -> None:
    met = {GUIDE[reason].failure_class for reason in EXPECTED.values()}
    assert met == set(FailureClass) - {FailureClass.UNKNOWN}


def test_every_reason_has_a_class_a_meaning_and_a_next_step() -> None:
    assert set(GUIDE) == set(FailureReason)
    for reason in FailureReason:
        assert next_step(reason, stream="flights").endswith(".")
        assert "{" not in next_step(reason, stream="flights")


@pytest.mark.parametrize("error", sorted(OWN))
def test_errors_of_ours_that_are_named_exist(error: str) -> None:
    assert issubclass(getattr(errors, error), errors.SluiceError)


@pytest.mark.parametrize("error", sorted(WRAPPERS))
def test_a_wrapper_counts_only_when_its_cause_says_nothing(error: str) -> None:
    wrapper = ErrorLink(kind=f"sluice.errors.{error}", message="it failed")
    assert classify((wrapper,)) == failure_of(WRAPPERS[error])
    assert classify((wrapper, ErrorLink(kind="java.lang.OutOfMemoryError"))) == failure_of(Reason.OUT_OF_MEMORY)


def test_a_message_counts_last() -> None:
    """Whoever writes "timed out" into a message does not make a schema failure transient."""
    told = ErrorLink(kind="org.apache.spark.sql.AnalysisException", condition="UNRESOLVED_COLUMN", message="timed out")
    assert classify((told,)) == failure_of(Reason.COLUMN_MISSING)
    assert classify((replace(told, kind="Mystery", condition=""),)) == failure_of(Reason.TIMED_OUT)


@given(st.lists(st.builds(ErrorLink, kind=st.text(), message=st.text(), condition=st.text()), max_size=30).map(tuple))
def test_whatever_is_raised_has_a_class(chain: ErrorChain) -> None:
    failure = classify(chain)
    assert failure == failure_of(failure.reason)


def test_nothing_told_is_unexplained() -> None:
    assert classify(()) == failure_of(Reason.UNEXPLAINED)
    assert classify((ErrorLink(kind="Mystery", message="?"),)) == failure_of(Reason.UNEXPLAINED)


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
def test_a_driver_that_did_not_say_why_is_told_by_its_exit(
    exit_code: int | None, state: RunState, reason: str, expected: FailureReason
) -> None:
    assert failure_of_exit(exit_code, state=state, reason=reason) == failure_of(expected)


def test_no_rule_is_without_an_error() -> None:
    for rule in (*CONDITIONS, *KINDS, *TEXTS):
        assert rule.kinds or rule.conditions or rule.text is not None
