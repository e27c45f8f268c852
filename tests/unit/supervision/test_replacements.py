"""When a declaration counts as changed back and forth."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.unit.supervision.supervision_cases import NOW, a_run

from sluice.ledger.run_values import RunObservation
from sluice.supervision.restart_policy import BECAUSE_CHANGED, REPLACED_WITHIN, is_back_and_forth

MINUTE = timedelta(minutes=1)


def replaced(digest: str, ago: timedelta) -> RunObservation:
    """A run that was replaced so long ago."""
    return replace(a_run(digest=digest), end_asked_at=NOW - ago, end_asked_because=BECAUSE_CHANGED)


BACK_AND_FORTH = [replaced("old", MINUTE), replaced("new", 2 * MINUTE), replaced("old", 3 * MINUTE)]


def test_the_third_return_is_one_too_many() -> None:
    assert is_back_and_forth(BACK_AND_FORTH, digest="new", reset_at=None, now=NOW)
    assert not is_back_and_forth(BACK_AND_FORTH[:2], digest="new", reset_at=None, now=NOW)


def test_an_edit_is_followed_whatever_was_replaced_before() -> None:
    assert not is_back_and_forth(BACK_AND_FORTH, digest="newest", reset_at=None, now=NOW)


def test_replacements_of_earlier_hours_and_before_a_person_s_request_do_not_count() -> None:
    assert not is_back_and_forth(BACK_AND_FORTH, digest="new", reset_at=None, now=NOW + REPLACED_WITHIN)
    assert not is_back_and_forth(BACK_AND_FORTH, digest="new", reset_at=NOW - 2 * MINUTE, now=NOW)
    others = [replace(run, end_asked_because="it is stalled") for run in BACK_AND_FORTH]
    assert not is_back_and_forth(others, digest="new", reset_at=None, now=NOW)
